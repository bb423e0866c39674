"""Decode an image file to uint8 pixels of the size the network expects.

This file is also the decode worker's program. The worker starts fast because it imports neither torch nor the package.
It reads one JSON task per line and answers each with one line. Pixels that are sent back follow that line as bytes.
"""

import hashlib
import json
import math
import os
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

if __name__ == "__main__":  # the worker cannot wait for the package, and is told where the file is
    open_regular = runpy.run_path(sys.argv[1])["open_regular"]
else:
    from cotrain.storage.regular import open_regular

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"}
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
MODES = {1: "L", 3: "RGB"}
GREY = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F"}
ORIENTATION = 0x0112
BITS, STRIP, TILE_WIDTH, TILE_HEIGHT = 258, 278, 322, 323  # TIFF: bits per sample, and what is decoded at a time
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = {5, 6, 7, 8}
LARGEST_SIDE = 65_535  # pixels; JPEG allows no more, and resizing a longer side takes gigabytes
MOST_BYTES = 2**29  # of memory for decoding one image
STORED = {"1": 1, "L": 1, "P": 1} | dict.fromkeys(("I;16", "I;16B", "I;16L", "I;16N"), 2)  # bytes per pixel; others 4
CONVERTED = 4  # bytes per pixel
IN_WEBP, IN_PROGRESSIVE = 12, 6  # bytes per pixel that a decoder needs besides; of a progressive JPEG at any scale
BAND = 2**20  # pixels that are converted at a time
DRAFT = 1.5  # decode a JPEG at a reduced scale that is still at least this many times larger than the target size


class Unreadable(ValueError):
    """The file is not a usable image."""


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Image.Image]:
    """The image, not yet decoded. Whatever goes wrong while it is open makes it unreadable, and ends nothing else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with open_regular(path) as content:
                if os.fstat(content.fileno()).st_size == 0:
                    raise Unreadable("the file is empty")
                with Image.open(content, formats=FORMATS) as file:
                    yield file
    except Exception as error:  # Pillow's readers raise all kinds of errors on damaged files
        raise Unreadable(_reason(error)) from error


def _prepare(file: Image.Image, side: int, mode: str, more: int = 0) -> None:
    """Scale a JPEG down to at least `side`, and refuse an image that takes too much memory, before it is decoded."""
    width, height = file.size
    file.draft(None, (side, side))  # None: any mode; has an effect on JPEGs only
    pixels, decoder = file.width * file.height, _decoder_memory(file, width * height)
    converted = 0 if _is_plain(file, mode) else CONVERTED * pixels
    needed = STORED.get(file.mode, 4) * pixels + max(converted + more, decoder)
    _check_size(width, height, needed)
    if _orientation(file) in TURNS:  # which a PNG has to be decoded for
        _check_size(width, height, needed + CONVERTED * pixels)


def _check_size(width: int, height: int, needed: int) -> None:
    if max(width, height) > LARGEST_SIDE or needed > MOST_BYTES:
        raise Unreadable(
            f"it has {width}x{height} pixels; at most {LARGEST_SIDE:,} on a side and {MOST_BYTES / 1e6:,.0f} MB of "
            f"memory are allowed, and decoding it takes {needed / 1e6:,.0f} MB"
        )


def _decoder_memory(file: Image.Image, pixels: int) -> int:
    """Bytes besides those of the image until it is decoded. Those of a progressive JPEG are the same at any scale."""
    if isinstance(file, TiffImageFile):
        tags = file.tag_v2
        columns, rows = (
            tags.get(TILE_WIDTH, file.width),
            tags.get(TILE_HEIGHT, min(tags.get(STRIP, file.height), file.height)),
        )
        return columns * rows * sum(tags.get(BITS, (1,))) // 8
    return pixels * (IN_WEBP if file.format == "WEBP" else IN_PROGRESSIVE if file.info.get("progressive") else 0)


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory to decode it"
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image of a known format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def peek(path: str | os.PathLike[str]) -> tuple[int, int, str]:
    """Height, width and mode of the upright image, read from the header only."""
    with _opened(path) as file:
        width, height = file.size
        _prepare(file, 1, "RGB")
        return (width, height, file.mode) if _orientation(file) in SIDEWAYS else (height, width, file.mode)


def read_image(path: str | os.PathLike[str], height: int, width: int, channels: int) -> NDArray[np.uint8]:
    """(h, w, c): rotated to the EXIF orientation, converted to grey or RGB, and resized."""
    with _opened(path) as file:
        _prepare(file, math.ceil(DRAFT * max(height, width)), MODES[channels], CONVERTED * width * max(file.size))
        turn = TURNS.get(_orientation(file))
        image = _converted(file, MODES[channels])
        image = image.transpose(turn) if turn is not None else image
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        return np.asarray(image).reshape(height, width, channels)


def _orientation(file: Image.Image) -> int:
    """The EXIF orientation; 1 if it is missing or invalid."""
    try:
        orientation = file.getexif().get(ORIENTATION)
    except Exception:  # damaged EXIF data do not make the image unreadable
        return 1
    return orientation if isinstance(orientation, int) else 1


def _is_plain(image: Image.Image, mode: str) -> bool:
    return image.mode == mode and not image.has_transparency_data


def _converted(file: Image.Image, mode: str) -> Image.Image:
    """In grey or RGB. The steps between take several times the memory of an image, so they are done in bands."""
    file.load()
    if _is_plain(file, mode):
        return file
    image = Image.new(mode, file.size)
    rows = max(1, BAND // file.width)
    for top in range(0, file.height, rows):
        box = (0, top, file.width, min(top + rows, file.height))
        image.paste(_eight_bits(file.crop(box)).convert(mode), box)
    return image


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit levels to 8 bits and show transparent pixels as white."""
    if image.mode.startswith("I;16"):
        levels = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((levels + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise Unreadable("its pixels have 32 bits; save it with 8 or 16 bits")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA"))
    return image


def content_hash(image: NDArray[np.uint8]) -> int:
    """A 64-bit hash of the pixels."""
    return int.from_bytes(hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8).digest(), "little")


def carry_out(task: dict[str, Any]) -> list[Any] | dict[str, str]:
    """For each path, return its header, or write its pixels and return their hash; {"error": why} for a bad file.

    If the pixels cannot be written, the answer to the whole task is {"failed": why}.
    """
    if "into" not in task:
        return [_or_error(peek, path) for path in task["paths"]]
    try:
        with open(task["into"], "r+b") as file:

            def store(path: str, row: int) -> int:
                pixels = np.ascontiguousarray(read_image(path, *task["shape"]))
                file.seek(row * pixels.nbytes)
                file.write(pixels.data)
                return content_hash(pixels)

            return [_or_error(store, path, row) for path, row in zip(task["paths"], task["rows"], strict=True)]
    except OSError as error:
        return {"failed": str(error.strerror)}


def _or_error(work: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return work(*arguments)
    except Unreadable as error:
        return {"error": str(error)}


def read_images(paths: Sequence[str], shape: Sequence[int]) -> tuple[NDArray[np.uint8], list[str | None]]:
    """(n, h, w, c) pixels, and for each file why it is unreadable. The pixels of an unreadable file are zeros."""
    images = np.zeros((len(paths), *shape), np.uint8)
    errors: list[str | None] = [None] * len(paths)
    for row, path in enumerate(paths):
        try:
            images[row] = read_image(path, *shape)
        except Unreadable as error:
            errors[row] = str(error)
    return images, errors


def serve(tasks: BinaryIO, answers: BinaryIO) -> None:
    """Answer every task. One with a shape but no file to write to gets the pixels of its images sent back."""
    for line in tasks:
        task = json.loads(line)
        if "shape" in task and "into" not in task:
            images, errors = read_images(task["paths"], task["shape"])
            answers.write(json.dumps(errors).encode() + b"\n")
            answers.write(images.data)
        else:
            answers.write(json.dumps(carry_out(task)).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
