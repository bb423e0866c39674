"""What a person should look at in the folder: images that seem to belong to no class, and labels that are disputed."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cotrain.data import Dataset
from cotrain.report.pictures import SHOWN, Picture, can_be_drawn, name_of, picture_of_row
from cotrain.runs.run import DOES_NOT_BELONG, SUSPECT_LABELS, Run
from cotrain.storage.reading import read_bytes, reason
from cotrain.types import UserError

STRANGE = 0.1  # p-value up to which an image is shown


@dataclass(frozen=True)
class Doubtful:
    strangers: list[Picture]
    labels: list[Picture]


def doubtful_of(run: Run, dataset: Dataset | None) -> Doubtful | None:
    """None if the run is older than these lists, or its images cannot be drawn."""
    result = run.result or {}
    if dataset is None or not can_be_drawn(dataset) or not result.get("strangers") or not result.get("suspect_labels"):
        return None
    return Doubtful(
        _pictures(run.folder / DOES_NOT_BELONG, dataset, _stranger),
        _pictures(run.folder / SUSPECT_LABELS, dataset, _label),
    )


def _stranger(line: dict[str, str]) -> str | None:
    p_value = float(line["belongs"])
    return f"belongs: {100 * p_value:.1f} %; {line['class']}" if p_value <= STRANGE else None


def _label(line: dict[str, str]) -> str:
    return f"label {line['label']}; proposed {line['proposed']}, {100 * float(line['probability_of_proposed']):.0f} %"


def _pictures(path: Path, dataset: Dataset, words_of: Callable[[dict[str, str]], str | None]) -> list[Picture]:
    """The first images of a list, with a few words about each."""
    found: list[Picture] = []
    try:
        for line in csv.DictReader(io.StringIO(read_bytes(path).decode(errors="surrogateescape"), newline="")):
            words, row = words_of(line), int(line["row"])
            if words is None or len(found) == SHOWN:
                break
            found.append(Picture(picture_of_row(dataset, row), name_of(dataset, row), words))
    except (OSError, KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{path} is damaged ({reason(error)}); delete result.json and add --resume") from error
    return found
