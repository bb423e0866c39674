"""FixMatch and Multi-Head Co-Training: how far their probabilities can be believed, before and after calibration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cotrain.calibrate import (
    Calibration,
    Reliability,
    calibration,
    confidence_and_right,
    reliability,
    with_temperature,
)
from cotrain.config import Config
from cotrain.evaluate import temperatures
from cotrain.figures import PRINTED, Figure
from cotrain.seeds import spread
from cotrain.studies.case import Case, Found, Study
from cotrain.studies.figures import reliability_diagrams
from cotrain.table import Table

KINDS = {"as it is": "", "paper": ", T = 2", "fitted": ", T fitted"}
PAPERS_ECE = {("fixmatch", "as it is"): "15.61", ("mhct", "as it is"): "below 15.61"} | {
    ("fixmatch", "paper"): "5.27",
    ("mhct", "paper"): "2.82",
}


@dataclass(frozen=True)
class Calibrated:
    """A method with one kind of temperature, by seed."""

    title: str
    kind: str  # one of KINDS
    papers_ece: str
    temperature: list[float]
    numbers: list[Calibration]
    diagram: tuple[Reliability, float, float]  # of the first seed, with accuracy and mean confidence in percent


class CalibrationStudy(Study):
    name = "calibration"
    about = "FixMatch and co-training, before and after calibration"
    data = "cifar100"
    recipe = "cifar100"
    settings: ClassVar[Mapping[str, Any]] = {"data.valid_share": 0.1}

    def cases(self, config: Config) -> list[Case]:
        same = {"method.unsupervised_ramp": config.method.unsupervised_ramp}
        return [Case("fixmatch", "FixMatch", method="fixmatch", settings=same), Case("mhct", "co-training")]

    def table(self, found: Sequence[Found]) -> Table:
        rows = [row for each in found for row in calibrated(each)]

        def over_seeds(number: Callable[[Calibration], float]) -> list[str]:
            return [spread([number(one) for one in row.numbers]) for row in rows]

        return Table(
            {
                "method": [row.title for row in rows],
                "ECE %": over_seeds(lambda one: one.ece),
                "paper": [row.papers_ece for row in rows],
                "temperature": [spread(row.temperature) for row in rows],
                "accuracy %": over_seeds(lambda one: one.accuracy),
                "confidence %": over_seeds(lambda one: one.confidence),
                "adaptive ECE %": over_seeds(lambda one: one.adaptive_ece),
                "NLL": over_seeds(lambda one: one.nll),
                "Brier": over_seeds(lambda one: one.brier),
                "n": [str(len(row.numbers)) for row in rows],
            }
        )

    def figure(self, found: Sequence[Found]) -> Figure:
        rows = sorted((row for each in found for row in calibrated(each)), key=lambda row: [*KINDS].index(row.kind))
        return reliability_diagrams(PRINTED, {row.title: row.diagram for row in rows})


def calibrated(found: Found) -> list[Calibrated]:
    """As it is, with the paper's temperature, and with one fitted on valid images."""
    by_seed = [(parts["test"], temperatures(parts.get("valid"), found.rule)) for _, parts in found.by_seed]
    rows = []
    for kind in by_seed[0][1] if by_seed else ():
        probabilities = [with_temperature(test.logits, used[kind], found.rule) for test, used in by_seed]
        numbers = [calibration(some, test.labels) for some, (test, _) in zip(probabilities, by_seed, strict=True)]
        first = reliability(*confidence_and_right(probabilities[0], by_seed[0][0].labels))
        rows.append(
            Calibrated(
                title=f"{found.case.title}{KINDS[kind]}",
                kind=kind,
                papers_ece=PAPERS_ECE.get((found.case.name, kind), ""),
                temperature=[used[kind] for _, used in by_seed],
                numbers=numbers,
                diagram=(first, numbers[0].accuracy, numbers[0].confidence),
            )
        )
    return rows
