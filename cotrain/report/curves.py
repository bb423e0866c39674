"""Learning curves: the values of log.jsonl over training steps."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotrain.evaluation.head_stats import VOTERS
from cotrain.report import figures
from cotrain.report.figures import Figure, Palette, Series
from cotrain.runs.log import SELECTED, read_log
from cotrain.runs.run import Run
from cotrain.runs.scores import PARTS
from cotrain.types import Unit

ERRORS = "Errors of the averaged network, measured during training; lower is better."
HEAD_ERRORS = (
    "Lower is better. If the lines fall together, no head lags behind; heads that stay far apart do not learn from "
    "each other."
)
OTHERS = "Other values that the method logs; the file of the method explains them."
RATE = "The learning rate at each step: how far one step may change the network."
VOTES = ("heads_disagree", "vote_selected", "vote_right")  # percent
SHARES = (*SELECTED, "labelled", "known")  # of the unlabelled images of a step, 0 to 1
ERROR, HEAD_ERROR = re.compile(r"(?!head_\d+_)(.+)_error"), re.compile(r"(head_\d+)_error")


def learning_curves(run: Run, palette: Palette) -> list[Figure]:
    """Errors, losses, shares, votes, the learning rate, and whatever else a method logs."""
    rows, terms, vote = read_log(run.log_path), run.config.method.terms, run.config.method.heads >= VOTERS
    logged, baseline = _series(rows), _series(read_log(run.baseline_folder / run.log_path.name))
    parts = [match[1] for name in logged if (match := ERROR.fullmatch(name))]
    errors = {_in_words(part): logged[f"{part}_error"] for part in parts}
    for part in [part for part in parts if f"{part}_error" in baseline][:1]:
        errors[f"{_in_words(part)}, baseline"] = baseline[f"{part}_error"]
    shown = {*terms, *SHARES, *VOTES, "lr", *(name for name in logged if name.endswith("_error"))}
    part, of_heads = _head_errors(rows)
    others = {name: one for name, one in logged.items() if name not in shown}
    rate = {"learning rate": logged["lr"]} if "lr" in logged else {}
    unit = run.config.unit
    groups: list[tuple[Series, str, str]] = [
        (errors, "error (%)", ERRORS),
        (of_heads, "error of a head (%)", f"Each head's error on {part} {unit.many}. {HEAD_ERRORS}"),
        (_some(terms, logged), "loss", _about_losses(unit)),
        (_some(SHARES, logged), "share", _about_shares(unit)),
        (_some(VOTES if vote else VOTES[:1], logged), "percent", _about_votes(rows, vote, unit)),
        (others, "value", OTHERS),
        (rate, "learning rate", RATE),
    ]
    return [
        figures.curves(palette, some, quantity, caption, share=quantity == "share")
        for some, quantity, caption in groups
        if some
    ]


def has_errors(run: Run) -> bool:
    """Whether any error was measured during training."""
    return any(ERROR.fullmatch(name) for row in read_log(run.log_path) for name in row)


def last_seconds(path: Path) -> float | None:
    """The training time according to the log."""
    return next((row["seconds"] for row in reversed(read_log(path)) if "seconds" in row), None)


def last_votes(run: Run) -> Mapping[str, float] | None:
    """The last log entry about the heads' votes on unlabelled images."""
    if run.config.method.heads < VOTERS:
        return None
    return next((row for row in reversed(read_log(run.log_path)) if "vote_selected" in row), None)


def _about_losses(unit: Unit) -> str:
    return (
        "Each term of the loss before weighting, averaged since the previous log entry; supervised is the loss on "
        f"labelled {unit.many}. The terms should fall or level off; jumps suggest that the learning rate is too high."
    )


def _about_shares(unit: Unit) -> str:
    return (
        f"The share of a step's unlabelled {unit.many} with a target: a pseudo-label (agreement, selected, labelled) "
        "or an earlier prediction (known). If it stays near 0, nothing is learned from the unlabelled "
        f"{unit.many}; if it is 1 from the start, every prediction is trusted."
    )


def _about_votes(rows: Sequence[Mapping[str, float]], vote: bool, unit: Unit) -> str:
    """The caption depends on which labels, if any, the votes were checked against. Two heads do not vote."""
    if not vote:
        return (
            f"On unlabelled {unit.many}: how often the heads disagree. Heads that agree teach each other nothing new."
        )
    checked = next((row for row in rows if {"vote_right", "head_1_error"} & row.keys()), None)
    if checked is not None and "vote_selected" in checked:
        return (
            f"On unlabelled {unit.many} whose labels only the evaluation uses: how often two heads disagree, how many "
            f"{unit.many} get a pseudo-label by vote, and how many of these labels are right. Wrong votes teach wrong "
            "labels."
        )
    how = (
        f"On unlabelled {unit.many}: how often two heads disagree, and how many {unit.many} get a pseudo-label by vote."
    )
    if checked is not None:
        measured = f"How many are right was measured on {_part(checked)} {unit.many}."
        return f"{how} {measured} Wrong votes teach wrong labels."
    return f"{how} How many of these labels are right is unknown without true labels."


def _head_errors(rows: Sequence[Mapping[str, float]]) -> tuple[str, dict[str, tuple[list[float], list[float]]]]:
    """The heads' errors on one kind of images, and the name of that kind."""
    parts = [_part(row) for row in rows if "head_1_error" in row]
    part = parts[0] if parts else ""
    series = _series([row for row in rows if "head_1_error" in row and _part(row) == part])
    return part, {match[1].replace("_", " "): series[name] for name in series if (match := HEAD_ERROR.fullmatch(name))}


def _part(row: Mapping[str, float]) -> str:
    return next((_in_words(match[1]) for name in row if (match := ERROR.fullmatch(name))), "the same")


def _in_words(part: str) -> str:
    return PARTS.get(part, part)


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
