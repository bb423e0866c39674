"""SVHN, from small .mat files as the official ones."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from cotrain import UserError
from cotrain.data.formats.svhn import is_svhn, load_svhn
from cotrain.data.mat import read_mat

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (17, 32, 32, 3), np.uint8)
DIGITS = RNG.permutation(17) % 10


def mat(rows: slice, **changed: Any) -> dict[str, Any]:
    digits = DIGITS[rows, None].astype(np.uint8)
    arrays = {"X": IMAGES[rows].transpose(1, 2, 3, 0), "y": np.where(digits == 0, np.uint8(10), digits)} | changed
    return {key: array for key, array in arrays.items() if array is not None}


def write(folder: Path, **changed: Any) -> Path:
    """Both files, the test file with some of its arrays changed."""
    folder.mkdir(exist_ok=True)
    savemat(folder / "train_32x32.mat", mat(slice(12)), do_compression=True)
    savemat(folder / "test_32x32.mat", mat(slice(12, 17), **changed), do_compression=True)
    return folder


def refused(folder: Path) -> str:
    assert is_svhn(folder)
    with pytest.raises(UserError) as error:
        load_svhn(folder)
    message = str(error.value)
    assert str(folder / "test_32x32.mat") in message and "\n" not in message
    return message


def test_images_and_digits_are_as_saved(tmp_path: Path) -> None:
    data = load_svhn(write(tmp_path))
    np.testing.assert_array_equal(data.images[:], IMAGES)
    np.testing.assert_array_equal(data.labels, DIGITS)
    assert data.train.tolist() == list(range(12)) and data.test.tolist() == list(range(12, 17)) and not len(data.valid)
    assert data.classes == tuple("0123456789") and data.name == "svhn" and not data.mirror
    assert data.source == str(tmp_path.resolve()) and "extra" not in data.layout


def test_the_extra_file_is_said_to_be_unused(tmp_path: Path) -> None:
    (tmp_path / "extra_32x32.mat").write_bytes(b"not even read")
    assert not is_svhn(tmp_path)
    assert load_svhn(write(tmp_path)).layout == (
        "SVHN, train_32x32.mat and test_32x32.mat; extra_32x32.mat is not used"
    )


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert not is_svhn(tmp_path) and not is_svhn(tmp_path / "absent")
    (write(tmp_path) / "test_32x32.mat").unlink()
    assert "test_32x32.mat does not exist; SVHN needs train_32x32.mat and test_32x32.mat" in refused(tmp_path)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"X": None}, "has no array X"),
        ({"y": None}, "has no array y"),
        ({"X": np.zeros((32, 32, 3, 5))}, "X is float64 of shape (32, 32, 3, 5); expected uint8 (32, 32, 3, N)"),
        ({"X": np.zeros((5, 32, 32, 3), np.uint8)}, "X is uint8 of shape (5, 32, 32, 3)"),
        ({"X": np.zeros((32, 32, 3), np.uint8)}, "X is uint8 of shape (32, 32, 3);"),
        ({"X": np.array([1, "a"], object)}, "X is not an array of real numbers"),
        ({"X": {"field": 1}}, "X is not an array of real numbers"),
        ({"X": np.zeros((32, 32, 3, 5), complex)}, "X is not an array of real numbers"),
        ({"y": np.ones((4, 1), np.uint8)}, "y is uint8 of shape (4, 1); expected integers of shape (5, 1)"),
        ({"y": np.ones((5, 1))}, "y is float64 of shape (5, 1)"),
        ({"y": "words"}, "y is not an array of real numbers"),
        ({"y": np.array([[1], [2], [0], [4], [5]], np.uint8)}, "row 2 has label 0; labels run from 1 to 10"),
        ({"y": np.array([[1], [2], [3], [11], [5]], np.uint8)}, "row 3 has label 11; labels run from 1 to 10"),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    assert why in refused(write(tmp_path, **changed))


def test_other_variables_are_not_loaded(tmp_path: Path) -> None:
    assert len(load_svhn(write(tmp_path, other=np.array([1, "a"], object))).images) == 17


def test_files_of_other_kinds_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path) / "test_32x32.mat"
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    hdf5 = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x00" * 384 + b"\x89HDF\r\n\x1a\n"
    for content in (whole[:-20], whole[: len(whole) // 2], whole[:140], bytes(flipped)):
        file.write_bytes(content)
        assert "is not a readable SVHN file" in refused(tmp_path)
    for content in (whole[:60], b"", b"plain words\n" * 50, hdf5, bytes(1000)):
        file.write_bytes(content)
        assert "it is not a compressed MATLAB 5 to 7 file" in refused(tmp_path)
    savemat(file, mat(slice(12, 17)), do_compression=False)
    assert "it is not a compressed MATLAB 5 to 7 file" in refused(tmp_path)


TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 3, 4, 5), (32, 32, 3, 2), (0, 4)], ids=str)
@pytest.mark.parametrize("name", ["X", "a_name_of_some_length"])
def test_arrays_are_those_that_scipy_reads(shape: tuple[int, ...], name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    for number, kind in enumerate(TYPES):
        array = np.random.default_rng(number).integers(0, 100, shape).astype(kind)
        savemat(path, {"other": [1.5], name: array}, do_compression=True)
        (found,) = read_mat(path, (name,), lambda size: None).values()
        expected = loadmat(path)[name]
        assert found.dtype == expected.dtype == kind
        np.testing.assert_array_equal(found, expected)


def test_the_size_is_checked_before_an_array_is_unpacked(tmp_path: Path) -> None:
    def refuse(size: int) -> None:
        assert size >= 10**8
        raise UserError("too large")

    savemat(tmp_path / "a.mat", {"X": np.zeros((10, 10**7), np.uint8)}, do_compression=True)
    with pytest.raises(UserError, match="too large"):
        read_mat(tmp_path / "a.mat", ("X",), refuse)


CRASHES_SCIPY = (  # after the header; found by fuzzing
    "DwAAAEsAAAB4nO3KORGAAAxFwXAONAwSkECJFPwr4XNIoNzNvKTJUlXHXjXmTmmu15DWtH11qU9N5sxtn3V/7gUAAAAAAAAA"
    "AAAAAPCnC3Y0AdAPAAAAKgAAAHic42NgYDAAYjYg5gBiTgYIYIXyWYCYEYwZGSqBNBNQhJGJmQsAGPAA+Q=="
)


def test_a_file_that_crashes_scipy_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path) / "test_32x32.mat"
    file.write_bytes(file.read_bytes()[:128] + base64.b64decode(CRASHES_SCIPY))
    assert "is not a readable SVHN file" in refused(tmp_path)
