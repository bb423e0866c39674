"""A model's results on its test images, computed in one place for result.json, the report and TensorBoard."""

from dataclasses import asdict, dataclass
from functools import cached_property

from torch import Tensor

from cotrain.evaluation import confusion
from cotrain.evaluation.calibration import (
    BINS,
    Calibrated,
    calibrated,
    confidence_and_right,
    predicted_and_confidence,
    temperatures,
)
from cotrain.evaluation.head_stats import Heads, heads_of
from cotrain.evaluation.outputs import error_interval
from cotrain.evaluation.selective import Answered, RiskCoverage, answered_from, risk_coverage
from cotrain.ops import ensemble_probabilities
from cotrain.runs.result import CalibrationAt, CalibrationByKind, Calibrations
from cotrain.runs.scores import Outputs


@dataclass(frozen=True)
class Results:
    """Numbers are computed on first use, and are percentages unless stated otherwise."""

    outputs: Outputs  # for the test images
    rule: str  # of the ensemble
    temperature: float | None = None  # fitted on validation images, if there were any; `predict` uses it too
    bins: int = BINS  # of confidence

    @cached_property
    def _probabilities(self) -> Tensor:
        return ensemble_probabilities(self.outputs.logits, self.rule)

    @property
    def images(self) -> int:
        return len(self.outputs.labels)

    @property
    def wrong(self) -> int:
        """The number of misclassified images."""
        return int((self._probabilities.argmax(dim=-1) != self.outputs.labels).sum())

    @property
    def error(self) -> float:
        return 100 * self.wrong / self.images

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval for the error."""
        return error_interval(self.wrong, self.images)

    @cached_property
    def heads(self) -> Heads:
        return heads_of(self.outputs.logits, self.outputs.labels)

    @cached_property
    def calibrated(self) -> list[Calibrated]:
        """The ensemble at each temperature."""
        return calibrated(self.outputs, self.rule, temperatures(self.temperature), self.bins)

    @cached_property
    def calibrated_heads(self) -> list[list[Calibrated]]:
        """Each head at the same temperatures."""
        used = temperatures(self.temperature)
        return [calibrated(head, self.rule, used, self.bins) for head in self.outputs.of_each_head]

    @property
    def ece(self) -> float:
        """Expected calibration error of the uncalibrated ensemble."""
        return self.calibrated[0].numbers.ece

    @property
    def calibration(self) -> Calibrations:
        """All calibration metrics."""
        heads = [_by_kind(head) for head in self.calibrated_heads]
        return Calibrations(ensemble=_by_kind(self.calibrated), heads=heads)

    @cached_property
    def risk(self) -> RiskCoverage:
        """Of the uncalibrated ensemble, as shares from 0 to 1."""
        return risk_coverage(*confidence_and_right(self._probabilities, self.outputs.labels))

    @property
    def aurc(self) -> float:
        return 100 * self.risk.area

    @cached_property
    def answered(self) -> list[Answered]:
        """What `predict --defer-below` would answer at several thresholds."""
        predicted, confidence = predicted_and_confidence(self.outputs.logits, self.rule, self.temperature or 1.0)
        return answered_from(confidence.double().numpy(), (predicted == self.outputs.labels).numpy())

    @cached_property
    def confused(self) -> confusion.Counts:
        """(C, C) numbers of images by label and predicted class."""
        predicted, classes = self._probabilities.argmax(dim=-1), self.outputs.logits.shape[-1]
        return confusion.confusion(predicted, self.outputs.labels, classes)

    @property
    def worst(self) -> list[confusion.Confusion]:
        return confusion.worst_confusions(self.confused)

    @property
    def by_class(self) -> confusion.ByClass:
        return confusion.by_class(self.confused)


def _by_kind(rows: list[Calibrated]) -> CalibrationByKind:
    found = {one.kind: CalibrationAt(temperature=one.temperature, **asdict(one.numbers)) for one in rows}
    return CalibrationByKind.model_validate(found)
