"""Damaged banks, full disks and folders that cannot be written: one line, and nothing wrong is kept."""

import errno
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cotrain import UserError
from cotrain.trunk import building, store
from tests.features.tiny import CONFIG, FEATURES, Counting, files, only_bank, opened, small_data, stored

ROW = 2 * FEATURES
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def whole(home: Path, counting: Counting) -> dict[str, bytes]:
    """The files of a bank that was made without trouble; it is still there."""
    opened(small_data())
    counting.since()
    return files(home)


def none(name: str, rows: np.ndarray) -> None:
    """No check."""


def places_of(home: Path, hashes: np.ndarray) -> np.ndarray:
    known = np.fromfile(only_bank(home) / "hashes", np.uint64).tolist()
    return np.array([known.index(each) for each in hashes.tolist()])


def test_rows_that_were_written_but_not_marked_are_computed_again(
    home: Path, counting: Counting, whole: dict[str, bytes]
) -> None:
    folder = only_bank(home)
    place = places_of(home, small_data().hashes[:1])[0]
    for name in ("strong-1", "plain"):
        features, marks = bytearray((folder / name).read_bytes()), bytearray((folder / f"{name}.sums").read_bytes())
        features[place * ROW : place * ROW + 5] = b"wrong"
        marks[8 * place : 8 * place + 8] = bytes(8)
        (folder / name).write_bytes(features)
        (folder / f"{name}.sums").write_bytes(marks)
    opened(small_data())
    assert counting.since() == 2
    assert files(home) == whole


@pytest.mark.parametrize(
    ("name", "kept", "again"),
    [
        ("weak-1", 20 * ROW + 7, None),
        ("weak-1", 0, 40),
        ("plain", 0, 56),
        ("strong-2.sums", 0, 40),
        ("strong-2.sums", 31 * 8 + 5, None),
        ("hashes", 0, 40 * 6 + 16),
        ("hashes", 55 * 8 + 3, None),
    ],
)
def test_a_truncated_file_is_noticed(
    name: str, kept: int, again: int | None, home: Path, counting: Counting, whole: dict[str, bytes]
) -> None:
    os.truncate(only_bank(home) / name, kept)
    opened(small_data())
    computed = counting.since()
    assert computed == again if again is not None else 0 < computed < 40
    assert files(home) == whole


@pytest.mark.parametrize("name", ["strong-0", "strong-0.sums", "hashes"])
def test_a_file_that_is_gone_is_made_again(name: str, home: Path, counting: Counting, whole: dict[str, bytes]) -> None:
    (only_bank(home) / name).unlink()
    opened(small_data())
    assert counting.since() > 0
    assert files(home) == whole


def test_other_images_do_not_get_the_marks_of_lost_hashes(home: Path, counting: Counting, whole: object) -> None:
    os.truncate(only_bank(home) / "hashes", 8 * 10)
    other = small_data(seed=5)
    bank = opened(other).bank
    assert counting.since() == 40 * 6 + 16
    home.rename(home.with_name("damaged"))
    expected = opened(other).bank
    assert bank is not None and expected is not None
    damaged = replace(
        bank, folder=Path(str(bank.folder).replace(str(home), str(home.with_name("damaged")))), check=none
    )
    rows = other.train
    assert np.array_equal(damaged.plain(rows), expected.plain(rows))
    assert np.array_equal(*(each.views("weak", rows, rows % 2) for each in (damaged, expected)))


def test_lost_rows_of_other_images_stay_lost_when_the_file_grows(
    home: Path, counting: Counting, whole: dict[str, bytes]
) -> None:
    folder = only_bank(home)
    os.truncate(folder / "plain", 10 * ROW)
    opened(small_data(4, 0, 0, seed=9))
    assert counting.since() == 4 * 6
    opened(small_data())
    assert counting.since() == 46
    name = f"banks/{folder.name}/plain"
    assert files(home)[name][: len(whole[name])] == whole[name]


@pytest.mark.parametrize("name", ["plain", "weak-1", "strong-2"])
def test_damaged_features_are_computed_again(
    name: str, home: Path, counting: Counting, whole: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """Any bit of the features or of their checksums; all damaged rows of a view at once."""
    folder, data = only_bank(home), small_data()
    rows = data.train[[3, 17, 30]]
    first, second, third = places_of(home, data.hashes[rows])
    for path, byte in ((name, first * ROW + 5), (f"{name}.sums", second * 8), (name, third * ROW)):
        content = bytearray((folder / path).read_bytes())
        content[byte] ^= 16
        (folder / path).write_bytes(content)
    again = opened(data, console=Console(width=200))
    stored(again, name, np.setdiff1d(data.train, rows))
    assert counting.since() == 0
    found = stored(again, name, rows[:1])
    assert counting.since() == 3
    assert files(home) == whole
    assert np.array_equal(stored(again, name, data.train)[3:4], found)
    assert counting.since() == 0
    assert capsys.readouterr().out.count(f"{folder / name} is damaged: computing these features again\n") == 1


def test_damage_that_returns_is_one_line(home: Path, whole: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.Store, "damaged", lambda self, name, places: np.ones(len(places), np.bool_))
    with pytest.raises(UserError, match=f"^{only_bank(home)} is damaged; delete it, and its features will be computed"):
        stored(opened(small_data()), "plain", np.arange(3))


def test_features_that_disappear_during_training_are_computed_again(home: Path, whole: dict[str, bytes]) -> None:
    data, folder = opened(small_data()), only_bank(home)
    (folder / "weak-0").unlink()
    (folder / "weak-0.sums").unlink()
    assert stored(data, "weak-0", data.train).any()
    assert files(home) == whole
    shutil.rmtree(folder)
    assert np.array_equal(stored(data, "plain", data.test), stored(opened(small_data()), "plain", data.test))
    assert files(home) == whole
    shutil.rmtree(folder)
    opened(small_data(seed=5))  # another run had the same thought, and its images have the places of ours
    with pytest.raises(UserError, match=f"^{folder} is damaged; delete it, and its features will be computed again"):
        stored(data, "strong-1", data.train)


def test_features_of_other_images_are_damage(home: Path, counting: Counting, whole: dict[str, bytes]) -> None:
    """Two rows change places, with their checksums."""
    folder = only_bank(home)
    for name, size in (("plain", ROW), ("plain.sums", 8)):
        rows = (folder / name).read_bytes()
        (folder / name).write_bytes(rows[size : 2 * size] + rows[:size] + rows[2 * size :])
    data = opened(small_data())
    stored(data, "plain", np.arange(56))
    assert counting.since() == 2
    assert files(home) == whole


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"shape": [1, 1, 1]}', b"[" * 10_000, b"null"])
def test_damaged_facts_are_written_again_with_the_features(
    content: bytes, home: Path, whole: dict[str, bytes], counting: Counting
) -> None:
    (only_bank(home) / "facts.json").write_bytes(content)
    data = opened(small_data())
    assert counting.since() > 0, "nobody knows what the features beside them were"
    assert files(home) == whole
    stored(data, "plain", data.test)
    opened(small_data())
    assert counting.since() == 0


def test_a_finished_bank_can_be_read_only(home: Path, whole: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written, locked or created."""
    folder = only_bank(home)
    (folder / ".lock").unlink(missing_ok=True)
    before = {path: path.stat().st_mtime_ns for path in (home, *home.rglob("*"))}
    monkeypatch.setattr("cotrain.storage.location.FileLock", None)
    bank = opened(small_data()).bank
    assert bank is not None and bank.plain(np.arange(3)).any()
    assert {path: path.stat().st_mtime_ns for path in (home, *home.rglob("*"))} == before


def test_a_home_that_cannot_be_written_is_one_line(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", refuse)
        with pytest.raises(UserError, match=r"^cannot keep the features in .*/home/banks/\w+: Read-only file system; "):
            opened(small_data())
    (tmp_path / "file").touch()
    monkeypatch.setenv("COTRAIN_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match="Not a directory; set COTRAIN_HOME to a folder with room"):
        opened(small_data())


def full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_too_little_space_is_noticed_before_anything_is_computed(
    home: Path, counting: Counting, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = CONFIG.changed({"bank.strong": 5})
    with monkeypatch.context() as patch:
        patch.setattr(store.shutil, "disk_usage", lambda folder: Usage(10**9, 10**9, 2 * 56 * ROW - 1))
        with pytest.raises(UserError, match=r"need 2\.688 kB, but .* has only 2\.687 kB left; set COTRAIN_HOME to"):
            opened(small_data(), more)
        patch.setattr(store.shutil, "disk_usage", lambda folder: Usage(10**9, 10**9, 2 * 56 * ROW))
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(UserError, match="No space left on device; set COTRAIN_HOME to a folder with room"):
            opened(small_data(), more)
    assert counting.since() == 0
    opened(small_data())
    assert counting.since() == 0
    opened(small_data(), more)
    assert counting.since() == 2 * 40


@pytest.mark.parametrize("where", ["write", "mark"])
def test_a_disk_that_fills_up_keeps_what_is_done(
    where: str, home: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 25 of the writes, or after the first marks."""
    data, calls = small_data(), 0

    def filling(method: Callable[..., None], most: int) -> Callable[..., None]:
        def called(*arguments: object) -> None:
            nonlocal calls
            calls += 1
            if calls > most:
                full()
            method(*arguments)

        return called

    with monkeypatch.context() as patch:
        patch.setattr(building, "cores", lambda: 1)
        patch.setattr(building, "MARK_SECONDS", 0)
        patch.setattr(store.Store, where, filling(getattr(store.Store, where), {"write": 25, "mark": 3}[where]))
        with pytest.raises(UserError, match="No space left on device") as caught:
            opened(data)
    assert "\n" not in str(caught.value)
    counting.since()
    opened(data)
    assert counting.since() < 256 - 60
    pieces = files(home)
    shutil.rmtree(home)
    opened(data)
    assert files(home) == pieces


def test_half_a_row_is_not_a_row(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may take a part of what is written without an error."""
    made = store.Store(home, {"shape": [4, 1, 1]})
    made.add_images(np.arange(3, dtype=np.uint64))
    made.make_room(["plain"])

    class Half:
        def __init__(self, file: store.FileIO) -> None:
            self.file, self.seek, self.fileno = file, file.seek, file.fileno

        def write(self, content: bytes) -> int:
            return self.file.write(content[:5])

    given = made.open_files["plain"]
    made.write("plain", np.array([0]), np.ones((1, 4, 1, 1), np.float16))
    monkeypatch.setitem(made.open_files, "plain", Half(given))
    with pytest.raises(OSError, match="No space left"):
        made.write("plain", np.array([2]), np.ones((1, 4, 1, 1), np.float16))
    made.mark()
    given.close()
    assert store.Store(home, {"shape": [4, 1, 1]}).done("plain").tolist() == [True, False, False]
