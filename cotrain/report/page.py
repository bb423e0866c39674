"""The report of one finished run, or of several side by side: one self-contained HTML file.

Everything is read from the run folders; only the images also need the data.
"""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from cotrain.config import plain, settings_of
from cotrain.data import Dataset
from cotrain.evaluation.calibration import BINS, FITTED
from cotrain.evaluation.results import Results
from cotrain.evaluation.verdict import how_better, verdict
from cotrain.inference.model import Model, calibrated_on, model_of
from cotrain.progress import clock, times
from cotrain.report import pictures
from cotrain.report.curves import has_errors, last_seconds, last_votes, learning_curves
from cotrain.report.doubtful import Doubtful, doubtful_of
from cotrain.report.figures import ON_PAGE, Figure
from cotrain.report.pictures import Picture, Search, ViewsOfImage
from cotrain.report.rows import ShownRows, shown_rows
from cotrain.report.test_results import WORDS as TEMPERATURES
from cotrain.report.test_results import Drawn, baseline_outputs, drawn, how_to_read_reliability
from cotrain.runs.result import Result, Verdict
from cotrain.runs.run import LABELLED_ONLY, LOGISTIC, Run, as_typed
from cotrain.runs.scores import HELD_OUT, Outputs
from cotrain.storage.reading import read_bytes
from cotrain.storage.writing import write_whole
from cotrain.types import Unit, UserError

PAGE = "report.html"
LABEL_NEXT = "label_next.csv"
MOST_BINS = 100
OURS = '<meta name="generator" content="cotrain report">'


@dataclass(frozen=True)
class Subject:
    """A run to report on, with its data or the reason why the data is not available."""

    run: Run
    dataset: Dataset | None
    without: str = ""
    model: Model | None = None  # if it is known already


@dataclass(frozen=True)
class Images:
    mistakes: list[Picture]
    label_next: list[Picture]
    views: list[ViewsOfImage]


@dataclass(frozen=True)
class Shown:
    """What the report shows about one run."""

    folder: Path
    classes: tuple[str, ...]
    split: str  # its hash
    heads: int
    unit: Unit
    result: Result
    learning: list[Figure]
    errors_logged: bool
    results: Results | None  # on the test images
    fitted_on: str  # how many held-out images the temperature was fitted on
    fitted_here: bool  # the results are those of the same images
    drawn: Drawn | None  # figures of these results
    verdict: Verdict | None
    budget: str  # how long the run and its labelled-only baseline were trained
    warm_start: bool  # from the baseline's weights
    votes: Mapping[str, float] | None  # the heads' votes on unlabelled images, in percent
    search: Search | None  # images to label next; needs the data
    images: Images | None
    rows: ShownRows | None  # of a table
    doubtful: Doubtful | None  # images and labels to check; needs the data
    without: str  # why there are no images
    strong_missing: bool  # strong views are not drawn, because CTAugment's depend on its learned state
    facts: dict[str, str]
    versions: dict[str, str]
    settings: list[tuple[str, str, str]]

    @property
    def name(self) -> str:
        return str(self.folder)


def write_report(run: Run, dataset: Dataset | None, *, without: str = "", model: Model | None = None) -> Path:
    """Write report.html to the run's folder, and label_next.csv if the data is available."""
    path = run.folder / PAGE
    write_page(path, [show(Subject(run, dataset, without, model))])
    return path


def write_page(path: Path, shown: Sequence[Shown]) -> None:
    """Write the report, and label_next.csv to the folder of every run whose data is available."""
    write_whole(path, page(shown).encode(errors="backslashreplace"))
    for one in shown:
        if one.search is not None:
            pictures.write_doubts(one.folder / LABEL_NEXT, one.search.doubts)


def check_free(path: Path, runs: Sequence[Run]) -> None:
    """Refuse to overwrite a file that cotrain did not write. A report.html in a run's folder counts as ours."""
    if not path.exists() or any(path.resolve() == (run.folder / PAGE).resolve() for run in runs):
        return
    if not path.is_file() or OURS.encode() not in read_bytes(path)[:4096]:
        raise UserError(f"{path} exists already and was not written by cotrain; choose another --out")


def check_bins(bins: int) -> None:
    if not 1 <= bins <= MOST_BINS:
        raise UserError(f"--bins {bins}: the number of confidence bins must be between 1 and {MOST_BINS}")


def show(subject: Subject, bins: int = BINS) -> Shown:
    """`bins` is the number of confidence bins of every ECE and reliability diagram."""
    run, dataset = subject.run, subject.dataset
    result = run.result
    if result is None:
        raise UserError(f"{run.folder} is not finished: it has no result.json; resume with: {run.resume_command}")
    classes = tuple(run.model_facts.classes)
    parts = run.outputs(len(classes))
    baseline = baseline_outputs(run, classes)
    rule, temperature = run.config.run.ensemble, result.temperature.value
    tested = parts.get("test", parts.get(HELD_OUT))
    results = Results(tested, rule, temperature, bins) if tested is not None else None
    unit, without, search, images, rows = run.config.unit, subject.without, None, None, None
    if dataset is not None:
        run.check_data(dataset)
        search = pictures.search(subject.model or model_of(run, "auto"), dataset, run.split)
        if pictures.can_be_drawn(dataset):
            images = _images(run, dataset, tested, temperature, search)
        elif dataset.kind.table is not None:
            mistakes = pictures.most_confident(tested, rule, temperature, classes) if tested is not None else []
            rows = shown_rows(dataset.kind.table, mistakes, search.doubts)
        else:
            without = f"Images with {dataset.shape[-1]} channels cannot be drawn; only 1 or 3 channels can."
    if (shares := result.class_shares) and len(shares) != len(classes):
        raise UserError(
            f"{run.folder / 'result.json'} is damaged: class_shares has {len(shares)} of {len(classes)} classes"
        )
    return Shown(
        folder=run.folder,
        classes=classes,
        split=run.split.hash,
        heads=run.config.method.heads,
        unit=unit,
        result=result,
        learning=learning_curves(run, ON_PAGE),
        errors_logged=has_errors(run),
        results=results,
        fitted_on=calibrated_on(run, result.temperature),
        fitted_here="test" not in parts and result.temperature.held_out_images is not None,
        drawn=drawn(results, baseline, unit) if results is not None else None,
        verdict=result.verdict or _verdict(run, parts.get("test"), baseline),
        budget=_budget(run, result),
        warm_start=run.config.run.warm_start,
        votes=last_votes(run),
        search=search,
        images=images,
        rows=rows,
        doubtful=doubtful_of(run, dataset),
        without=without,
        strong_missing=run.config.method.views.ctaugment != "none",
        facts=_facts(run, result, classes),
        versions=result.versions,
        settings=[(each.key, plain(each.value), each.meaning) for each in settings_of(run.config)],
    )


def _verdict(run: Run, ours: Outputs | None, baseline: Outputs | None) -> Verdict | None:
    """Older versions did not store it."""
    return verdict(ours, baseline, run.config.run.ensemble) if ours is not None and baseline is not None else None


def _budget(run: Run, result: Result) -> str:
    ours, theirs = run.config.optim.steps, run.config.baseline_steps
    seconds = result.baselines.labelled_only_seconds or last_seconds(run.baseline_folder / run.log_path.name)
    times = ""
    if seconds is not None and result.training.seconds is not None:
        times = f" ({clock(seconds)} for the baseline, {clock(result.training.seconds)} for this run)"
    if ours == theirs:
        said = f"Both networks were trained for the same {ours:,} steps{times}, not for the same time."
    else:
        said = f"The baseline was trained for {theirs:,} steps and this run for {ours:,}{times}."
    longer = " This run starts from the baseline's weights, so part of the difference may come from longer training."
    return said + (longer if run.config.run.warm_start else "")


def _images(run: Run, dataset: Dataset, test: Outputs | None, temperature: float | None, search: Search) -> Images:
    rule = run.config.run.ensemble
    return Images(
        mistakes=pictures.confident_mistakes(test, rule, temperature, dataset) if test is not None else [],
        label_next=pictures.pictures_of(search.doubts, dataset),
        views=pictures.some_views(dataset, run.split, run.config),
    )


def _facts(run: Run, result: Result, classes: Sequence[str]) -> dict[str, str]:
    split, config = run.split, run.config
    parts = {
        "labelled": split.labelled,
        "unlabelled": split.unlabelled,
        "validation": split.valid,
        "test": split.test,
    }
    facts = {
        "command": as_typed(run.command),
        "data": split.source or "arrays",
        config.unit.many: ", ".join(f"{len(rows):,} {name}" for name, rows in parts.items()),
        "classes": f"{len(classes):,}",
        "split": f"{split.name}, hash {split.hash}",
        "method": f"{config.method.name}, {config.method.heads} {'head' if config.method.heads == 1 else 'heads'}",
        "network": config.model.backbone,
        "seed": str(config.run.seed),
        "steps": f"{config.optim.steps:,}",
    }
    training = result.training
    steps = config.optim.steps if training.steps is None else training.steps
    if training.parameters is not None:
        facts["parameters"] = f"{training.parameters:,}"
    if training.seconds is not None:
        facts["time"] = f"{clock(training.seconds)} for {steps:,} steps"
    if training.device is not None:
        processes = f", {training.ranks} processes" if training.ranks is not None and training.ranks > 1 else ""
        facts["computed"] = f"on {training.device} in {training.precision or 'float32'}{processes}"
    return facts


def notes_on(shown: Sequence[Shown]) -> list[str]:
    """Warnings for a reader who compares several runs."""
    notes = []
    if len({one.classes for one in shown}) > 1:
        notes.append("These runs do not have the same classes, so their errors are not comparable.")
    if len({one.split for one in shown}) > 1:
        notes.append("These runs do not have the same split of the same data, which may explain part of a difference.")
    return notes


def page(shown: Sequence[Shown]) -> str:
    parts = files("cotrain.report") / "templates"
    script = (parts / "sort.js").read_text(encoding="utf-8")
    return _template().render(
        runs=shown,
        unit=Unit.ROW if all(one.unit is Unit.ROW for one in shown) else Unit.IMAGE,
        notes=notes_on(shown),
        ours=OURS,
        style=(parts / "report.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        answers=answers,
        baselines=baselines,
        how_better=how_better,
        how_to_read_reliability=how_to_read_reliability,
        temperatures=TEMPERATURES,
        fitted=FITTED,
        clock=clock,
    )


def answers(unit: Unit) -> dict[str, str]:
    """Whether the unlabelled images helped, by the word of the verdict."""
    return {
        "helped": f"The unlabelled {unit.many} helped",
        "no clear difference": "No clear difference",
        "hurt": f"The unlabelled {unit.many} hurt",
    }


def baselines(unit: Unit) -> dict[str, str]:
    """What each baseline is."""
    return {
        LABELLED_ONLY: f"the same network on labelled {unit.many} only",
        LOGISTIC: "logistic regression on the same features",
        "random_forest": "random forest on the same features",
        "label_spreading": "label spreading over the same features",
    }


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("cotrain.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": _percent, "points": _points, "decimal": _decimal, "times": times}
    return environment.get_template("report.html.jinja")


def _percent(value: float | None, digits: int = 2) -> str:
    return "\N{EN DASH}" if value is None or math.isnan(value) else f"{value:.{digits}f}\N{NO-BREAK SPACE}%"


def _points(value: float, digits: int = 2) -> str:
    """A difference with its sign."""
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _decimal(value: float, digits: int = 2) -> str:
    return "\N{EN DASH}" if math.isnan(value) else f"{value:.{digits}f}"
