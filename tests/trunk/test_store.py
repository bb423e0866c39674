"""Damaged banks, full disks and folders that cannot be written: one line, and nothing wrong is kept."""

import errno
import os
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cotrain import Dataset, UserError
from cotrain.data.bank import PLAIN, view_names
from cotrain.storage import rows
from cotrain.storage.rows import RECORD
from cotrain.trunk import building
from tests.trunk.tiny import CONFIG, FEATURES, Counting, files, index, only_bank, opened, small_data, stored

ROW = 2 * FEATURES
VIEWS = view_names(CONFIG.bank.weak, CONFIG.bank.strong)
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def whole(home: Path, counting: Counting) -> dict[str, bytes]:
    """The files of a bank that was made without trouble; it is still there."""
    opened(small_data())
    counting.since()
    return files(home)


def place_of(home: Path, name: str, hashed: np.uint64) -> int:
    return index(only_bank(home), name)["key"].tolist().index(int(hashed))


def change(path: Path, byte: int, to: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[byte : byte + len(to)] = to
    path.write_bytes(content)


def everything(dataset: Dataset) -> list[np.ndarray]:
    assert dataset.bank is not None
    rows = {PLAIN: np.arange(len(dataset.images))}
    return [stored(dataset, name, rows.get(name, dataset.train)) for name in VIEWS]


def test_rows_that_were_written_but_not_saved_are_computed_again(
    home: Path, counting: Counting, whole: dict[str, bytes]
) -> None:
    folder = only_bank(home)
    for name in ("strong-1", "plain"):
        place = place_of(home, name, small_data().hashes[0])
        change(folder / name, place * ROW, b"wrong")
        change(folder / f"{name}.index", RECORD.itemsize * place + 8, bytes(8))
    opened(small_data())
    assert counting.since() == 2
    assert files(home) == whole


@pytest.mark.parametrize(
    ("name", "kept", "again"),
    [
        ("weak-1", 20 * ROW + 7, 20),
        ("weak-1", 0, 40),
        ("plain", 0, 56),
        ("strong-2.index", 0, 40),
        ("strong-2.index", 31 * RECORD.itemsize + 5, 9),
    ],
)
def test_a_truncated_file_is_noticed(
    name: str, kept: int, again: int, home: Path, counting: Counting, whole: dict[str, bytes]
) -> None:
    os.truncate(only_bank(home) / name, kept)
    opened(small_data())
    assert counting.since() == again
    assert files(home) == whole


@pytest.mark.parametrize("name", ["strong-0", "strong-0.index"])
def test_a_file_that_is_gone_is_made_again(name: str, home: Path, counting: Counting, whole: dict[str, bytes]) -> None:
    (only_bank(home) / name).unlink()
    opened(small_data())
    assert counting.since() == 40
    assert files(home) == whole


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
    """Any bit of the features or of their digests; all damaged rows of a view at once."""
    folder, data = only_bank(home), small_data()
    rows = data.train[[3, 17, 30]]
    first, second, third = (place_of(home, name, data.hashes[row]) for row in rows)
    digest = RECORD.itemsize * second + 8
    for path, byte in ((name, first * ROW + 5), (f"{name}.index", digest), (name, third * ROW)):
        change(folder / path, byte, bytes([(folder / path).read_bytes()[byte] ^ 16]))
    again = opened(data, console=Console(width=200))
    stored(again, name, np.setdiff1d(data.train, rows))
    assert counting.since() == 0
    found = stored(again, name, rows[:1])
    assert counting.since() == 3
    assert files(home) == whole
    assert np.array_equal(stored(again, name, data.train)[3:4], found)
    assert counting.since() == 0
    assert capsys.readouterr().out.count(f"{folder / name} is damaged") == 1


def test_a_damaged_key_costs_its_row(home: Path, counting: Counting, whole: object) -> None:
    expected = everything(opened(small_data()))
    for place, byte in ((5, 0), (9, 7)):
        change(only_bank(home) / "plain.index", place * RECORD.itemsize + byte, b"\x55")
        again = opened(small_data())
        assert counting.since() == 1
        assert all(map(np.array_equal, everything(again), expected))


def test_damage_that_returns_is_one_line(home: Path, whole: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows.Rows, "_wrong", lambda self, places, values: np.ones(len(places), np.bool_))
    with pytest.raises(UserError, match=f"^{only_bank(home)}/plain is damaged; delete it"):
        stored(opened(small_data()), "plain", np.arange(3))


def test_features_that_disappear_during_training_are_computed_again(home: Path, whole: dict[str, bytes]) -> None:
    expected = everything(opened(small_data()))
    data, folder = opened(small_data()), only_bank(home)
    for name in ("weak-0", "weak-0.index"):
        (folder / name).unlink()
    assert np.array_equal(stored(data, "weak-0", data.train), expected[VIEWS.index("weak-0")])
    shutil.rmtree(folder)
    assert all(map(np.array_equal, everything(data), expected))
    assert all(map(np.array_equal, everything(opened(small_data())), expected))
    data = opened(small_data())
    shutil.rmtree(folder)
    opened(small_data(seed=5))  # another run had the same thought, and its images have the places of ours
    assert all(map(np.array_equal, everything(data), expected))


def test_features_of_other_images_or_views_are_damage(home: Path, counting: Counting, whole: dict[str, bytes]) -> None:
    """Two rows change places with their digests; a view is replaced by another one, or by one of another trunk."""
    folder, data = only_bank(home), small_data()
    expected = everything(opened(data))
    content, records = (folder / "plain").read_bytes(), index(folder, "plain")
    (folder / "plain").write_bytes(content[ROW : 2 * ROW] + content[:ROW] + content[2 * ROW :])
    records["digest"][:2] = records["digest"][[1, 0]]
    records.tofile(folder / "plain.index")
    stored(opened(data), "plain", np.arange(56))
    assert counting.since() == 2
    assert files(home) == whole
    opened(data, CONFIG.changed({"model.backbone": "tiny2"}))
    (other,) = {*folder.parent.iterdir()} - {folder}
    for source, name in ((other, "plain"), (folder, "weak-1")):
        for suffix in ("", ".index"):
            shutil.copy(source / f"{name}{suffix}", folder / f"weak-0{suffix}")
        assert all(map(np.array_equal, everything(opened(data)), expected))


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
        patch.setattr(rows.shutil, "disk_usage", lambda folder: Usage(10**9, 10**9, 2 * 40 * ROW - 1))
        with pytest.raises(UserError, match=r"the features need \S+ kB, but .* only \S+ kB left; set COTRAIN_HOME"):
            opened(small_data(), more)
        patch.setattr(rows.shutil, "disk_usage", lambda folder: Usage(10**9, 10**9, 2 * 40 * ROW))
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(UserError, match="No space left on device; set COTRAIN_HOME to a folder with room"):
            opened(small_data(), more)
    assert counting.since() == 0
    opened(small_data())
    assert counting.since() == 0
    opened(small_data(), more)
    assert counting.since() == 2 * 40


@pytest.mark.parametrize(("where", "calls"), [("write", 25), ("save", 3)])
def test_a_disk_that_fills_up_keeps_what_is_done(
    where: str, calls: int, home: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many writes, or after the first saves."""
    data, left = small_data(), calls
    method = getattr(building.Store, where)

    def filling(*arguments: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            full()
        method(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(building, "cores", lambda: 1)
        patch.setattr(building, "SAVE_SECONDS", 0)
        patch.setattr(building.Store, where, filling)
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
