"""Other programs change, cut, replace and link the files of a folder. No confirmed label is lost, nobody waits."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cotrain.data.settings import DataSettings
from cotrain.labelling import journal
from cotrain.labelling.history import LabelHistory
from cotrain.labelling.journal import Journal, NotSaved, only_one
from cotrain.labelling.labels import replay
from cotrain.labelling.labels_csv import LabelTable
from cotrain.labelling.launch import Asked, labelling
from cotrain.storage import writing
from cotrain.types import UserError
from tests.data.photos import by_class
from tests.labelling.served import SETTINGS, photos, serving, start, visit
from tests.trunk.tiny import QUIET

HISTORY = "labels-history.jsonl"
IMAGES = [f"{row:02d}.png" for row in range(60)]


def a_history(folder: Path) -> LabelHistory:
    history = LabelHistory(
        Journal.open(folder / HISTORY), LabelTable(folder / "labels.csv", folder, IMAGES, DataSettings())
    )
    history.start({})
    return history


def say(history: LabelHistory, image: str, name: str) -> None:
    number = history.labels.number_of(name) or history.new_class(name, who="me", how="key")
    history.label({image: None}, number, who="me", how="key")


def labelled(folder: Path, count: int = 50) -> LabelHistory:
    history = a_history(folder)
    for row in range(count):
        say(history, IMAGES[row], ("cat", "dog")[row % 2])
    history.save()
    return history


def in_place(path: Path, content: bytes) -> None:
    """As an editor or a tool does that opens the file and writes into it."""
    with open(path, "r+b") as file:
        file.write(content)
        file.truncate()


def rows_of(folder: Path) -> int:
    return len((folder / "labels.csv").read_text().splitlines()) - 1


CUTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "one line": lambda content: content[: content.index(b"\n") + 1],
    "half": lambda content: content[: len(content) // 2],
    "last byte": lambda content: content[:-1],
    "half a line more": lambda content: content + b'{"id": 999, "kind',
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("then", ["label", "wait", "stop"])
def test_a_history_that_is_cut_in_place_is_written_again(tmp_path: Path, cut: str, then: str) -> None:
    history = labelled(tmp_path)
    before = (tmp_path / HISTORY).read_bytes()
    in_place(tmp_path / HISTORY, CUTS[cut](before))
    if then == "label":
        say(history, IMAGES[50], "cat")
    if then != "stop":
        history.save()
        assert replay(Journal.open(tmp_path / HISTORY).events) == history.labels
        assert HISTORY in history.journal.news and history.problem == ""
    again = a_history(tmp_path)
    again.save()
    assert again.labels.by_name == history.labels.by_name
    assert rows_of(tmp_path) == 50 + (then == "label")


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_change_of_the_same_length_is_noticed(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first lines by the times of the file; the last ones also where its clock is too coarse for that."""
    history = labelled(tmp_path)
    if place == "last":
        coarse = journal._stamp
        monkeypatch.setattr(journal, "_stamp", lambda status: (*coarse(status)[:3], 0, 0))
        say(history, IMAGES[51], "dog")
    content = (tmp_path / HISTORY).read_bytes()
    assert len(content) > journal.LAST + 1000
    if place == "first":
        changed = content.replace(b'"name":"cat"', b'"name":"owl"', 1)
    else:
        changed = content.replace(IMAGES[51].encode(), IMAGES[52].encode())
    in_place(tmp_path / HISTORY, changed)
    with pytest.raises(NotSaved, match=HISTORY):
        say(history, IMAGES[50], "cat")
    assert (tmp_path / HISTORY).read_bytes() == changed, "what somebody else wrote is left alone"
    (copy,) = tmp_path.glob("labels-history.kept-*.jsonl")
    assert copy.read_bytes() == content
    history.save()
    assert HISTORY in history.problem and copy.name in history.problem
    assert len([*tmp_path.glob("labels-history.kept-*")]) == 1
    os.replace(copy, tmp_path / HISTORY)  # as the page says
    say(history, IMAGES[50], "cat")
    history.save()
    assert (history.problem, a_history(tmp_path).labels.by_name) == ("", history.labels.by_name)


def test_a_full_disk_while_a_deleted_history_is_written_again_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = labelled(tmp_path, 5)
    (tmp_path / HISTORY).unlink()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        patch.setattr(os, "write", full)
        for _ in range(2):
            with pytest.raises(NotSaved):
                say(history, IMAGES[5], "cat")
    for row in (5, 6):
        say(history, IMAGES[row], "cat")
    assert replay(Journal.open(tmp_path / HISTORY).events) == history.labels
    assert len(history.labels.by_name) == 7


def test_a_table_keeps_labels_that_the_history_lost(tmp_path: Path) -> None:
    """The history was cut while nobody looked, and says that it knows the table."""
    history = labelled(tmp_path)
    lines = (tmp_path / HISTORY).read_bytes().splitlines(keepends=True)
    (written,) = [line for line in lines if b'"kind":"written"' in line]
    (tmp_path / HISTORY).write_bytes(b"".join(lines[:3]) + written)
    again = a_history(tmp_path)
    again.save()
    assert again.labels.by_name == history.labels.by_name
    assert rows_of(tmp_path) == 50


def test_rows_that_go_because_the_history_does_not_lead_to_them_stay_in_a_copy(tmp_path: Path) -> None:
    labelled(tmp_path, 3)
    content = (tmp_path / "labels.csv").read_bytes()
    lines = (tmp_path / HISTORY).read_bytes().splitlines(keepends=True)
    (tmp_path / HISTORY).write_bytes(b"".join(lines[:2]))
    other = Journal.open(tmp_path / HISTORY)
    history = LabelHistory(other, LabelTable(tmp_path / "labels.csv", tmp_path, IMAGES, DataSettings()))
    say(history, IMAGES[1], "cat")  # the table says dog
    a_history(tmp_path).save()
    assert rows_of(tmp_path) == 2, "people disagree about one image"
    (copy,) = tmp_path.glob("labels.edited-*.csv")
    assert copy.read_bytes() == content


def test_a_label_that_comes_while_the_table_is_written_survives_an_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is not said to hold a label that it does not hold."""
    history = labelled(tmp_path, 2)
    say(history, IMAGES[2], "cat")
    write = history.table.write

    def late(*arguments: object) -> str:
        digest = write(*arguments)  # type: ignore[arg-type]
        say(history, IMAGES[3], "dog")
        return digest

    monkeypatch.setattr(history.table, "write", late)
    history._save()
    (tmp_path / "labels.csv").write_text((tmp_path / "labels.csv").read_text() + "09.png,cat\n")
    again = a_history(tmp_path)
    assert again.labels.by_name == {
        IMAGES[0]: "cat",
        IMAGES[1]: "dog",
        IMAGES[2]: "cat",
        IMAGES[3]: "dog",
        "09.png": "cat",
    }


@pytest.mark.parametrize("name", ["labels.csv", HISTORY, ".labels-history.lock"])
@pytest.mark.parametrize("there", [True, False])
def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path, name: str, there: bool) -> None:
    folder = photos(tmp_path / "photos", 6)
    private = tmp_path / "private"
    if there:
        private.write_text("precious")
    (folder / name).symlink_to(private)
    with pytest.raises(UserError, match=name if "lock" not in name else "photos"), labelling(_asked(folder), QUIET):
        pass
    assert private.exists() == there and (not there or private.read_text() == "precious")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders")
@pytest.mark.parametrize("name", ["labels.csv", HISTORY, ".labels-history.lock"])
def test_a_pipe_stops_nobody_at_the_start(tmp_path: Path, name: str) -> None:
    folder = photos(tmp_path / "photos", 6)
    os.mkfifo(folder / name)
    if "lock" in name:
        with only_one(folder / HISTORY):
            return
    with pytest.raises(UserError, match=name), labelling(_asked(folder), QUIET):
        pass


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders")
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_files_that_become_pipes_or_links_are_a_problem_and_no_wait(tmp_path: Path, kind: str) -> None:
    history = labelled(tmp_path, 4)
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_text("precious")

    def put(path: Path) -> None:
        path.unlink()
        os.mkfifo(path) if kind == "pipe" else path.symlink_to(outside)

    put(tmp_path / "labels.csv")
    say(history, IMAGES[4], "cat")
    history.save()
    assert "labels.csv" in history.problem
    put(tmp_path / HISTORY)
    with pytest.raises(NotSaved, match="kept"):
        say(history, IMAGES[5], "cat")
    history.save()
    assert HISTORY in history.problem and outside.read_text() == "precious"
    (kept,) = tmp_path.glob("*.kept-*")
    assert replay(Journal.open(kept).events) == history.labels
    for name in ("labels.csv", HISTORY):
        (tmp_path / name).unlink()
    say(history, IMAGES[5], "cat")
    history.save()
    assert (history.problem, rows_of(tmp_path)) == ("", 6)
    assert replay(Journal.open(tmp_path / HISTORY).events) == history.labels


def _asked(folder: Path) -> Asked:
    return Asked(folder, settings=SETTINGS)


def test_images_behind_links_give_no_label_and_are_not_asked(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos", each=3, unlabelled=2)
    by_class(tmp_path / "elsewhere", ("owl",), each=3, unlabelled=0)
    (folder / "owl").symlink_to(tmp_path / "elsewhere" / "owl")
    (folder / "cat" / "away.png").symlink_to(tmp_path / "elsewhere" / "owl" / "0.png")
    with serving(folder) as one:
        assert {*one.session.history.labels.names.values()} == {"cat", "dog"}
        assert not any("owl" in path or "away" in path for path in one.session.history.labels.by_name)
        assert {*one.session.dataset.paths} == {*one.session.history.labels.by_name} | {
            one.session.dataset.paths[row] for row in one.session.index.rows
        }
    assert "away" not in (folder / "labels.csv").read_text()


def test_temporary_files_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = photos(tmp_path / "photos", 6)
    with monkeypatch.context() as patch:
        patch.setattr(writing.os, "getpid", lambda: 2**22 + 1)  # no process has this number
        for name in ("labels.csv", HISTORY):
            os.close(writing.new_file(folder / name)[1])
    left = {path.name for path in folder.iterdir() if writing.is_partial(path.name)}
    assert len(left) == 2
    (folder / ".notes.partial").touch()  # of somebody else
    with labelling(_asked(folder), QUIET):
        assert {path.name for path in folder.iterdir() if writing.is_partial(path.name)} == {".notes.partial"}


@pytest.mark.system
def test_labels_survive_a_history_that_is_cut_under_a_running_server(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    process, address = start(folder)
    client = visit(address)
    numbers = client.name("red", "green")
    for row in range(12):
        client.label(numbers[("red", "green")[row % 2]], row)
    client.wait(lambda _: (folder / "labels.csv").exists() and rows_of(folder) == 12)
    in_place(folder / HISTORY, b"")
    client.label(numbers["red"], 12)
    assert client.state["labelled"] == 13
    process.send(signal.SIGTERM)
    assert process.wait().returncode == 0
    process, address = start(folder)
    assert visit(address).state["labelled"] == 13
    process.send(signal.SIGTERM)
    process.wait()
