"""Whatever a file system or a history can hold is written to labels.csv, read back and equal, and no formula."""

from pathlib import Path

import pandas
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cotrain.data import open_data
from cotrain.data.label_table import match, read_table
from cotrain.data.settings import DataSettings
from cotrain.labelling.events import MOST_NUMBER, STRANGER, Label, Merge, NewClass
from cotrain.labelling.history import LabelHistory
from cotrain.labelling.journal import Journal
from cotrain.labelling.labels_csv import LabelTable
from cotrain.storage.cells import class_of, from_safe_path, is_text
from cotrain.types import UserError
from tests.data.photos import save
from tests.odd import FORMULAS, NAMES, PATHS, as_a_spreadsheet_reads_it

HISTORY = "labels-history.jsonl"
HEADERS = ["", "path,label\n", "image;class;note\r\n", "\ufeffpath\tlabel\n"]
CONTENT = NAMES.filter(lambda name: not any("\ud800" <= letter <= "\udfff" for letter in name))  # JSON holds no others


def as_fit_reads_it(folder: Path, images: list[str]) -> dict[str, str]:
    file = folder / "labels.csv"
    named, missing = match(read_table(file), images, table=file, folder=folder)
    assert not missing
    return {images[index]: label for index, label in named.items() if label is not None}


def a_history(folder: Path, images: list[str], in_folders: dict[str, str] | None = None) -> LabelHistory:
    history = LabelHistory(
        Journal.open(folder / HISTORY), LabelTable(folder / "labels.csv", folder, images, DataSettings())
    )
    history.start(in_folders or {})
    return history


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(labels=st.dictionaries(PATHS.map(lambda path: f"{path}.png"), NAMES, min_size=1, max_size=5))
@example(labels={"a\rb.png": "nan", "b.png": "a\rb", "c.png": "-1", "d.png": "7"})
@example(labels={"e\u0301.png": "e\u0301", "\xe9.png": "\xe9", "=e\u0301.png": "", "=\xe9.png": " "})
def test_every_name_comes_back(tmp_path: Path, labels: dict[str, str]) -> None:
    """As cotrain, pandas and a spreadsheet read the table, and as the next start reads the history."""
    for name in ("labels.csv", HISTORY):
        (tmp_path / name).unlink(missing_ok=True)
    images = [*labels]
    history = a_history(tmp_path, images, labels)
    history.save()
    assert history.problem == ""
    wanted = {image: name for image, name in labels.items() if is_text(image)}
    if not wanted:
        assert not (tmp_path / "labels.csv").exists()
        return
    assert history.labels.by_name == as_fit_reads_it(tmp_path, images) == wanted
    count = len(history.events)
    again = a_history(tmp_path, images)
    assert (again.labels, len(again.events)) == (history.labels, count)

    text = (tmp_path / "labels.csv").read_bytes().decode()
    rows = as_a_spreadsheet_reads_it(text)
    assert not any(cell.startswith(FORMULAS) for row in rows for cell in row)
    frame = pandas.read_csv(tmp_path / "labels.csv", dtype=object, keep_default_na=False)
    assert frame.to_numpy().tolist() == rows[1:]
    assert {from_safe_path(path): class_of(cell) for path, cell in rows[1:]} == wanted


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(
    names=st.lists(CONTENT, min_size=1, max_size=4, unique=True),
    number=st.sampled_from([1, 7, MOST_NUMBER, MOST_NUMBER + 1, 2**70, 10**400]),
)
def test_a_history_of_another_program_is_used_as_it_is(tmp_path: Path, names: list[str], number: int) -> None:
    for name in ("labels.csv", HISTORY):
        (tmp_path / name).unlink(missing_ok=True)
    images = [f"{place}.png" for place in range(len(names) + 1)]
    journal = Journal.open(tmp_path / HISTORY)
    for place, name in enumerate(names):
        journal.add(NewClass, who="me", how="key", number=number + place, name=name)
        journal.add(Label, who="me", how="key", number=number + place, name=name, images=[images[place], "gone\0.png"])
    journal.close()
    for _ in range(2):
        history = a_history(tmp_path, images)
        history.save()
        wanted = dict(zip(images, names, strict=False))
        assert as_fit_reads_it(tmp_path, images) == wanted
        assert {image: name for image, name in history.labels.by_name.items() if image in images} == wanted
        assert max(history.labels.names) <= MOST_NUMBER
    history.label({images[-1]: None}, max(history.labels.names), who="me", how="key")
    history.label({images[0]: None}, STRANGER, who="you", how="key")
    new = history.new_class("another", who="me", how="key")
    assert new <= MOST_NUMBER and len(history.labels.names) == len(names) + 1


def test_a_kill_between_two_numbers_of_a_class_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.open(tmp_path / HISTORY)
    journal.add(NewClass, who="me", how="key", number=2**70, name="cat")
    journal.add(Label, who="me", how="key", number=2**70, name="cat", images=["a.png"])
    before = (tmp_path / HISTORY).read_bytes()
    a_history(tmp_path, ["a.png"])
    lines = (tmp_path / HISTORY).read_bytes()[len(before) :].splitlines(keepends=True)
    assert len(lines) == 3
    for count in range(4):
        (tmp_path / HISTORY).write_bytes(before + b"".join(lines[:count]))
        history = a_history(tmp_path, ["a.png"])
        (name,) = history.labels.by_name.values()
        assert name == "cat" or (count == 2 and name.startswith("cat"))
    assert any(isinstance(event, Merge) for event in history.events)


@pytest.mark.parametrize(("labels", "number"), [({"a.png": "0", "c.png": "cat"}, "unlabelled"), ({"b.png": "7"}, "-1")])
def test_minus_one_means_the_same_when_the_other_labels_change(
    tmp_path: Path, labels: dict[str, str], number: str
) -> None:
    """It is unlabelled among numbers, and a class among names."""
    images = ["a.png", "b.png", "c.png"]
    first = "0" if number == "unlabelled" else "-1"
    other = "-1" if number == "unlabelled" else "owl"
    (tmp_path / "labels.csv").write_text(f"path,label\na.png,{first}\nb.png,{other}\n")
    table = LabelTable(tmp_path / "labels.csv", tmp_path, images, DataSettings())
    before = table.read()
    assert before is not None
    wanted = {**before.labels, **labels}
    table.write(wanted, before)
    assert as_fit_reads_it(tmp_path, images) == wanted


def test_a_folder_of_odd_names_is_opened_and_labelled(tmp_path: Path) -> None:
    """Class folders and files as a file system can hold them."""
    folder = tmp_path / "photos"
    for place, name in enumerate(["a\rb", "nan", "=x", "b\xe9", "be\u0301", " c ", "d\udcff"]):
        for each in ("a\r.png", "=1.png", "\udcfe.png", f"{place}.png"):
            save(folder / name / each)
    dataset = open_data(folder)
    labels = {path: path.split("/")[0] for path in dataset.paths}
    history = a_history(folder, [*dataset.paths], labels)
    history.save()
    assert history.problem == ""
    again = open_data(folder)
    read = {
        path: again.classes[label] for path, label in zip(again.paths, again.labels.tolist(), strict=True) if label >= 0
    }
    assert read == {path: name for path, name in labels.items() if is_text(path)}
    assert len(read) == 6 * 3


def test_a_name_that_is_too_long_while_the_server_runs_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    history = a_history(tmp_path, ["a.png", "b.png"], {"a.png": "cat"})
    history.save()
    (tmp_path / "labels.csv").write_text(f"path,label\na.png,cat\nb.png,{'x' * 5000}\n")
    history.save()
    assert "labels.csv" in history.problem
    with pytest.raises(UserError):
        a_history(tmp_path, ["a.png", "b.png"])
