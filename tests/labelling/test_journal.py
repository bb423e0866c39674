"""The journal keeps every event that it confirmed, whatever happens to the process, the file and the disk."""

import errno
import os
import re
import shutil
from pathlib import Path

import pytest

from cotrain.data.settings import DataSettings
from cotrain.labelling.events import Label, NewClass, Skip
from cotrain.labelling.history import LabelHistory
from cotrain.labelling.journal import Journal, NotSaved, only_one
from cotrain.labelling.labels_csv import LabelTable
from cotrain.types import UserError

NAME = "labels-history.jsonl"


def written(path: Path) -> Journal:
    journal = Journal.open(path)
    journal.add(NewClass, who="me", how="key", number=1, name='a "class", \N{CAT FACE}')
    journal.add(Label, who="me", how="key", number=1, name="a", images=["sub/ä b.png", "c.png"])
    journal.add(Skip, who="you", how="click", images=["d.png"])
    return journal


def test_events_are_read_back_as_they_were(tmp_path: Path) -> None:
    journal = written(tmp_path / NAME)
    assert Journal.open(tmp_path / NAME).events == journal.events
    assert [event.id for event in journal.events] == [1, 2, 3]
    assert len((tmp_path / NAME).read_text(encoding="utf-8").splitlines()) == 3


def test_an_event_is_on_disk_before_it_is_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, synced = written(tmp_path / NAME), []
    fsync = os.fsync

    def noting(file: int) -> None:
        fsync(file)
        synced.append((tmp_path / NAME).read_bytes().count(b"\n"))

    monkeypatch.setattr(os, "fsync", noting)
    journal.add(Skip, who="me", how="key", images=["e.png"])
    assert synced == [4]


def test_a_line_cut_off_at_any_byte_is_dropped_and_the_next_event_follows(tmp_path: Path) -> None:
    events = written(tmp_path / NAME).events
    content = (tmp_path / NAME).read_bytes()
    last = content.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last, len(content)):
        path = tmp_path / f"{end}.jsonl"
        path.write_bytes(content[:end])
        journal = Journal.open(path)
        kept = 3 if end == len(content) - 1 else 2  # an editor may have removed the end of a complete line
        assert journal.events == events[:kept]
        journal.add(Skip, who="me", how="key", images=["e.png"])
        assert [event.id for event in Journal.open(path).events] == [*range(1, kept + 2)]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    written(tmp_path / NAME)
    lines = (tmp_path / NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / NAME).write_bytes(lines[0] + b'{"id": 2, "kind": "nonsense"}\n' + lines[2])
    with pytest.raises(UserError, match=rf"{NAME}, line 2 is damaged"):
        Journal.open(tmp_path / NAME)


def test_events_out_of_order_are_damage(tmp_path: Path) -> None:
    """Undo and merging with labels.csv go by the numbers of events."""
    written(tmp_path / NAME)
    lines = (tmp_path / NAME).read_bytes().splitlines(keepends=True)
    for content, number in ((lines[0] + lines[2] + lines[1], 3), (lines[0] * 2, 2), (lines[0].replace(b"1", b"-1"), 1)):
        (tmp_path / NAME).write_bytes(content)
        with pytest.raises(UserError, match=rf"{NAME}, line {number} is damaged"):
            Journal.open(tmp_path / NAME)


@pytest.mark.parametrize(("before", "after"), [(rb'.*"name":"a".*\n', b""), (rb'"name":"b"', b'"name":"a"')])
def test_labels_without_their_class_are_damage(before: bytes, after: bytes, tmp_path: Path) -> None:
    """Somebody removed the line that names the class, or gave two classes one name."""
    journal = Journal.open(tmp_path / NAME)
    journal.add(NewClass, who="me", how="key", number=1, name="a")
    journal.add(NewClass, who="me", how="key", number=2, name="b")
    journal.add(Label, who="me", how="key", number=1, name="a", images=["0.png"])
    journal.add(Label, who="me", how="key", number=2, name="b", images=["1.png"])
    table = LabelTable(tmp_path / "labels.csv", tmp_path, ["0.png", "1.png"], DataSettings())
    assert LabelHistory(journal, table).labels.by_name == {"0.png": "a", "1.png": "b"}
    content = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(re.sub(before, after, content, count=1))
    with pytest.raises(UserError, match=rf"{NAME} is damaged: labels and classes do not fit together; restore it"):
        LabelHistory(Journal.open(tmp_path / NAME), table)


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = written(tmp_path / NAME)
    before, write = (tmp_path / NAME).read_bytes(), os.write

    def full(file: int, data: bytes) -> int:
        write(file, data[:7])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(NotSaved, match=r"No space left on device.*earlier labels are safe"):
            journal.add(Skip, who="me", how="key", images=["e.png"])
    assert (tmp_path / NAME).read_bytes() == before
    assert len(journal.events) == 3
    journal.add(Skip, who="me", how="key", images=["f.png"])
    assert Journal.open(tmp_path / NAME).events == journal.events


def test_a_deleted_journal_is_written_again(tmp_path: Path) -> None:
    journal = written(tmp_path / NAME)
    (tmp_path / NAME).unlink()
    journal.add(Skip, who="me", how="key", images=["e.png"])
    assert Journal.open(tmp_path / NAME).events == journal.events
    assert len(journal.events) == 4


def test_a_folder_that_vanishes_confirms_nothing_and_works_again_when_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    journal = written(folder / NAME)
    shutil.move(folder, tmp_path / "away")
    with pytest.raises(NotSaved, match="No such file"):
        journal.add(Skip, who="me", how="key", images=["e.png"])
    shutil.move(tmp_path / "away", folder)
    journal.add(Skip, who="me", how="key", images=["f.png"])
    assert [event.id for event in Journal.open(folder / NAME).events] == [1, 2, 3, 4]


def test_a_journal_that_another_program_changed_is_not_written_to(tmp_path: Path) -> None:
    journal = written(tmp_path / NAME)
    (tmp_path / "other").write_bytes((tmp_path / NAME).read_bytes().replace(b"d.png", b"x.png"))
    os.replace(tmp_path / "other", tmp_path / NAME)
    with pytest.raises(NotSaved, match="another program has changed it"):
        journal.add(Skip, who="me", how="key", images=["e.png"])


def test_only_one_process_labels_a_folder(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with only_one(path), pytest.raises(UserError, match="another process is labelling"), only_one(path):
        pass
    with only_one(path):
        pass


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("cotrain.labelling.journal.FileLock.acquire", read_only)
    wanted = r"cannot write to .* \(Read-only file system\); use --labels FILE"
    with pytest.raises(UserError, match=wanted), only_one(tmp_path / NAME):
        pass
