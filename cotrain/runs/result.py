"""result.json: everything that is known about a finished run, as one object.

The file is flat: a script finds the test error with `json.load(file)["test_error"]`, and runs of all versions have one
layout. `Result` nests the same numbers by topic. It is also a mapping, whose keys are those of the file.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from cotrain.runs.schema import Count, Divisor, File, Number, Percent
from cotrain.storage.reading import checked, read_json
from cotrain.types import UserError

BaselineName = Literal["labelled_only", "logistic_regression"]
Alternative = Literal[BaselineName, "random_forest", "label_spreading"]
Compared = Literal["method", Alternative]
Used = Literal["method", BaselineName]
Word = Literal["helped", "no clear difference", "hurt"]
Interval = Annotated[tuple[Percent, Percent], Field(strict=False)]  # JSON has lists, and only text for keys
Agreeing = Annotated[int, Field(strict=False, ge=0, lt=2**63)]
ImagesAndError = Annotated[tuple[Count, Percent], Field(strict=False)]


def called(key: str, default: Any = ...) -> Any:
    """A field that has another name in the file."""
    return Field(default, validation_alias=key, serialization_alias=key)


class Part(File):
    """Types are not converted. Keys of other versions are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", validate_by_name=True, validate_by_alias=True)


class Topic(Part):
    """Fields that the file keeps beside those of other topics. Older versions did not write everything."""

    @classmethod
    def keys_in_file(cls) -> list[str]:
        return [str(field.validation_alias or name) for name, field in cls.model_fields.items()]


class CalibrationAt(Part):
    """Calibration at one temperature, in percent except for `nll` and `brier`."""

    temperature: Divisor
    accuracy: Number | None = None
    confidence: Number | None = None
    ece: Number | None = None
    adaptive_ece: Number | None = None
    nll: Number | None = None
    brier: Number | None = None


class CalibrationByKind(Part):
    """By kind of temperature."""

    uncalibrated: CalibrationAt | None = called("as it is", None)
    paper: CalibrationAt | None = None
    fitted: CalibrationAt | None = None


class Calibrations(Part):
    ensemble: CalibrationByKind = CalibrationByKind()
    heads: list[CalibrationByKind] = Field(default_factory=list)


class HeadDifferences(Part):
    """`evaluation.head_stats.Heads` as it is stored."""

    errors: list[Percent]
    disagreement: list[list[Number]]
    mean_disagreement: Number
    by_agreement: dict[Agreeing, ImagesAndError]
    vote_selected: Number | None = None
    vote_right: Number | None = None


class OnTest(Topic):
    """On the test images, in percent. Without test images, the error is None."""

    error: Percent | None = called("test_error")
    interval: Interval | None = called("test_interval", None)  # 95 % confidence
    median_error: Percent | None = called("median_test_error", None)  # of the last evaluations during training
    images: Count | None = called("test_images", None)
    ece: Number | None = None
    aurc: Number | None = None
    head_errors: list[Percent] | None = None
    calibration: Calibrations | None = None
    heads: HeadDifferences | None = None


class Recall(Part):
    name: str = called("class")
    images: Count
    recall: Percent
    low: Number
    high: Number


class Recalls(Topic):
    """On test images, or else on the held-out labelled images of cross-validation, in percent."""

    balanced_error: Percent | None = None
    by_class: list[Recall] | None = called("recalls", None)  # the classes that have images

    @model_validator(mode="after")
    def _balanced(self) -> "Recalls":
        if self.by_class and self.balanced_error is None:
            raise ValueError("there are recalls, but no balanced_error")
        return self


class FittedOn(Part):
    """The images that the temperature was fitted on: validation images, or those held out in cross-validation."""

    valid_images: Count | None = None
    held_out_images: Count | None = None
    wrong: Count | None = None


class Temperature(Topic):
    """The logits are divided by it. None: not fitted."""

    value: Divisor | None = called("temperature", None)
    fitted_on: FittedOn | None = called("temperature_fitted_on", None)

    @property
    def held_out_images(self) -> int | None:
        """The number of labelled images of cross-validation, if they took the place of validation images."""
        return self.fitted_on.held_out_images if self.fitted_on else None


class Verdict(Part):
    """The errors of the baseline and of the run in percent, and their difference with its 95 % confidence interval."""

    labelled_only: Percent
    error: Percent
    difference: Number
    low: Number
    high: Number
    word: Word
    against: BaselineName = "labelled_only"

    @property
    def few(self) -> bool:
        """Whether the interval excludes zero but too few images differ for the sign test to agree."""
        return self.word == "no clear difference" and self.low * self.high > 0


class EstimatedError(Part):
    """An error in percent over the held-out labels, with its 95 % confidence interval."""

    error: Percent
    low: Number
    high: Number


class Against(Part):
    """The difference to the best of the other models, in percentage points."""

    baseline: Alternative
    difference: Number
    low: Number
    high: Number
    word: Word


class CrossValidation(Part):
    images: Count
    folds: Count
    repeats: Count
    errors: dict[Compared, EstimatedError]
    against: Against | None

    @model_validator(mode="after")
    def _of_the_method(self) -> "CrossValidation":
        if "method" not in self.errors:
            raise ValueError("errors has no method")
        return self


class ClassShare(Part):
    """The estimated share of the unlabelled images that belong to a class, from 0 to 1."""

    name: str = called("class")
    share: Number
    low: Number
    high: Number
    pseudo_labels: Count


class StrangerSummary(Part):
    """Unlabelled images that seem to belong to no class."""

    estimated_share: Number
    clear: bool = True  # older versions did not ask
    left_out: Count
    smallest_rate: Number
    held_out: bool


class SuspectSummary(Part):
    """Labels that the heads dispute."""

    listed: Count
    disputed: Count
    distrusted: Count  # labels that count less than half; older versions left them out
    held_out: bool


class BaselineScores(Topic):
    """Test errors in percent, and seconds of training."""

    labelled_only_error: Percent | None = None
    labelled_only_seconds: Number | None = None
    logistic_regression_error: Percent | None = None
    logistic_regression_seconds: Number | None = None


class Training(Topic):
    steps: Count | None = None
    seconds: Annotated[Number, Field(ge=0, lt=1e12)] | None = None
    seed: Count | None = None
    method: str | None = None
    parameters: Count | None = None
    device: str | None = None
    precision: str | None = None
    ranks: Count | None = None


class TrainedOn(Topic):
    source: str | None = called("data", None)
    split: str | None = None  # its hash
    split_name: str | None = None
    classes: Count | None = None
    labels: Count | None = None
    labels_by_class: list[Count] | None = None
    unlabelled: Count | None = None
    leaks: Count | None = None  # test images that are also training images


class Result(Part, Mapping[str, Any]):
    """Everything that is known about a finished run. Its keys as a mapping are those of result.json."""

    test: OnTest
    recalls: Recalls = Recalls()
    temperature: Temperature = Temperature()
    agreement: Number | None = None  # share of unlabelled images on which all heads agree
    baselines: BaselineScores = BaselineScores()
    verdict: Verdict | None = None
    validation: Verdict | None = None  # the same comparison on validation images
    cross_validation: CrossValidation | None = None
    used: Used = "method"  # the model that `predict` uses
    class_shares: list[ClassShare] | None = None
    strangers: StrangerSummary | None = None
    suspect_labels: SuspectSummary | None = None
    training: Training = Training()
    data: TrainedOn = TrainedOn()
    warnings: list[str] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    command: str | None = None

    @classmethod
    def parse(cls, values: Any, where: object) -> "Result":
        """The result that a file holds; an earlier version may have written it."""
        if not isinstance(values, dict):
            return checked(cls, values, where)
        topics = {
            name: checked(topic, {key: values[key] for key in topic.keys_in_file() if key in values}, where)
            for name, topic in TOPICS.items()
        }
        of_topics = {key for topic in TOPICS.values() for key in topic.keys_in_file()}
        others = {key: value for key, value in values.items() if key not in of_topics}
        return checked(cls, {**others, **topics}, where)._upgraded()

    @classmethod
    def read(cls, path: Path) -> "Result":
        values = read_json(path)
        try:
            return cls.parse(values, path)
        except UserError as error:
            raise UserError(f"{error}; delete it and add --resume") from error

    def _upgraded(self) -> "Result":
        """Early versions stored the fitted temperature only among the calibrations of the test images."""
        known, calibration = self.temperature, self.test.calibration
        if "value" in known.model_fields_set or calibration is None or calibration.ensemble.fitted is None:
            return self
        temperature = known.model_copy(update={"value": calibration.ensemble.fitted.temperature})
        return self.model_copy(update={"temperature": temperature})

    @cached_property
    def flat(self) -> dict[str, Any]:
        """The content of result.json. What was never set is left out."""
        values = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        topics = [values.pop(name, {}) for name in TOPICS]
        return {key: value for part in (*topics, values) for key, value in part.items()}

    def __getitem__(self, key: str) -> Any:
        return self.flat[key]

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return iter(self.flat)

    def __len__(self) -> int:
        return len(self.flat)


TOPICS: dict[str, type[Topic]] = {
    name: field.annotation
    for name, field in Result.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Topic)
}
UNKNOWN = Result(test=OnTest(error=None))  # of a run that is not finished
