"""How well calibrated FixMatch and Multi-Head Co-Training are, before and after temperature scaling."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from cotrain.comparison.case import Case, CaseResult
from cotrain.comparison.claims import Claim
from cotrain.comparison.results_table import Table
from cotrain.comparison.statistics import spread
from cotrain.comparison.study_figures import reliability_diagrams
from cotrain.comparison.training_study import TrainingStudy
from cotrain.config import Config
from cotrain.evaluation.calibration import (
    FITTED,
    PAPER,
    UNCALIBRATED,
    Calibrated,
    Calibration,
    calibrated,
    fitted_on,
    temperatures,
)
from cotrain.report.figures import PRINTED, Figure
from cotrain.runs.scores import Outputs

TITLES = {UNCALIBRATED: "", PAPER: ", T = 2", FITTED: ", T fitted"}
KINDS = {UNCALIBRATED: "C", PAPER: "With T = 2, c", FITTED: "With T fitted, c"}  # beginnings of sentences
PAPER_NUMBERS = {
    ("fixmatch", UNCALIBRATED): {"ECE": "15.61", "accuracy": "74.93", "confidence": "78.75"},
    ("fixmatch", PAPER): {"ECE": "5.27"},
    ("mhct", UNCALIBRATED): {"ECE": "below 15.61"},
    ("mhct", PAPER): {"ECE": "2.82"},
}
SHARED = ("unsupervised_ramp", "weak_pass")  # settings that co-training and FixMatch have in common


@dataclass(frozen=True)
class Row:
    """One method at one temperature."""

    title: str
    paper: Mapping[str, str]  # the numbers that it reports
    by_seed: list[Calibrated]


class CalibrationStudy(TrainingStudy):
    about = "calibration of FixMatch and co-training, before and after temperature scaling"
    data = "cifar100"
    recipe = "cifar100"
    settings: ClassVar[Mapping[str, Any]] = {"data.valid_share": 0.1}

    def cases(self, config: Config) -> list[Case]:
        base = dict(config.changed({"method": "mhct"}).method)
        same = {f"method.{name}": base[name] for name in SHARED}
        return [Case("fixmatch", "FixMatch", method="fixmatch", settings=same), Case("mhct", "co-training")]

    def table(self, results: Sequence[CaseResult]) -> Table:
        rows = [row for each in results for row in rows_of(each, [parts for _, parts in each.by_seed])]

        def over_seeds(number: Callable[[Calibration], float]) -> list[str]:
            return [spread([number(one.numbers) for one in row.by_seed]) for row in rows]

        def in_paper(what: str) -> list[str]:
            return [row.paper.get(what, "") for row in rows]

        return Table(
            {
                "method": [row.title for row in rows],
                "ECE %": over_seeds(lambda one: one.ece),
                "paper ECE": in_paper("ECE"),
                "temperature": [spread([one.temperature for one in row.by_seed]) for row in rows],
                "accuracy %": over_seeds(lambda one: one.accuracy),
                "paper acc.": in_paper("accuracy"),
                "confidence %": over_seeds(lambda one: one.confidence),
                "paper conf.": in_paper("confidence"),
                "adaptive ECE %": over_seeds(lambda one: one.adaptive_ece),
                "NLL": over_seeds(lambda one: one.nll),
                "Brier": over_seeds(lambda one: one.brier),
                "n": [str(len(row.by_seed)) for row in rows],
            }
        )

    def claims(self, results: Sequence[CaseResult]) -> list[Claim]:
        theirs, ours = (by_kind(each) for each in results)
        kinds = {kind: title for kind, title in KINDS.items() if kind in theirs and kind in ours}
        found = [
            Claim(f"{title}o-training is better calibrated than FixMatch", ece(ours[kind]), ece(theirs[kind]))
            for kind, title in kinds.items()
        ]
        for title, method in {"FixMatch": theirs, "co-training": ours}.items():
            if UNCALIBRATED in method:
                numbers = method[UNCALIBRATED]
                accuracy = {seed: one.accuracy for seed, one in numbers.items()}
                confidence = {seed: one.confidence for seed, one in numbers.items()}
                found.append(Claim(f"{title[0].upper()}{title[1:]} is overconfident", accuracy, confidence))
                found.append(Claim(f"T = 2 improves the calibration of {title}", ece(method[PAPER]), ece(numbers)))
        return found

    def rows(self, results: Sequence[CaseResult]) -> list[dict[str, Any]]:
        return [
            {"case": each.case.name, "T": kind, "seed": seed, **rounded(numbers)}
            for each in results
            for kind, by_seed in by_kind(each).items()
            for seed, numbers in by_seed.items()
        ]

    def figure(self, results: Sequence[CaseResult]) -> Figure:
        """The first seed of each method; methods at the same kind of temperature are side by side."""
        rows = [row for each in results for row in rows_of(each, [parts for _, parts in each.by_seed[:1]])]
        rows.sort(key=lambda row: [*TITLES].index(row.by_seed[0].kind))
        diagrams = {row.title: row.by_seed[0].reliability for row in rows}
        return reliability_diagrams(PRINTED, diagrams, results[0].unit)


def by_kind(result: CaseResult) -> dict[str, dict[int, Calibration]]:
    """The numbers at each kind of temperature, by seed."""
    seeds = [seed for seed, _ in result.by_seed]
    rows = rows_of(result, [parts for _, parts in result.by_seed])
    return {
        row.by_seed[0].kind: {seed: one.numbers for seed, one in zip(seeds, row.by_seed, strict=True)} for row in rows
    }


def rounded(numbers: Calibration) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(numbers).items()}


def ece(numbers: Mapping[int, Calibration]) -> dict[int, float]:
    return {seed: one.ece for seed, one in numbers.items()}


def rows_of(result: CaseResult, by_seed: Sequence[Mapping[str, Outputs]]) -> list[Row]:
    """Uncalibrated, at the paper's temperature, and at one fitted on validation images."""
    with_each = [
        calibrated(parts["test"], result.rule, temperatures(fitted_on(parts.get("valid"), result.rule)))
        for parts in by_seed
    ]
    return [
        Row(
            title=f"{result.case.title}{TITLES[same[0].kind]}",
            paper=PAPER_NUMBERS.get((result.case.name, same[0].kind), {}),
            by_seed=[*same],
        )
        for same in zip(*with_each, strict=True)
    ]
