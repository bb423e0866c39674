"""Whatever is wrong with a file, one kind of error names it."""

import io
import os
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cotrain import UserError
from cotrain.storage.reading import parse_json, read_arrays, read_bytes, read_json


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"NaN", b'{"a": Infinity}', b"1" * 5000])
def test_damaged_json_is_one_line_that_names_the_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read .*a\.json \(.+\)") as error:
        read_json(tmp_path / "a.json")
    assert len(str(error.value)) < 1000
    with pytest.raises(ValueError):
        parse_json(content)


def npz(name: str, content: bytes, how: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        archive.writestr(name, content)
    return file.getvalue()


def npy(header: str, version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header.encode()


def damaged(content: bytes) -> bytes:
    """The same with other bytes in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes(20) + content[middle + 20 :]


ARRAY = io.BytesIO()
np.save(ARRAY, np.random.default_rng(0).integers(0, 9, 500))
DESCRIBED = "{'descr': '%s', 'fortran_order': False, 'shape': %s}"


@pytest.mark.parametrize(
    "content",
    [
        b"PK nothing",
        ARRAY.getvalue(),
        damaged(npz("a.npy", ARRAY.getvalue(), zipfile.ZIP_DEFLATED)),  # zlib.error
        damaged(npz("a.npy", ARRAY.getvalue(), zipfile.ZIP_LZMA)),  # LZMAError
        damaged(npz("a.npy", ARRAY.getvalue(), zipfile.ZIP_BZIP2)),
        npz("a.npy", npy("{'descr': '<f8', 'shape': (3,)\n(((")),  # tokenize.TokenError
        npz("a.npy", npy(DESCRIBED % ("<f8", f"({2**62}, {2**62})"))),  # OverflowError
        npz("a.npy", npy(DESCRIBED % ("<f8", f"({2**44},)"))),  # MemoryError
        npz("a.npy", npy(DESCRIBED % ("|O", "(3,)"))),
        npz("a.npy", b"no array"),
        npz("a.npy", npy("(" * 3000 + ")" * 3000)),
        npz("a.npy", npy(DESCRIBED % ("<f8", "(3,)"), b"\x09\x09")),
    ],
)
def test_a_damaged_npz_is_a_value_error_with_a_reason(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r".+"):
        read_arrays(tmp_path / "a.npz")


def test_arrays_are_announced_before_they_are_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(1_000_000, np.uint8))

    def refuse(size: int) -> None:
        assert size > 1_000_000
        raise UserError("too large")

    with pytest.raises(UserError, match="too large"):
        read_arrays(tmp_path / "a.npz", refuse)
    assert read_arrays(tmp_path / "a.npz")["a"].sum() == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders")
def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # the names of sockets are short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for name in ("pipe", "socket", "."):
            with pytest.raises(OSError):
                read_bytes(tmp_path / name)
        with pytest.raises(UserError, match=r"cannot read .*pipe \(It is not a regular file\)"):
            read_json(tmp_path / "pipe")
