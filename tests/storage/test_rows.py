"""Rows and files that can be computed again: what is saved is there, and what is wrong is not."""

import errno
import os
from io import FileIO
from pathlib import Path

import numpy as np
import pytest

from cotrain.storage.rows import RECORD, Damaged, Rows, keep, kept, keyed

VALUES = np.arange(12, dtype=np.float32).reshape(6, 2)
KEYS = np.array([50, 10, 40, 20, 60, 30], np.uint64)


def rows_in(folder: Path, whose: str = "ours") -> Rows:
    return Rows(folder / "rows", np.float32, (2,), keyed(whose))


@pytest.fixture
def filled(tmp_path: Path) -> Rows:
    rows = rows_in(tmp_path)
    rows.write(rows.add(KEYS), VALUES)
    rows.save()
    return rows


def test_rows_are_found_by_their_keys(filled: Rows, tmp_path: Path) -> None:
    again = rows_in(tmp_path)
    places = again.places(np.array([20, 7, 50, 20], np.uint64))
    assert places.tolist() == [3, -1, 0, 3]
    np.testing.assert_array_equal(again.read(places[[0, 2]]), VALUES[[3, 0]])
    np.testing.assert_array_equal(again.all(), VALUES)
    assert again.add(np.array([60, 70, 80, 70], np.uint64)).tolist() == [4, 6, 7, 6]
    assert rows_in(tmp_path).places(KEYS).tolist() == [*range(6)], "a key keeps its place"


def test_what_is_read_may_be_changed_without_changing_the_file(filled: Rows, tmp_path: Path) -> None:
    filled.read(np.arange(3))[:] = 99
    filled.all()[:] = 99
    np.testing.assert_array_equal(rows_in(tmp_path).all(), VALUES)


def test_rows_that_are_not_saved_are_missing(filled: Rows, tmp_path: Path) -> None:
    filled.write(filled.add(np.array([70], np.uint64)), VALUES[:1])
    again = rows_in(tmp_path)
    np.testing.assert_array_equal(again.read(np.arange(6)), VALUES)
    for missing in ([6], [0, 6], [7], [-1]):
        with pytest.raises(Damaged):
            again.read(np.array(missing))
    filled.save()
    np.testing.assert_array_equal(rows_in(tmp_path).read([6]), VALUES[:1])


def test_what_was_added_after_a_read_can_be_read(filled: Rows) -> None:
    filled.read([0])
    places = filled.add(np.arange(1000, 3000, dtype=np.uint64))
    filled.write(places, np.ones((2000, 2)))
    filled.save()
    assert filled.read(places).all()


@pytest.mark.parametrize("byte", [0, 9, 47])
def test_a_changed_byte_costs_its_row(byte: int, filled: Rows, tmp_path: Path) -> None:
    content = bytearray(filled.path.read_bytes())
    content[byte] ^= 1
    filled.path.write_bytes(content)
    again = rows_in(tmp_path)
    others = np.setdiff1d(np.arange(6), byte // 8)
    np.testing.assert_array_equal(again.read(others), VALUES[others])
    with pytest.raises(Damaged, match=str(filled.path)):
        again.read([byte // 8])
    with pytest.raises(Damaged):
        again.all()
    assert again.drop_damaged().tolist() == [byte // 8]
    assert (again.digests == 0).nonzero()[0].tolist() == [byte // 8]
    again.write(again.add(KEYS[[byte // 8]]), VALUES[[byte // 8]])
    again.save()
    np.testing.assert_array_equal(rows_in(tmp_path).all(), VALUES)


@pytest.mark.parametrize("kept_bytes", [0, 3, 17])
@pytest.mark.parametrize("which", ["rows", "rows.index"])
def test_a_truncated_file_holds_what_is_left(which: str, kept_bytes: int, filled: Rows, tmp_path: Path) -> None:
    os.truncate(tmp_path / which, kept_bytes)
    again = rows_in(tmp_path)
    left = kept_bytes // (8 if which == "rows" else RECORD.itemsize)
    assert (again.digests != 0).sum() == left
    again.add(np.array([99], np.uint64))
    again.reserve()
    assert (rows_in(tmp_path).digests != 0).sum() == left, "the zeros that the file grows by are no rows"


def test_rows_of_another_owner_are_damage(filled: Rows, tmp_path: Path) -> None:
    theirs = rows_in(tmp_path, "theirs")
    with pytest.raises(Damaged):
        theirs.read([0])
    assert len(theirs.drop_damaged()) == 6


def test_half_a_row_is_not_a_row(filled: Rows, tmp_path: Path) -> None:
    """A disk may take a part of what is written without an error."""

    class Half(FileIO):
        def write(self, content: bytes) -> int:  # type: ignore[override]
            return super().write(content[:5])

    filled.write(filled.add(np.array([70], np.uint64)), VALUES[:1])
    filled.files["r+b"].close()
    filled.files["r+b"] = Half(filled.path, "r+b")
    with pytest.raises(OSError, match="No space left") as caught:
        filled.write(filled.add(np.array([80], np.uint64)), VALUES[:1])
    assert caught.value.errno == errno.ENOSPC
    filled.save()
    assert rows_in(tmp_path).digests[6:].astype(bool).tolist() == [True, False]


def test_a_deleted_file_stays_readable_while_it_is_open(filled: Rows) -> None:
    filled.read([0])
    filled.path.unlink()
    np.testing.assert_array_equal(filled.read(np.arange(6)), VALUES)


def test_a_kept_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    assert kept(path, "ours") is None
    keep(path, b"content", "ours")
    assert kept(path, "ours") == b"content"
    whole = path.read_bytes()
    for content in (b"", whole[:-1], whole + b"x", whole[1:], bytes([whole[0] ^ 1]) + whole[1:]):
        path.write_bytes(content)
        assert kept(path, "ours") is None and not path.exists()
    path.write_bytes(whole)
    assert kept(path, "theirs") is None
