"""What a person should look at: images or rows that seem to belong to no class, and labels that are disputed."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cotrain.data import Dataset, Features
from cotrain.report.pictures import SHOWN, Picture, can_be_drawn, name_of, picture_of_row
from cotrain.report.rows import ShownRow, cells_of
from cotrain.runs.run import DOES_NOT_BELONG, SUSPECT_LABELS, Run
from cotrain.storage.cells import class_of
from cotrain.storage.reading import reason
from cotrain.storage.regular import open_regular
from cotrain.types import UserError

STRANGE = 0.1  # p-value up to which an image is shown


@dataclass(frozen=True)
class Doubtful:
    strangers: list[Picture] | list[ShownRow]
    labels: list[Picture] | list[ShownRow]


def doubtful_of(run: Run, dataset: Dataset | None) -> Doubtful | None:
    """None if the run is older than these lists, or its images cannot be drawn."""
    result = run.result
    if dataset is None or result is None or result.strangers is None or result.suspect_labels is None:
        return None
    strangers, labels = run.folder / DOES_NOT_BELONG, run.folder / SUSPECT_LABELS
    if (table := dataset.kind.table) is not None:
        return Doubtful(_rows(strangers, dataset, table, _stranger), _rows(labels, dataset, table, _label))
    if not can_be_drawn(dataset):
        return None
    return Doubtful(
        _pictures(strangers, dataset, _stranger, "belongs: {}; {}"),
        _pictures(labels, dataset, _label, "label {}; proposed {}"),
    )


def _stranger(line: dict[str, str]) -> list[str] | None:
    p_value = float(line["belongs"])
    return [f"{100 * p_value:.1f} %", class_of(line["class"]) or ""] if p_value <= STRANGE else None


def _label(line: dict[str, str]) -> list[str]:
    return [
        class_of(line["label"]) or "",
        f"{class_of(line['proposed'])}, {100 * float(line['probability_of_proposed']):.0f} %",
    ]


WordsOf = Callable[[dict[str, str]], list[str] | None]


def _rows(path: Path, dataset: Dataset, table: Features, words_of: WordsOf) -> list[ShownRow]:
    return [ShownRow(row, words, cells_of(table, row)) for row, words in _listed(path, dataset, words_of)]


def _pictures(path: Path, dataset: Dataset, words_of: WordsOf, sentence: str) -> list[Picture]:
    return [
        Picture(picture_of_row(dataset, row), name_of(dataset, row), sentence.format(*words))
        for row, words in _listed(path, dataset, words_of)
    ]


def _listed(path: Path, dataset: Dataset, words_of: WordsOf) -> list[tuple[int, list[str]]]:
    """The first images of a list, with a few words about each."""
    found: list[tuple[int, list[str]]] = []
    try:
        with io.TextIOWrapper(open_regular(path), "utf-8", errors="surrogateescape", newline="") as file:
            for line in csv.DictReader(file):
                if None in line.values():
                    raise ValueError("a row is too short")
                words, row = words_of(line), int(line["row"])
                if words is None or len(found) == SHOWN:
                    break
                if not 0 <= row < len(dataset.labels):
                    raise ValueError(f"there is no row {row}")
                found.append((row, words))
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise UserError(f"{path} is damaged ({reason(error)}); delete result.json and add --resume") from error
    return found
