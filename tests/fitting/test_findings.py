"""`fit` on a folder as it is: what it finds and writes, with a bank and for a network from scratch."""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import cotrain
from cotrain import Config, Dataset
from cotrain.audit.outliers import by_heads
from cotrain.audit.suspects import Suspect
from cotrain.data import draw_split
from cotrain.fitting import findings
from cotrain.fitting.findings import STRANGERS, SUSPECTS, Strangers, many_disputed, without_pseudo_labels
from cotrain.fitting.fit import Fitted
from cotrain.fitting.messages import warnings_about
from cotrain.report.page import Subject, page, show
from cotrain.report.pictures import COLUMNS, Doubt, write_doubts
from cotrain.runs.run import Run
from cotrain.storage.cells import class_of, from_safe_path
from cotrain.training.experiment import Experiment
from cotrain.training.selection import Selection
from cotrain.types import UserError
from tests.odd import FORMULAS, NAMES, PATHS, as_a_spreadsheet_reads_it
from tests.report.reading import Read, words
from tests.trunk.tiny import CONFIG, known, opened, pictures, small_data

ROBUST = CONFIG.changed(
    {
        "data.labels": None,
        "data.test_share": 0,
        "robust.false_alarms": 0.2,
        "run.baseline": True,
        "run.repeats": 1,
        "run.folds": 2,
    }
)
LABELS, JUNK = 18, 12
CPU = torch.device("cpu")


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return [*csv.DictReader(file)]


def with_junk() -> Dataset:
    """18 labelled and 22 unlabelled images of three classes, 12 images of none, and one wrong label (row 0)."""
    data = small_data(train=40, valid=0, test=0)
    junk = pictures(JUNK, seed=5) // 8
    images = np.concatenate([data.images.numpy(), junk])
    labels = np.concatenate([data.labels.numpy(), np.full(JUNK, -1)])
    labels[LABELS:] = -1
    labels[0] = 1
    return cotrain.from_arrays(images, labels, name="junk")


@pytest.fixture(scope="module", autouse=True)
def tiny_is_known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with known(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTRAIN_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def fitted(tiny_is_known: None, tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    return cotrain.fit(with_junk(), out=tmp_path_factory.mktemp("runs") / "run", config=ROBUST)


def test_images_of_no_class_come_first_and_are_left_out(fitted: Fitted) -> None:
    listed = rows(fitted.folder / "does_not_belong.csv")
    assert [*listed[0]] == ["path", "row", "belongs", "class", "left_out"]
    assert len(listed) == 40 - LABELS + JUNK  # every unlabelled image
    assert {int(row["row"]) for row in listed[:JUNK]} == {*range(40, 40 + JUNK)}
    assert all(row["left_out"] == ("yes" if float(row["belongs"]) <= 0.2 else "no") for row in listed)
    strangers = fitted.result["strangers"]
    assert strangers["left_out"] == sum(row["left_out"] == "yes" for row in listed) >= JUNK
    assert strangers["smallest_rate"] == pytest.approx(1 / (LABELS + 1))
    assert strangers["held_out"] and strangers["estimated_share"] == pytest.approx(JUNK / len(listed), abs=0.2)
    assert any("look unlike every labelled one" in warning for warning in fitted.result["warnings"])


def test_suspect_labels_are_listed_with_a_proposal(fitted: Fitted) -> None:
    listed = rows(fitted.folder / "suspect_labels.csv")
    assert fitted.result["suspect_labels"]["listed"] == len(listed)
    assert fitted.result["suspect_labels"]["held_out"]
    assert all(row["label"] != row["proposed"] for row in listed)
    assert "0" in {row["row"] for row in listed}


def test_shares_and_pseudo_labels_of_each_class(fitted: Fitted) -> None:
    found = fitted.result["class_shares"]
    assert [one["class"] for one in found] == ["0", "1", "2"]
    assert sum(one["share"] for one in found) == pytest.approx(1)
    assert sum(one["pseudo_labels"] for one in found) == 40 - LABELS + JUNK


def test_predict_says_which_images_belong(fitted: Fitted) -> None:
    images = np.concatenate([pictures(6, seed=8) // 8, with_junk().images[:6].numpy()])
    found = cotrain.load(fitted.folder).predict(images)
    assert found.belongs is not None
    assert found.belongs[:6].max() < found.belongs[6:].min()
    assert found.belongs.min() >= fitted.result["strangers"]["smallest_rate"]


def test_the_page_shows_what_to_check(fitted: Fitted) -> None:
    html = page([show(Subject(Run.open(fitted.folder), with_junk()))])
    said = words(Read(html), "folder")
    assert "does_not_belong.csv in the run folder lists all unlabelled images" in said
    assert "The heads predict another class for" in said and "trained without the label" in said
    assert html.count('alt="row 4') >= 10  # the junk is drawn
    assert "balanced error" in words(Read(html), "classes")


def test_the_baseline_knows_it_too(fitted: Fitted) -> None:
    assert cotrain.load(fitted.folder, use="labelled_only").belonging is not None


def test_a_network_from_scratch_says_it_by_its_heads(tiny: Config, toy: Dataset, tmp_path: Path) -> None:
    run = cotrain.fit(toy, out=tmp_path / "run", config=tiny.changed({"data.labels": 10}))
    assert not run.result["strangers"]["held_out"] and not run.result["suspect_labels"]["held_out"]
    assert run.result["strangers"]["left_out"] == 0
    assert len(rows(run.folder / "does_not_belong.csv")) == len(toy.train) - 10
    assert (run.folder / "suspect_labels.csv").exists()
    found = cotrain.load(run.folder).predict(toy.images[:5])
    assert found.belongs is not None and ((found.belongs >= 1 / 11) & (found.belongs <= 1)).all()


def test_a_class_without_pseudo_labels_is_named() -> None:
    (warning,) = without_pseudo_labels(np.array([0, 2, 2]), with_junk())
    assert warning.startswith("no unlabelled image gets the class 1: label more images of it")


def test_many_classes_without_pseudo_labels_are_counted() -> None:
    dataset = replace(with_junk(), classes=tuple("abcdefgh"))
    (warning,) = without_pseudo_labels(np.array([0, 2]), dataset)
    assert warning.startswith("no unlabelled image gets any of the classes b, d, e, f, g and 1 more: label more")


def test_if_every_label_is_disputed_there_is_a_warning() -> None:
    every = [Suspect(row, label=0, proposed=1, of_label=0.01, of_proposed=0.99, disputed=True) for row in range(5)]
    (warning,) = many_disputed(every, 5)
    assert warning.startswith("5 of 5 labels are disputed by the heads") and "suspect_labels.csv" in warning
    assert not [*many_disputed([], 5)]


def test_what_has_no_effect_from_scratch_is_said(tiny: Config, toy: Dataset) -> None:
    config = tiny.changed({"robust.trust_labels": 0.9, "data.labels": 10})
    split = draw_split(toy, config.data, 0)
    assert any("trust_labels" in line and "no effect here" in line for line in warnings_about(toy, split, config))
    assert Experiment(config, toy, split, CPU).selection.used == (split, None, None)


def test_without_junk_nothing_is_left_out() -> None:
    clean = replace(with_junk(), train=np.arange(40))
    assert len(selected({}, opened(clean, ROBUST)).left_out) == 0


def selected(changes: dict[str, Any], dataset: Dataset) -> Selection:
    config = ROBUST.changed(changes)
    return Experiment(config, dataset, draw_split(dataset, config.data, 0), CPU).selection


def test_a_wrong_label_counts_less_than_the_others() -> None:
    changes = {"robust.trust_labels": 0.95, "robust.false_alarms": 0.0}
    chosen = selected(changes, opened(with_junk(), ROBUST))
    weights = chosen.used.weights
    assert weights is not None and len(weights) == len(chosen.used.split.labelled) == LABELS
    assert weights.argmin() == 0 and weights[0] < 0.5
    assert (weights[1:] > 0.5).all()
    assert 0 in chosen.used.split.unlabelled and len(chosen.left_out) == 0


def test_the_page_and_the_result_count_labels_of_little_weight(fitted: Fitted, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    copytree(fitted.folder, folder)
    result = json.loads((folder / "result.json").read_text())
    assert result["suspect_labels"]["distrusted"] == 0
    result["suspect_labels"]["distrusted"] = 1
    (folder / "result.json").write_text(json.dumps(result))
    said = words(Read(page([show(Subject(Run.open(folder), with_junk()))])), "folder")
    assert "1 label counted less than half in training, because the neighbours of its image dispute it" in said


def test_without_doubt_every_label_counts_the_same() -> None:
    assert selected({"robust.trust_labels": 1.0}, opened(with_junk(), ROBUST)).used.weights is None


def test_even_if_every_unlabelled_image_is_junk_training_goes_on() -> None:
    only_junk = replace(with_junk(), train=np.concatenate([np.arange(LABELS), np.arange(40, 40 + JUNK)]))
    chosen = selected({"data.include_labelled": False}, opened(only_junk, ROBUST))
    assert len(chosen.used.split.unlabelled) == JUNK - len(chosen.left_out) > 0


def test_class_shares_reach_the_method(tmp_path: Path) -> None:
    data = with_junk()
    assert selected({"robust.class_shares": "equal"}, data).used.shares == pytest.approx([1 / 3] * 3)
    table = tmp_path / "shares.csv"
    table.write_text("class,share\n0,0.5\n1,0.3\n2,0.2\n")
    assert selected({"robust.class_shares": str(table)}, data).used.shares == pytest.approx([0.5, 0.3, 0.2])
    with pytest.raises(UserError, match="cannot read the class shares nowhere"):
        selected({"robust.class_shares": "nowhere"}, data)


def test_a_class_with_one_label_does_not_stop_it() -> None:
    data = with_junk()
    labels = data.labels.clone()
    labels[torch.arange(LABELS)[labels[:LABELS] == 2][1:]] = -1
    changes = {"robust.class_shares": "estimate", "robust.trust_labels": 0.5}
    chosen = selected(changes, opened(replace(data, labels=labels), ROBUST))
    used = chosen.used
    assert used.weights is not None and np.isfinite(used.weights).all()
    assert used.weights[labels[list(used.split.labelled)] == 2] == pytest.approx([1])
    assert used.shares is not None and np.isfinite(used.shares).all()


def test_no_cell_of_a_list_is_a_formula(tmp_path: Path) -> None:
    data = replace(small_data(), paths=("=1+1.png", "@b.png"), classes=("=cmd|' /C calc'!A0", "-1"))
    values = np.array([0.1, 0.2])
    found = Strangers(np.arange(2), values, np.arange(2), by_heads(torch.zeros(1, 2, 2)), held_out=True)
    suspects = [
        Suspect(row, label=row, proposed=1 - row, of_label=0.1, of_proposed=0.9, disputed=True) for row in (0, 1)
    ]
    findings._write(tmp_path / "a.csv", STRANGERS, findings._stranger_rows(found, values > 1, data))
    findings._write(tmp_path / "b.csv", SUSPECTS, findings._suspect_rows(suspects, data))
    doubts = [Doubt(row, data.paths[row], data.classes[row], 0.5, (), 0.1) for row in (0, 1)]
    write_doubts(tmp_path / "c.csv", doubts)
    cells = [cell for name in "abc" for row in rows(tmp_path / f"{name}.csv") for cell in row.values()]
    assert len(cells) == 2 * (len(STRANGERS) + len(SUSPECTS) + len(COLUMNS))
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)


@given(paths=st.lists(PATHS, min_size=2, max_size=2), names=st.lists(NAMES, min_size=2, max_size=2))
@example(paths=["a\rb.png", "b.png"], names=["a\rb", "nan"])
def test_lists_are_read_back_whatever_the_names(
    tmp_path_factory: pytest.TempPathFactory, paths: list[str], names: list[str]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    data = replace(small_data(), paths=tuple(paths), classes=tuple(names))
    found = Strangers(np.arange(2), np.array([0.1, 0.2]), np.arange(2), by_heads(torch.zeros(1, 2, 2)), held_out=True)
    suspects = [Suspect(row, row, 1 - row, of_label=0.1, of_proposed=0.9, disputed=True) for row in (0, 1)]
    findings._write(folder / "a.csv", STRANGERS, findings._stranger_rows(found, found.p_values > 1, data))
    findings._write(folder / "b.csv", SUSPECTS, findings._suspect_rows(suspects, data))
    write_doubts(folder / "c.csv", [Doubt(row, paths[row], names[row], 0.5, (), 0.1) for row in (0, 1)])
    for name, column in (("a", "class"), ("b", "label"), ("c", "class")):
        content = (folder / f"{name}.csv").read_bytes().decode(errors="surrogateescape")
        header, *lines = as_a_spreadsheet_reads_it(content)
        assert not any(cell.startswith(FORMULAS) for line in lines for cell in line)
        assert [from_safe_path(line[header.index("path")]) for line in lines] == paths
        assert [class_of(line[header.index(column)]) for line in lines] == names
        table = pandas.read_csv(
            folder / f"{name}.csv", dtype=object, keep_default_na=False, encoding_errors="surrogateescape"
        )
        assert table.to_numpy().tolist() == lines
