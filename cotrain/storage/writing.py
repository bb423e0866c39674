"""Write files so that they are either complete or absent, whoever else writes them and whatever lies beside them."""

import json
import os
import platform
import re
import sys
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

import psutil

from cotrain.types import UserError

PARTIAL = ".partial"
OWNER = re.compile(r"\.([0-9a-f]{8})-(\d{1,9})-[0-9a-f]{16}\.partial")  # machine and process, at the end of a name
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
CLOCKS = 3600.0  # seconds by which clocks may differ or jump
LONGEST = 40  # characters of a name that becomes part of another one; file systems allow 255 bytes
BUSY = {5, 32}  # Windows: access denied, sharing violation; another process has the file open
BUSY_SECONDS = 0.5  # as long as readers such as virus scanners keep a new file open


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file so that a kill, a full disk or another writer leaves the old content or the new, never a mix."""
    write_pieces(path, [content])


def write_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """The same for content that is made piece by piece, and need not be in memory as a whole."""
    try:
        with replacing(path) as file:
            file.writelines(pieces)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; the previous file, if any, is unchanged") from error


def write_json(path: Path, value: Any) -> None:
    pieces = json.JSONEncoder(indent=2, allow_nan=False).iterencode(value)
    write_pieces(path, (piece.encode() for piece in chain(pieces, "\n")))


@contextmanager
def replacing(path: Path, *, within: Path | None = None, mode: int | None = None) -> Iterator[IO[bytes]]:
    """A new file, in `within` or beside `path`, that takes the place of `path` if the block ends without an error."""
    temporary, descriptor = new_file(path, within)
    try:
        with open(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        replace_file(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_file(source: Path, path: Path) -> None:
    """`os.replace`, tried again for a while if another process has one of the files open, which only Windows minds."""
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return os.replace(source, path)
        except PermissionError as error:
            if getattr(error, "winerror", None) not in BUSY or time.monotonic() > end:
                raise
        time.sleep(BUSY_SECONDS / 25)


def new_file(path: Path, within: Path | None = None) -> tuple[Path, int]:
    """A temporary file for `path` and its open descriptor. Nobody can guess its name, and no link is followed."""
    name = f".{path.name[:LONGEST]}.{_machine()}-{os.getpid()}-{token_hex(8)}{PARTIAL}"
    temporary = (within or path.parent) / name
    return temporary, os.open(temporary, NEW, 0o666)


def sync_folder(folder: Path) -> None:
    """Sync the folder, so that a rename in it survives a power cut. Windows cannot open a folder for this."""
    if sys.platform == "win32":
        return
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def is_partial(name: str) -> bool:
    """Whether a file of this name is one that a killed process left behind, or that another one is writing."""
    return name.startswith(".") and name.endswith(PARTIAL)


def names_in(folder: Path) -> set[str]:
    """What the folder holds, apart from such files."""
    return {path.name for path in folder.iterdir() if not is_partial(path.name)}


def remove_abandoned(folder: Path) -> None:
    """Delete the temporary files of processes of this machine that are gone."""
    with suppress(OSError):  # a folder that cannot be read or written: whoever needs it will say so
        for path in folder.iterdir():
            owner = OWNER.search(path.name) if is_partial(path.name) else None
            if owner and owner[1] == _machine() and not _is_alive(int(owner[2]), path.lstat().st_mtime):
                path.unlink(missing_ok=True)


def _is_alive(process: int, time: float) -> bool:
    """Whether the process that wrote a file at this time still runs. A later one may have the same number."""
    try:
        return psutil.Process(process).create_time() < time + CLOCKS
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _machine() -> str:
    return f"{zlib.crc32(platform.node().encode()):08x}"


def make_folder(folder: Path, markers: Collection[str]) -> None:
    """Create the folder, or reuse it if it is empty or holds one of the marker files and no run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = names_in(folder)
    except OSError as error:
        raise UserError(f"cannot create the folder {folder}: {error.strerror}; choose another --out") from error
    if "config.json" in present:
        raise UserError(f"{folder} is a run; choose another --out")
    if present and present.isdisjoint(markers):
        raise UserError(f"{folder} contains other files ({min(present)}); choose another --out")
