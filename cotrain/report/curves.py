"""Learning curves: what log.jsonl has, by step of training."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotrain.evaluation.head_stats import VOTERS
from cotrain.report import figures
from cotrain.report.figures import Figure, Palette, Series
from cotrain.runs.log import SELECTED, read_log
from cotrain.runs.run import Run

ERRORS = "Errors of the averaged network when they were looked at during training; lower is better."
HEAD_ERRORS = (
    "Lower is better. Lines that fall together mean that no head lags behind; heads that stay far apart do not learn "
    "from each other."
)
OF_LOSSES = (
    "Every term of the loss before weighting, averaged since the previous line of the log; supervised is the loss on "
    "labelled images. They should fall or level off; jumps mean that the learning rate is too high."
)
OF_SHARES = (
    "Of the unlabelled images of a step, how many were taught, by a pseudo-label (agreement, selected, labelled) or by "
    "what was said of them before (known). Near 0 for long, nothing is learned from the unlabelled images; at 1 from "
    "the start, every guess is believed."
)
OTHERS = "What else the method logs; its file explains it."
RATE = "The learning rate of each step: how far one step may change the network."
VOTES = ("heads_disagree", "vote_selected", "vote_right")  # percent
SHARES = (*SELECTED, "labelled", "known")  # of the unlabelled images of a step, 0 to 1
ERROR, HEAD_ERROR = re.compile(r"(?!head_\d+_)(.+)_error"), re.compile(r"(head_\d+)_error")


def learning_curves(run: Run, palette: Palette) -> list[Figure]:
    """Errors, losses, shares, votes, the learning rate, and whatever else a method watches."""
    rows, terms, vote = read_log(run.log_path), run.config.method.terms, run.config.method.heads >= VOTERS
    logged, alone = _series(rows), _series(read_log(run.baseline_folder / run.log_path.name))
    errors = {found[1]: logged[name] for name in logged if (found := ERROR.fullmatch(name))}
    for part in [part for part in errors if f"{part}_error" in alone][:1]:
        errors[f"{part}, labelled only"] = alone[f"{part}_error"]
    shown = {*terms, *SHARES, *VOTES, "lr", *(name for name in logged if name.endswith("_error"))}
    part, of_heads = _head_errors(rows)
    others = {name: one for name, one in logged.items() if name not in shown}
    rate = {"learning rate": logged["lr"]} if "lr" in logged else {}
    groups: list[tuple[Series, str, str]] = [
        (errors, "error (%)", ERRORS),
        (of_heads, "error of a head (%)", f"Each head's error on {part} images. {HEAD_ERRORS}"),
        (_some(terms, logged), "loss", OF_LOSSES),
        (_some(SHARES, logged), "share", OF_SHARES),
        (_some(VOTES if vote else VOTES[:1], logged), "percent", _about_votes(rows, vote)),
        (others, "value", OTHERS),
        (rate, "learning rate", RATE),
    ]
    return [
        figures.curves(palette, some, unit, caption, share=unit == "share") for some, unit, caption in groups if some
    ]


def has_errors(run: Run) -> bool:
    """Whether any error was looked at during training."""
    return any(ERROR.fullmatch(name) for row in read_log(run.log_path) for name in row)


def last_seconds(path: Path) -> float | None:
    """How long training took, as its log says."""
    return next((row["seconds"] for row in reversed(read_log(path)) if "seconds" in row), None)


def last_votes(run: Run) -> Mapping[str, float] | None:
    """How the heads voted on unlabelled images when they were last looked at."""
    if run.config.method.heads < VOTERS:
        return None
    return next((row for row in reversed(read_log(run.log_path)) if "vote_selected" in row), None)


def _about_votes(rows: Sequence[Mapping[str, float]], vote: bool) -> str:
    """Judged by unlabelled images whose labels are known, by valid ones, or not at all; two heads do not vote."""
    if not vote:
        return "On unlabelled images: how often the heads disagree. Alike, they teach each other nothing new."
    judging = next((row for row in rows if {"vote_right", "head_1_error"} & row.keys()), None)
    if judging is not None and "vote_selected" in judging:
        return (
            "On unlabelled images whose labels only the evaluation knows: how often two heads disagree, how many "
            "pseudo-labels their votes give, and how many of those are right. Wrong votes teach wrong things."
        )
    how = "On unlabelled images: how often two heads disagree, and how many pseudo-labels their votes give."
    if judging is not None:
        return f"{how} How many are right is told by {_part(judging)} images. Wrong votes teach wrong things."
    return f"{how} How many of those are right cannot be known without labels."


def _head_errors(rows: Sequence[Mapping[str, float]]) -> tuple[str, dict[str, tuple[list[float], list[float]]]]:
    """Those on one kind of images, and on which."""
    parts = [_part(row) for row in rows if "head_1_error" in row]
    part = parts[0] if parts else ""
    series = _series([row for row in rows if "head_1_error" in row and _part(row) == part])
    return part, {found[1].replace("_", " "): series[name] for name in series if (found := HEAD_ERROR.fullmatch(name))}


def _part(row: Mapping[str, float]) -> str:
    return next((found[1] for name in row if (found := ERROR.fullmatch(name))), "the same")


def _some(names: Sequence[str], logged: Series) -> Series:
    return {name.replace("_", " "): logged[name] for name in names if name in logged}


def _series(rows: Sequence[Mapping[str, float]]) -> dict[str, tuple[list[float], list[float]]]:
    series: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in ("step", "seconds") and isinstance(value, int | float) and math.isfinite(value):
                steps, values = series.setdefault(name, ([], []))
                steps.append(row["step"])
                values.append(value)
    return series
