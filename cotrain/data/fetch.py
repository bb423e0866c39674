"""Download public datasets. Downloads resume after an interruption and are kept only if their checksum matches."""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from cotrain.progress import PLAIN_SECONDS, clock, say, size_of
from cotrain.storage.location import home
from cotrain.storage.reading import read_json
from cotrain.storage.regular import open_regular
from cotrain.storage.writing import write_json
from cotrain.types import UserError

CHUNK = 1 << 18
TIMEOUT = 30.0  # seconds without a byte
PAUSES = (1.0, 4.0, 15.0)  # seconds between attempts
MEGABYTE = 1e6
LARGEST = 1 << 31  # bytes of a file whose size is not known
CHECKED = ".checked.json"  # which files of a folder had the right checksum


@dataclass(frozen=True)
class RemoteFile:
    url: str
    sha256: str
    size: int | None = None  # bytes

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def most(self) -> int:
        """Bytes; a server that sends more does not send this file."""
        return LARGEST if self.size is None else self.size


FETCHABLE: dict[str, tuple[RemoteFile, ...]] = {
    "cifar10": (
        RemoteFile(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            170_498_071,
        ),
    ),
    "cifar100": (
        RemoteFile(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            169_001_437,
        ),
    ),
    "svhn": (
        RemoteFile(
            "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
            "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            182_040_794,
        ),
        RemoteFile(
            "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            64_275_384,
        ),
    ),
}
NAMES = (*FETCHABLE, "miniimagenet")  # miniimagenet has no public download


class Broken(Exception):
    """A download ended early; another attempt can resume it."""


def data_home() -> Path:
    return home() / "data"


def placed(name: str) -> Path:
    """The folder of a named dataset."""
    _check_name(name)
    folder = data_home() / name
    if folder.is_dir() and any(child.suffix != ".part" and child.name != CHECKED for child in folder.iterdir()):
        _check_placed(name, folder)
        return folder
    if name not in FETCHABLE:
        raise UserError(_how_to_place(name))
    raise UserError(f"{name} is not at {folder}; download it with `cotrain data fetch {name}`")


def _check_placed(name: str, folder: Path) -> None:
    """Refuse official files with another content, which somebody may have put there. Each is hashed once."""
    known = _checked_before(folder / CHECKED)
    found = {}
    for remote in FETCHABLE.get(name, ()):
        path = folder / remote.name
        if path.is_file():
            status = path.stat()
            stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
            found[remote.name] = stamp
            if known.get(remote.name) != stamp and (sha256 := _sha256(path)) != remote.sha256:
                raise UserError(
                    f"{path} is not the official file: its SHA-256 is {sha256}, not {remote.sha256}; move it away and "
                    f"download it with `cotrain data fetch {name}`, or give the path of your own data"
                )
    if found != known:
        with suppress(UserError):  # a read-only folder is hashed every time
            write_json(folder / CHECKED, found)


def _checked_before(path: Path) -> dict[str, Any]:
    """The stamps of files that were right."""
    try:
        known = read_json(path) if path.exists() else {}
    except UserError:
        return {}
    return known if isinstance(known, dict) else {}


def fetch(
    name: str,
    console: Console,
    *,
    into: Path | None = None,
    files: tuple[RemoteFile, ...] | None = None,
    pauses: tuple[float, ...] = PAUSES,
) -> Path:
    """Download the files that are missing and return their folder."""
    if files is None:
        _check_name(name)
        if name not in FETCHABLE:
            raise UserError(_how_to_place(name))
        files = FETCHABLE[name]
    folder = into or data_home() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for remote in files:
            _fetch_file(remote, folder / remote.name, console, pauses)
    except OSError as error:
        raise UserError(
            f"{name} cannot be written to {folder} ({error}); free some space, or set COTRAIN_HOME to another folder"
        ) from error
    return folder


def _check_name(name: str) -> None:
    if name not in NAMES:
        raise UserError(f"unknown dataset {name}; choose one of: {', '.join(NAMES)}")


def _how_to_place(name: str) -> str:
    return (
        f"{name} has no public download, because ImageNet's terms must be accepted; copy it to {data_home() / name} as "
        "one folder of JPEGs per class, or as train.csv, val.csv and test.csv (filename,label) with a folder images"
    )


def _fetch_file(remote: RemoteFile, target: Path, console: Console, pauses: tuple[float, ...]) -> None:
    if target.exists():
        found = _sha256(target)
        if found != remote.sha256:
            raise UserError(
                f"{target} already exists with SHA-256 {found}, not {remote.sha256}; move it away to download it again"
            )
        say(console, f"{remote.name}: already downloaded")
        return
    part = target.with_name(target.name + ".part")
    _download_with_retries(remote, part, target, console, pauses)
    found = _sha256(part)
    if found != remote.sha256:
        part.unlink()
        raise UserError(
            f"{remote.url} sent a file with SHA-256 {found}, not {remote.sha256}; it was deleted, so try again"
        )
    part.replace(target)
    say(console, f"{remote.name}: {size_of(target.stat().st_size)}, checksum correct")


def _download_with_retries(
    remote: RemoteFile, part: Path, target: Path, console: Console, pauses: tuple[float, ...]
) -> None:
    """Retry after each pause. The pauses start over whenever an attempt has made progress."""
    most, left = _size(part), iter(pauses)
    while True:
        try:
            _download(remote, part, console)
            return
        except HTTPError as error:
            error.close()
            reason, pause = f"HTTP {error.code} {error.reason}", None
        except Broken as broken:
            if _size(part) > most:
                most, left = _size(part), iter(pauses)
            reason, pause = str(broken), next(left, None)
        if pause is None:
            raise UserError(
                f"{remote.url} could not be downloaded: {reason}; try again later, or copy it to {target} yourself"
            )
        say(console, f"{remote.name}: {reason}; retrying in {pause:g} s")
        time.sleep(pause)


def _download(remote: RemoteFile, part: Path, console: Console) -> None:
    """Append the missing rest of the file to `part`."""
    try:
        response = _request(remote.url, _size(part))
    except HTTPError as error:
        if error.code != 416 or not _size(part):
            raise
        error.close()  # `part` already has every byte, or more
        if _sha256(part) == remote.sha256:
            return
        part.unlink()
        response = _request(remote.url, 0)
    with response:
        done = _size(part) if response.status == 206 else 0
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else remote.size
        with open(part, "ab" if done else "wb") as file, _progress(console, remote.name, done, total) as show:
            for chunk in _chunks(response):
                done += len(chunk)
                if done > remote.most:
                    break
                file.write(chunk)
                show(done)
    if done > remote.most:
        part.unlink()
        raise UserError(f"{remote.url} sends more than the {remote.most:,} bytes it should have; it was deleted")
    if total is not None and done < total:
        raise Broken(f"the server stopped after {done} of {total} bytes")


def _request(url: str, start: int) -> HTTPResponse:
    headers = {"User-Agent": "cotrain"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        if error.code < 500 and error.code != 429:
            raise
        error.close()
        raise Broken(f"HTTP {error.code} {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise Broken(str(getattr(error, "reason", error)) or type(error).__name__) from error
    return response


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := response.read(CHUNK):
            yield chunk
    except (OSError, HTTPException) as error:
        raise Broken(str(error) or type(error).__name__) from error


@contextmanager
def _progress(console: Console, title: str, first: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """A live bar in a terminal; elsewhere a line every few seconds."""
    began = last_line = time.monotonic()
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(title, completed=first, total=total)

        def show(done: int) -> None:
            nonlocal last_line
            bar.update(task, completed=done)
            now = time.monotonic()
            if console.is_terminal or now - last_line < PLAIN_SECONDS:
                return
            last_line = now
            rate = (done - first) / (now - began)
            rest = f" of {total / MEGABYTE:.1f} MB, {clock((total - done) / rate)} left" if total else " MB"
            say(console, f"{title}: {done / MEGABYTE:.1f}{rest}, {rate / MEGABYTE:.1f} MB/s")

        yield show


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
