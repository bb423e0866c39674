"""The model card of a finished run: README.md in the format of Hugging Face, read from the run's folder alone."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from cotrain.config import Config, plain, settings_of
from cotrain.evaluation.outputs import error_interval
from cotrain.evaluation.verdict import how_better
from cotrain.inference.model import BETTER, METHOD, used_folder
from cotrain.model.named import is_pretrained
from cotrain.progress import times
from cotrain.report.page import answers, baselines
from cotrain.runs.result import UNKNOWN, Against, CalibrationAt, Result
from cotrain.runs.run import LABELLED_ONLY, LOGISTIC, Run, as_typed
from cotrain.runs.schema import ModelFacts
from cotrain.storage.reading import read_bytes
from cotrain.storage.writing import write_whole
from cotrain.types import Unit, UserError

CARD = "README.md"
OURS = "<!-- written by cotrain; `cotrain report` writes it again. Remove this line to keep your changes. -->"
MANY_CLASSES = 100  # more are counted instead of listed
UNEQUAL = 3.0  # labels of the most frequent class per label of the rarest, from which on the card warns
FEW = 5  # labels of a class
SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#|~&$!])")  # characters that Markdown may interpret


@dataclass(frozen=True)
class Measured:
    """An error in percent, with its 95 % confidence interval and how it was measured."""

    error: float
    low: float
    high: float
    split: str  # test or cross-validation
    images: int


def write_card(run: Run) -> Path | None:
    """Write README.md to the run's folder, unless somebody else wrote the one that is there."""
    path = run.folder / CARD
    if not is_free(path):
        return None
    write_whole(path, card(run).encode())
    return path


def is_free(path: Path) -> bool:
    """Whether the file is missing or was written by cotrain and not claimed since."""
    return not path.exists() or (path.is_file() and OURS.encode() in read_bytes(path))


def card(run: Run) -> str:
    result = run.result
    if result is None:
        raise UserError(f"{run.folder} is not finished: it has no result.json; resume with: {run.resume_command}")
    facts = run.model_facts
    unit = Unit.ROW if facts.columns else Unit.IMAGE
    named = baselines(unit)
    errors, folder = errors_of(run, result), used_folder(run, BETTER)
    of_used = result if folder == run.folder else Run.open(folder).result or UNKNOWN
    return _template().render(
        name=run.folder.resolve().name,
        ours=OURS,
        data=Path(result.data.source or "arrays").name,  # not where it is on this machine
        run=run,
        config=run.config,
        result=result,
        used=result.used,
        baselines=named,
        how_better=how_better(result, unit),
        answers=answers(unit),
        errors=errors,
        measured=errors.get(result.used),
        compared=compared(result),
        classes=[printable(name) for name in facts.classes],
        counts=result.data.labels_by_class,
        many=MANY_CLASSES,
        task="tabular-classification" if facts.columns else "image-classification",
        unit=unit,
        inputs=f"{len(facts.columns):,} columns" if facts.columns else shape_of(facts),
        temperature=of_used.temperature.value,
        calibration=calibration_of(of_used),
        limits=limits(run.config, result, errors.get(result.used), unit),
        command=printable(as_typed(run.command)),
        settings=[(each.key, plain(each.value)) for each in settings_of(run.config)],
        pretrained=is_pretrained(run.config.model.backbone),
    )


def shape_of(facts: ModelFacts) -> str:
    kind = {1: "grey", 3: "colour"}.get(facts.channels, f"{facts.channels} channels")
    return f"{facts.size[0]}x{facts.size[1]}, {kind}"


def errors_of(run: Run, result: Result) -> dict[str, Measured]:
    """The errors of the method and its baselines on test images, or else by cross-validation; none if unknown."""
    if result.test.error is not None:
        images = len(run.split.test) if result.test.images is None else result.test.images
        errors = {
            METHOD: result.test.error,
            LABELLED_ONLY: result.baselines.labelled_only_error,
            LOGISTIC: result.baselines.logistic_regression_error,
        }
        return {
            name: Measured(error, *error_interval(round(error * images / 100), images), "test", images)
            for name, error in errors.items()
            if error is not None
        }
    if (checked := result.cross_validation) is None:
        return {}
    return {
        name: Measured(one.error, one.low, one.high, "cross-validation", checked.images)
        for name, one in checked.errors.items()
    }


def compared(result: Result) -> Against | None:
    """The difference to the better baseline."""
    if (verdict := result.verdict) is not None:
        numbers = verdict.model_dump(include={"difference", "low", "high", "word"})
        return Against(baseline=verdict.against, **numbers)
    tested = result.test.error is not None
    return result.cross_validation.against if result.cross_validation and not tested else None


def calibration_of(result: Result) -> CalibrationAt | None:
    """The metrics of the probabilities that `predict` gives, on the test images."""
    if result.test.calibration is None:
        return None
    kinds = result.test.calibration.ensemble
    found = kinds.uncalibrated if result.temperature.value is None else kinds.fitted
    return None if found is None or None in (found.ece, found.confidence, found.accuracy) else found


def limits(config: Config, result: Result, measured: Measured | None, unit: Unit) -> list[str]:
    """What a user of the model must know, each as one or two sentences."""
    found = [f"{warning[:1].upper()}{warning[1:]}." for warning in result.warnings]
    counts = result.data.labels_by_class
    if measured is None:
        found.append(f"The error is unknown: there were no test {unit.many}, and no cross-validation.")
    elif measured.split == "cross-validation":
        found.append(
            f"The error is estimated on the labelled {unit.many}. If they are easier than the others, it is too low."
        )
    if measured is not None and measured.images < 100:
        found.append(f"The error was measured on only {measured.images} {unit.many}, so its interval is wide.")
    if leaks := result.data.leaks:
        found.append(f"{leaks:,} test {unit.many} also occur in the training set: the error is too optimistic.")
    if counts and min(counts) < FEW:
        found.append(f"Some classes had fewer than {FEW} labels; the rarest had {min(counts)}.")
    if counts and max(counts) >= UNEQUAL * max(min(counts), 1):
        found.append(f"The classes had unequal numbers of labels, from {min(counts)} to {max(counts)}.")
    if is_pretrained(config.model.backbone):
        found.append(f"The backbone, {config.model.backbone}, was pretrained on other data and may share its biases.")
    found.append(f"Every prediction is one of the classes above, also for {unit.many} that belong to none of them.")
    return found


def printable(text: str) -> str:
    """The text on one line, with characters that cannot be shown as escapes."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def as_yaml(text: str) -> str:
    """A quoted scalar; what JSON quotes, YAML reads."""
    return json.dumps(printable(text), ensure_ascii=False)


def as_markdown(text: str) -> str:
    """Text that Markdown shows as it is, in a paragraph or a table."""
    return SPECIAL.sub(r"\\\1", printable(text))


def as_code(text: str) -> str:
    """A code span. Its fence is longer than any backticks in the text."""
    text = printable(text)
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence} {text} {fence}" if text[:1] == "`" or text[-1:] == "`" else f"{fence}{text}{fence}"


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("cotrain.report", "templates"),
        autoescape=False,  # Markdown, not HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"yaml": as_yaml, "md": as_markdown, "code": as_code, "times": times}
    return environment.get_template("card.md.jinja")
