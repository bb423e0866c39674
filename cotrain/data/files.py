"""Image files, as people have them, to uint8 arrays of the size a network takes."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from cotrain.types import UserError

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"}
MODES = {1: "L", 3: "RGB"}


class Unreadable(ValueError):
    """This file is not an image that can be used."""


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The files named, and every image file in the folders named, in order."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
            if not inside:
                raise UserError(f"there is no image file in {path} ({', '.join(sorted(SUFFIXES))})")
            found += inside
        else:
            found.append(path)
    return found


def read_image(path: Path, height: int, width: int, channels: int) -> NDArray[np.uint8]:
    """(h, w, c): turned upright by its EXIF orientation, converted to grey or RGB, resized."""
    if channels not in MODES:
        raise UserError(f"the network takes images of {channels} channels; image files have 1 or 3")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as file:
                image = _eight_bits(ImageOps.exif_transpose(file)).convert(MODES[channels])
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Unreadable(" ".join(str(error).split()) or type(error).__name__) from error
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image).reshape(height, width, channels)


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


def in_parts(paths: Sequence[Path], size: int) -> Iterator[Sequence[Path]]:
    for start in range(0, len(paths), size):
        yield paths[start : start + size]
