"""The page of a finished run, or of several side by side: one HTML file that needs nothing else.

All of it is read back from the run folders; only pictures need the data too.
"""

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from cotrain import figures, pictures
from cotrain.checkpoint import read_tensors, write_whole
from cotrain.config import settings_of
from cotrain.data import Dataset
from cotrain.evaluate import Outputs
from cotrain.figures import ON_PAGE, Figure, Series
from cotrain.log import LOSSES, read_log
from cotrain.pictures import Doubt, Picture, ViewsOfImage
from cotrain.predict import load
from cotrain.progress import clock
from cotrain.run import Run
from cotrain.tested import RELIABILITY, Tested, checked_outputs, tested
from cotrain.types import UserError
from cotrain.verdict import Verdict, verdict

VOTES = ("heads_disagree", "vote_selected", "vote_right")  # percent, in log.jsonl
PAGE = "report.html"
LABEL_NEXT = "label_next.csv"
OURS = '<meta name="generator" content="cotrain report">'
WORDS = {
    "helped": "The unlabelled images helped",
    "no clear difference": "No clear difference",
    "hurt": "The unlabelled images hurt",
}


@dataclass(frozen=True)
class Subject:
    """A run to show, with its data or the reason why they are not at hand."""

    run: Run
    dataset: Dataset | None
    without: str = ""


@dataclass(frozen=True)
class Images:
    mistakes: list[Picture]
    doubts: list[Doubt]
    label_next: list[Picture]
    views: list[ViewsOfImage]


@dataclass(frozen=True)
class Shown:
    """What the page says of one run."""

    name: str
    classes: tuple[str, ...]
    split: str  # its hash
    heads: int
    result: dict[str, Any]
    learning: list[Figure]
    tested: Tested | None
    verdict: Verdict | None
    images: Images | None
    without: str  # why there are no images
    strong_missing: bool  # CTAugment's views depend on what it learned, and are not drawn
    facts: dict[str, str]
    versions: dict[str, str]
    settings: list[tuple[str, str, str]]


def write_report(run: Run, dataset: Dataset | None, *, without: str = "", out: Path | None = None) -> Path:
    """report.html in the run's folder, or elsewhere; and label_next.csv, where the data are at hand."""
    shown = show(Subject(run, dataset, without))
    path = out or run.folder / PAGE
    write_page(path, [shown])
    if shown.images is not None and dataset is not None:
        pictures.write_doubts(run.folder / LABEL_NEXT, shown.images.doubts, dataset)
    return path


def write_page(path: Path, shown: Sequence[Shown]) -> None:
    write_whole(path, page(shown).encode(errors="backslashreplace"))


def check_free(path: Path, runs: Sequence[Run]) -> None:
    """Refuse to overwrite what is not a page of ours; in a run's folder report.html is."""
    if not path.exists() or any(path.resolve() == (run.folder / PAGE).resolve() for run in runs):
        return
    if path.is_dir() or OURS.encode() not in path.read_bytes()[:4096]:
        raise UserError(f"{path} exists already and is no page of cotrain's; choose another --out")


def show(subject: Subject) -> Shown:
    run, dataset = subject.run, subject.dataset
    result = run.result
    if result is None:
        raise UserError(f"{run.folder} is not finished: there is no result.json in it; go on with cotrain fit --resume")
    classes = tuple(read_tensors(run.model_path)[1]["classes"])
    parts = checked_outputs(run.scores_path, classes)
    alone = _labelled_only(run, classes)
    found = tested(parts, alone, run.config.run.ensemble) if "test" in parts else None
    without, images = subject.without, None
    if dataset is not None and not pictures.can_be_drawn(dataset):
        without = f"Images of {dataset.shape[-1]} channels cannot be drawn, only those of 1 or 3."
    elif dataset is not None:
        images = _images(run, dataset, parts.get("test"))
    return Shown(
        name=str(run.folder),
        classes=classes,
        split=run.split.hash,
        heads=run.config.method.heads,
        result=result,
        learning=learning_curves(run),
        tested=found,
        verdict=_verdict(run, result, parts.get("test"), alone),
        images=images,
        without=without,
        strong_missing=run.config.method.views.ctaugment != "none",
        facts=_facts(run, result, classes),
        versions={name: str(number) for name, number in result.get("versions", {}).items()},
        settings=[(key, _plain(value), meaning) for key, value, _, meaning in settings_of(run.config)],
    )


def _labelled_only(run: Run, classes: Sequence[str]) -> Outputs | None:
    path = run.baseline_folder / run.scores_path.name
    return checked_outputs(path, classes).get("test") if path.exists() else None


def _verdict(run: Run, result: dict[str, Any], ours: Outputs | None, alone: Outputs | None) -> Verdict | None:
    if result.get("verdict") is not None:
        try:
            return Verdict(**result["verdict"])
        except TypeError as error:
            raise UserError(f"{run.folder / 'result.json'} is damaged: its verdict is none ({error})") from error
    return verdict(ours, alone, run.config.run.ensemble) if ours is not None and alone is not None else None


def _images(run: Run, dataset: Dataset, test: Outputs | None) -> Images:
    run.check_data(dataset)
    doubts = pictures.doubts(load(run.folder, device="auto"), dataset, run.split)
    return Images(
        mistakes=pictures.sure_mistakes(test, run.config.run.ensemble, dataset) if test is not None else [],
        doubts=doubts,
        label_next=pictures.pictures_of(doubts, dataset),
        views=pictures.some_views(dataset, run.split, run.config),
    )


def learning_curves(run: Run) -> list[Figure]:
    """Of what log.jsonl has: losses, errors, shares, the learning rate, and whatever else a method watches."""
    logged = _series(run.log_path)
    errors = {name.removesuffix("_error"): logged[name] for name in logged if name.endswith("_error")}
    alone = _series(run.baseline_folder / run.log_path.name)
    for part in [part for part in errors if f"{part}_error" in alone][:1]:
        errors[f"{part}, labelled only"] = alone[f"{part}_error"]
    votes = {name.replace("_", " "): logged[name] for name in VOTES if name in logged}
    shown = {*LOSSES, "lr", *VOTES, *(name for name in logged if name.endswith("_error"))}
    rest = {name: one for name, one in logged.items() if name not in shown}
    shares = {name: one for name, one in rest.items() if all(0 <= value <= 1 for value in one[1])}
    others = {name: one for name, one in rest.items() if name not in shares}
    groups: list[tuple[Series, str, str, bool]] = [
        (
            errors,
            "error (%)",
            "Errors of the averaged network when they were looked at during training; lower is better.",
            False,
        ),
        (
            {name: logged[name] for name in LOSSES if name in logged},
            "loss",
            "Losses on labelled (supervised) and unlabelled images, before weighting, means since the last line of the "
            "log. Both should fall or stay level; jumps mean too high a learning rate.",
            False,
        ),
        (
            shares,
            "share",
            "Shares that the method watches. agreement or selected: how many pseudo-labels were used. Near 0 for long, "
            "nothing is learned from the unlabelled images; at 1 from the start, every guess is believed.",
            True,
        ),
        (
            votes,
            "percent",
            "On unlabelled images whose labels only the evaluation knows: how often two heads disagree, how many "
            "pseudo-labels their votes give, and how many of those are right. Wrong votes teach wrong things.",
            False,
        ),
        (others, "value", "What else the method watches, as its file says.", False),
        (
            {"learning rate": logged["lr"]} if "lr" in logged else {},
            "learning rate",
            "The learning rate of each step: how far one step may change the network.",
            False,
        ),
    ]
    return [figures.curves(ON_PAGE, some, unit, caption, share=share) for some, unit, caption, share in groups if some]


def _series(path: Path) -> dict[str, tuple[list[float], list[float]]]:
    series: dict[str, tuple[list[float], list[float]]] = {}
    for row in read_log(path):
        for name, value in row.items():
            if name not in ("step", "seconds") and isinstance(value, int | float) and math.isfinite(value):
                steps, values = series.setdefault(name, ([], []))
                steps.append(row["step"])
                values.append(value)
    return series


def _facts(run: Run, result: dict[str, Any], classes: Sequence[str]) -> dict[str, str]:
    split, config = run.split, run.config
    parts = {name: len(getattr(split, name)) for name in ("labelled", "unlabelled", "valid", "test")}
    facts = {
        "command": run.command,
        "data": split.source or "arrays",
        "images": ", ".join(f"{number:,} {name}" for name, number in parts.items()),
        "classes": f"{len(classes):,}",
        "split": f"{split.name}, hash {split.hash}",
        "method": f"{config.method.name}, {config.method.heads} {'head' if config.method.heads == 1 else 'heads'}",
        "network": config.model.backbone,
        "seed": str(config.run.seed),
        "steps": f"{config.optim.steps:,}",
    }
    if "parameters" in result:
        facts["parameters"] = f"{result['parameters']:,}"
    if "seconds" in result:
        facts["time"] = f"{clock(result['seconds'])} for {result.get('steps', config.optim.steps):,} steps"
    if "device" in result:
        processes = f", {result['ranks']} processes" if result.get("ranks", 1) > 1 else ""
        facts["computed"] = f"on {result['device']} in {result.get('precision', 'float32')}{processes}"
    return facts


def notes_on(shown: Sequence[Shown]) -> list[str]:
    """What a reader of several runs side by side must know."""
    notes = []
    if len({one.classes for one in shown}) > 1:
        notes.append("These runs do not have the same classes: their errors are of different tasks.")
    if len({one.split for one in shown}) > 1:
        notes.append("These runs do not have the same split of the same data: part of a difference may be due to that.")
    return notes


def page(shown: Sequence[Shown]) -> str:
    parts = files("cotrain") / "page"
    script = (parts / "sort.js").read_text()
    return _template().render(
        runs=shown,
        notes=notes_on(shown),
        ours=OURS,
        style=(parts / "report.css").read_text(),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        words=WORDS,
        how_to_read_reliability=RELIABILITY,
        clock=clock,
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("cotrain", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": _percent, "points": _points, "decimal": _decimal}
    return environment.get_template("report.html.jinja")


def _percent(value: float | None, digits: int = 2) -> str:
    return "\N{EN DASH}" if value is None or math.isnan(value) else f"{value:.{digits}f}\N{NO-BREAK SPACE}%"


def _points(value: float, digits: int = 2) -> str:
    """A difference, with its sign."""
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _decimal(value: float, digits: int = 2) -> str:
    return "\N{EN DASH}" if math.isnan(value) else f"{value:.{digits}f}"


def _plain(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
