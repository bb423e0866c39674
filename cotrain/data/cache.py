"""The decoded copy of a folder: every image once, resized, in one file that the next run opens at once."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from cotrain.data.decode import GREY
from cotrain.data.files import FILES_A_TASK, Found, Workers, in_parts, worker_count
from cotrain.data.home import home
from cotrain.data.imagefile import ImageFile, append_facts
from cotrain.progress import counted
from cotrain.types import UserError

VERSION = 1
LARGEST_KEPT = 96  # images that all have one size up to this keep it
OTHERWISE = 64

Header = list[Any]  # height, width, mode


def decoded(folder: Path, found: Sequence[Found], size: str | None, console: Console) -> ImageFile:
    """The images of `found`, in order, as one file; what did not change since the last time is not decoded again.

    `size` is HEIGHTxWIDTH, or None to choose. A file that cannot be read is a row of zeros, and the facts' `errors`
    say why.
    """
    path = _place(folder, size)
    try:
        old = ImageFile(path)
    except (OSError, ValueError, KeyError):
        old = None
    listing = [[file.path, file.bytes, file.modified] for file in found]
    if old is not None and old.facts["files"] == listing:
        return old
    with _writing(path) as part, Workers(worker_count(len(listing))) as workers:
        append_facts(part, _decode(part, workers, folder, listing, size, old, console))
    return ImageFile(path)


def _place(folder: Path, size: str | None) -> Path:
    key = json.dumps([VERSION, os.fspath(folder.resolve()), size])
    return home() / "images" / f"{folder.resolve().name}-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """A file of another name that gets its own when all went well."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
        try:
            yield part
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot keep the decoded images in {path.parent}: {error.strerror}; "
            "set COTRAIN_HOME to a folder with room for them"
        ) from error


def _decode(
    part: Path,
    workers: Workers,
    folder: Path,
    listing: list[list[Any]],
    size: str | None,
    old: ImageFile | None,
    console: Console,
) -> dict[str, Any]:
    """Writes the pixels to `part`, and returns the facts about them."""
    before = {tuple(file): row for row, file in enumerate(old.facts["files"])} if old else {}
    earlier = {row: before[tuple(file)] for row, file in enumerate(listing) if tuple(file) in before}
    paths = [os.path.join(folder, name) for name, _, _ in listing]

    def answers(rows: list[int], what: str, **task: Any) -> Iterator[tuple[int, Any]]:
        tasks = [{"paths": [paths[row] for row in some], "rows": some, **task} for some in in_parts(rows, FILES_A_TASK)]
        each = (answer for several in workers.map(tasks) for answer in several)
        yield from counted(zip(rows, each, strict=True), len(rows), what, console)

    headers: list[Any] = [None] * len(paths)
    for row, known in earlier.items():
        headers[row] = old.facts["headers"][known]  # type: ignore[union-attr]
    for row, header in answers([row for row in range(len(paths)) if row not in earlier], "looking at images"):
        headers[row] = header
    height, width, channels = shape = _choose_shape([header for header in headers if "error" not in header], size)

    if old is None or tuple(old.shape[1:]) != shape:
        earlier = {}
    _make_room(part, len(paths) * height * width * channels)
    hashes = [0] * len(paths)
    errors = {listing[row][0]: header["error"] for row, header in enumerate(headers) if "error" in header}
    if old is not None:
        _copy(old, earlier, part)
        for row, known in earlier.items():
            hashes[row] = old.facts["hashes"][known]
            if listing[row][0] in old.facts["errors"]:
                errors[listing[row][0]] = old.facts["errors"][listing[row][0]]
    rest = [row for row, header in enumerate(headers) if row not in earlier and "error" not in header]
    for row, answer in answers(rest, "decoding images", into=str(part), shape=shape):
        if isinstance(answer, int):
            hashes[row] = answer
        else:
            errors[listing[row][0]] = answer["error"]
    return {
        "shape": [len(paths), *shape],
        "files": listing,
        "headers": headers,
        "hashes": hashes,
        "errors": dict(sorted(errors.items())),
    }


def _choose_shape(headers: list[Header], size: str | None) -> tuple[int, int, int]:
    """Height, width and channels: as asked, or what serves these images; grey if all are."""
    channels = 1 if headers and all(mode in GREY for _, _, mode in headers) else 3
    if size is not None:
        height, width = map(int, size.split("x"))
        return height, width, channels
    sizes = {(height, width) for height, width, _ in headers}
    if len(sizes) == 1 and max(*(only := sizes.pop())) <= LARGEST_KEPT:
        return *only, channels
    side = min([OTHERWISE, *([round(median(min(height, width) for height, width, _ in headers))] if headers else [])])
    return side, side, channels


def _make_room(part: Path, size: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if free < size:
        raise UserError(
            f"the decoded images take {size / 1e9:.1f} GB, and {part.parent} has {free / 1e9:.1f} GB left; "
            "set COTRAIN_HOME to a folder with room for them, or choose a smaller --size"
        )
    os.truncate(part, size)


def _copy(old: ImageFile, earlier: dict[int, int], part: Path) -> None:
    with open(part, "r+b", buffering=0) as file:
        for rows in in_parts(list(earlier), 1024):
            images = old[[earlier[row] for row in rows]].numpy()
            for row, image in zip(rows, images, strict=True):
                file.seek(row * image.nbytes)
                file.write(np.ascontiguousarray(image).data)
