"""An image file, as people have it, to uint8 pixels of the size a network takes.

Also a program of its own: a decode worker, which starts at once because it loads neither torch nor the package. It
reads a task a line, JSON, and answers each with a line.
"""

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"}
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
MODES = {1: "L", 3: "RGB"}
GREY = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F"}
ORIENTATION = 0x0112
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
DRAFT = 2  # a JPEG is decoded at a reduced scale as long as it stays this many times larger than what is wanted


class Unreadable(ValueError):
    """This file is not an image that can be used."""


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Image.Image]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as file:
                yield file
    except MemoryError:
        raise
    except Exception as error:  # Pillow's readers raise whatever a damaged file leads them into
        raise Unreadable(_reason(error, path)) from error


def _reason(error: Exception, path: str | os.PathLike[str]) -> str:
    if os.path.exists(path) and os.path.getsize(path) == 0:
        return "the file is empty"
    return " ".join(str(error).split()) or type(error).__name__


def peek(path: str | os.PathLike[str]) -> tuple[int, int, str]:
    """Height, width and mode from the file's header alone, upright."""
    with _opened(path) as file:
        width, height = file.size
        return (width, height, file.mode) if _turned(file) in SIDEWAYS else (height, width, file.mode)


def read_image(path: str | os.PathLike[str], height: int, width: int, channels: int) -> NDArray[np.uint8]:
    """(h, w, c): turned upright by its EXIF orientation, converted to grey or RGB, resized."""
    side = DRAFT * max(height, width)
    with _opened(path) as file:
        file.draft(None, (side, side))  # of any mode; only JPEGs do anything
        turn = TURNS.get(_turned(file))
        upright = file.transpose(turn) if turn is not None else file
        image = _eight_bits(upright).convert(MODES[channels])
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image).reshape(height, width, channels)


def _turned(file: Image.Image) -> int:
    """The orientation that the camera noted, 1 if there is none or what is noted makes no sense."""
    try:
        noted = file.getexif().get(ORIENTATION)
    except Exception:  # a damaged note does not make the picture unreadable
        return 1
    return noted if isinstance(noted, int) else 1


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit levels are scaled to 8 bits, and what is transparent shows white."""
    if image.mode.startswith("I;16"):
        levels = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((levels + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise Unreadable("its pixels have 32 bits; save it with 8 or 16")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA"))
    return image


def content_hash(image: NDArray[np.uint8]) -> int:
    """64 bits that differ when pixels differ."""
    return int.from_bytes(hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8).digest(), "little")


def carry_out(task: dict[str, Any]) -> list[Any] | dict[str, str]:
    """For each path of the task its header, or the hash of its pixels after writing them; {"error": why} if neither.

    {"failed": why} for the whole task where the pixels cannot be written.
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


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(carry_out(json.loads(line))), flush=True)
