"""A table has rows: everything that is said about a run on one, and the names in it, which stay as they are."""

import io
import re
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from cotrain import Dataset, UserError
from cotrain.cli.main import main
from cotrain.cli.result_table import result_table
from cotrain.data import draw_split
from cotrain.fitting.findings import without_pseudo_labels
from cotrain.inference.model import how_calibrated
from cotrain.report.card import card
from cotrain.report.page import Shown, Subject, page, show
from cotrain.runs.run import DOES_NOT_BELONG, SUSPECT_LABELS, Run
from tests.made_up import made_up_run, some_data, some_rows

pytestmark = pytest.mark.usefixtures("unrendered")

CLASSES = ("image", "images", "tree")
COLUMNS = ("image", "width")
OF_A_TEST = {"head_errors": [9.0, 9.0, 9.0], "test_interval": [5.0, 15.0], "test_images": 60, "seed": 0, "steps": 100}
HURT = {"labelled_only": 40.0, "error": 60.0, "difference": 20.0, "low": 1.0, "high": 30.0, "word": "hurt"}
UNCLEAR = {**HURT, "word": "no clear difference"}
FOUND = {
    "data": "/data/images.csv",
    "labels_by_class": [4, 4, 4],
    "balanced_error": 9.0,
    "recalls": [{"class": "image", "images": 20, "recall": 50.0, "low": 30.0, "high": 70.0}],
    "strangers": {"estimated_share": 0.3, "clear": True, "left_out": 3, "smallest_rate": 0.05, "held_out": False},
    "suspect_labels": {"listed": 1, "disputed": 1, "distrusted": 1, "held_out": False},
    "class_shares": [{"class": name, "share": 0.3, "low": 0.1, "high": 0.5, "pseudo_labels": 9} for name in CLASSES],
}
FEW = {
    "strangers": {**FOUND["strangers"], "clear": False, "held_out": True},
    "suspect_labels": {"listed": 2, "disputed": 0, "distrusted": 2, "held_out": True},
}
ESTIMATE = {
    "images": 12, "folds": 4, "repeats": 2,
    "errors": {name: {"error": 33.0, "low": 15.0, "high": 60.0} for name in ("method", "labelled_only")},
    "against": {"baseline": "labelled_only", "difference": 20.5, "low": 4.0, "high": 31.0, "word": "helped"},
}  # fmt: skip
UNTESTED = {"test_error": None, "test_interval": None, "test_images": 0, "head_errors": None}
ON_VALIDATION = {"used": "labelled_only", "labelled_only_error": 40.0, "validation": HURT}


@dataclass(frozen=True)
class Kind:
    """A made-up run on a table."""

    result: dict[str, Any]
    changes: dict[str, Any]
    test: int = 60
    alone: float | None = 0.5
    classes: tuple[str, ...] = CLASSES


RUNS = {
    "found": Kind({**FOUND, "verdict": UNCLEAR, "leaks": 1}, {"run.warm_start": True}),
    "few": Kind({**FOUND, **FEW, "verdict": HURT, "leaks": 2}, {}),
    "validated": Kind(ON_VALIDATION, {"data.valid_share": 0.3}),
    "estimated": Kind({**UNTESTED, "used": "method", "cross_validation": ESTIMATE}, {}, test=0),
    "worse": Kind({**UNTESTED, "used": "labelled_only", "cross_validation": ESTIMATE}, {}, test=0),
    "unknown": Kind(UNTESTED, {}, test=0, alone=None),
    "one head": Kind({}, {"method": "fixmatch"}, alone=None),
    "labels only": Kind({}, {"method": "supervised"}, alone=None),
    "many classes": Kind({}, {}, classes=tuple(f"class {number}" for number in range(21)), test=210),
}


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return some_rows(CLASSES, COLUMNS)


@pytest.fixture(scope="module", params=RUNS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Dataset]:
    kind = RUNS[request.param]
    folder = tmp_path_factory.mktemp("nouns") / "runs" / "images"
    dataset = some_rows(kind.classes, COLUMNS, test=kind.test)
    result = {**OF_A_TEST, **kind.result}
    run = made_up_run(folder, dataset, alone=kind.alone, changes=kind.changes, result=result)
    (folder / DOES_NOT_BELONG).write_text("path,row,belongs,class,left_out\n,1,0.05,image,yes\n")
    columns = "path,row,label,proposed,probability_of_label,probability_of_proposed,disputed"
    (folder / SUSPECT_LABELS).write_text(f"{columns}\n,1,images,image,0.1,0.9,yes\n")
    return run, dataset


class Texts(HTMLParser):
    """What a page says, piece by piece; the table of all settings is also that of images, and is left out."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.inside: list[str] = []
        self.feed(re.sub(r"<details>.*?</details>", "", html, flags=re.DOTALL))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.inside.append(tag)
        self.pieces += [value for name, value in attributes if name in ("alt", "aria-label", "title") and value]

    def handle_data(self, data: str) -> None:
        if self.inside[-1:] not in (["style"], ["script"]):
            self.pieces.append(data.strip())


def sentences(pieces: list[str], run: Run) -> str:
    """The pieces that are not the name of a class or column, without the names of folders and files."""
    is_name = re.compile(rf"({'|'.join(CLASSES)})((,| /).*)?", re.DOTALL)
    others = [piece.replace(str(run.folder), "") for piece in pieces if not is_name.fullmatch(piece)]
    return "\n".join(others).replace("images.csv", "")


def captions(shown: Shown) -> list[str]:
    """What the figures say, with the labels of their axes."""
    drawn = shown.drawn
    of_test = [] if drawn is None else [*drawn.diagrams, drawn.risk, *([drawn.heat_map] if drawn.heat_map else [])]
    figures = [*shown.learning, *of_test]
    labels = [
        words for each in figures for axes in each.canvas.axes for words in (axes.get_xlabel(), axes.get_ylabel())
    ]
    return [*labels, *(words for each in figures for words in (each.alt, each.caption))]


def printed_table(run: Run) -> str:
    printed = io.StringIO()
    Console(file=printed, width=400).print(result_table(run, run.result))
    return printed.getvalue()


@pytest.mark.parametrize("with_data", [True, False])
def test_the_page_speaks_of_rows_and_keeps_the_names(made: tuple[Run, Dataset], with_data: bool) -> None:
    run, dataset = made
    shown = show(Subject(run, dataset if with_data else None, "" if with_data else "Gone."))
    read = Texts(page([shown]))
    assert "image" not in sentences(read.pieces, run).casefold()
    assert "image" not in "\n".join(captions(shown)).casefold()
    assert "Did the unlabelled rows help?" in read.pieces
    assert str(run.folder) in read.pieces
    if shown.results is not None and len(dataset.classes) == len(CLASSES):
        assert read.pieces.count("image") >= 3 and "images" in read.pieces, "the classes, where they are listed"


def test_the_card_speaks_of_rows_and_keeps_the_names(made: tuple[Run, Dataset]) -> None:
    run, _ = made
    text, _ = card(run).split("<details><summary>Settings")
    assert "\n# images\n" in text and "tabular-classification" in text
    if "data" in (run.result or {}):
        assert "| data | images.csv |" in text and "| image | 4 |" in text and "| images | 4 |" in text
    named = re.sub(r'^# images$|"images"|images\.csv|^\| images? \| 4 \|$|^Classes: .*$', "", text, flags=re.MULTILINE)
    assert "image" not in named.casefold()
    assert "unlabelled rows" in named


def test_the_result_table_speaks_of_rows_and_keeps_the_names(made: tuple[Run, Dataset]) -> None:
    run, _ = made
    text = printed_table(run)
    assert str(run.folder) in text
    if "recalls" in run.result:
        assert "image: 50 %" in text
    named = re.sub(r"image: 50 %|from image 30 % to tree 30 %", "", text.replace(str(run.folder), ""))
    assert "image" not in named
    assert "labelled rows" in named
    assert not re.search(r"\bimages\b", how_calibrated(run.folder).replace(str(run.folder), ""))


def test_a_warning_keeps_the_name_of_a_class(dataset: Dataset, tmp_path: Path) -> None:
    warnings = [*without_pseudo_labels(np.array([1, 2]), dataset)]
    assert "no unlabelled row gets the class image: label more rows of it" in warnings[0]
    run = made_up_run(tmp_path / "run", dataset, result={**OF_A_TEST, "warnings": warnings})
    assert "gets the class image" in printed_table(run)
    assert "gets the class image" in page([show(Subject(run, None))])
    assert "gets the class image" in card(run)


def test_predict_keeps_the_name_of_the_run(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, result = {"data.valid_share": 0.3}, {"temperature": None}
    run = made_up_run(tmp_path / "runs" / "images", dataset, changes=changes, result=result)
    (tmp_path / "images.csv").write_text("image,width\n1,2\n")
    main(["predict", str(run.folder), str(tmp_path / "images.csv")])
    assert f"{run.folder / 'result.json'} has no temperature" in capsys.readouterr().err


def test_a_refusal_keeps_the_names(dataset: Dataset, tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "images", dataset)
    without = replace(dataset, labels=dataset.labels.where(dataset.labels != 0, -1), name="images")
    settings = run.config.data.model_copy(update={"labels": None})
    with pytest.raises(UserError) as refused:
        draw_split(without, settings, 0)
    assert "row of class image" in str(refused.value)
    assert str(refused.value).startswith("images: ")


def test_each_run_has_its_own_noun(dataset: Dataset, tmp_path: Path) -> None:
    runs = [made_up_run(tmp_path / "rows", dataset), made_up_run(tmp_path / "photos", some_data())]
    text = page([show(Subject(run, None)) for run in runs])
    assert text.count("The unlabelled rows helped") == text.count("The unlabelled images helped") == 1
