"""Arrays of numbers in compressed MATLAB 5 to 7 files. scipy reads more, but some damaged files crash it."""

import struct
import zlib
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotrain.storage.reading import read_bytes

HEADER = 128  # bytes
MATRIX, COMPRESSED = 14, 15  # kinds of elements
TAG = struct.Struct("<II")  # kind, bytes
HEAD = 4096  # bytes of a variable that hold its class, its shape and its name
NUMBERS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
NUMERIC_CLASSES = range(6, 16)  # not cells, structures, objects, text and sparse matrices
COMPLEX = 0x800


def read_mat(path: Path, wanted: Container[str], check: Callable[[int], object]) -> dict[str, NDArray[Any]]:
    """The wanted arrays, in the type that they are saved in. Whatever is wrong with the file is a ValueError.

    `check` gets the number of bytes of each array before it is unpacked.
    """
    content = read_bytes(path)
    kind = TAG.unpack_from(content, HEADER)[0] if len(content) >= HEADER + TAG.size else None
    if not content.startswith(b"MATLAB 5.0 MAT-file") or kind != COMPRESSED:
        raise ValueError("it is not a compressed MATLAB 5 to 7 file")
    found: dict[str, NDArray[Any]] = {}
    try:
        place = HEADER
        while place < len(content):
            kind, size = TAG.unpack_from(content, place)
            packed = memoryview(content)[place + TAG.size : place + TAG.size + size]
            if kind != COMPRESSED or len(packed) != size:
                raise ValueError("it is damaged")
            name, array = _variable(packed, wanted, check)
            if array is not None:
                found[name] = array
            place += TAG.size + size
    except (zlib.error, struct.error) as error:
        raise ValueError(f"it is damaged: {error}") from error
    return found


def _variable(
    packed: memoryview, wanted: Container[str], check: Callable[[int], object]
) -> tuple[str, NDArray[Any] | None]:
    """The name of a variable, and its array if it is wanted."""
    unpacker = zlib.decompressobj()
    head = unpacker.decompress(packed, HEAD)
    kind, size = TAG.unpack_from(head)
    _, flags, place = _element(head, TAG.size)
    _, shape, place = _element(head, place)
    _, name, place = _element(head, place)
    if kind != MATRIX or len(flags) != 8 or len(shape) % 4:
        raise ValueError("it is damaged")
    if (known := bytes(name).decode("latin-1")) not in wanted:
        return known, None
    word = int.from_bytes(flags[:4], "little")
    if word & 0xFF not in NUMERIC_CLASSES or word & COMPLEX:
        raise ValueError(f"{known} is not an array of real numbers")
    check(size)
    rest = TAG.size + size - len(head)
    data = head + unpacker.decompress(unpacker.unconsumed_tail, max(rest, 0) + 1)
    if rest < 0 or len(data) != TAG.size + size or not unpacker.eof:
        raise ValueError(f"{known} is not as long as it says")
    kind, numbers, _ = _element(data, place)
    if kind not in NUMBERS:
        raise ValueError(f"{known} is not an array of real numbers")
    sides = np.frombuffer(shape, "<i4").tolist()
    values = np.frombuffer(numbers, NUMBERS[kind])
    if min(sides, default=-1) < 0 or len(values) != np.prod(sides, dtype=object):
        raise ValueError(f"{known} does not have the shape that it says")
    return known, values.reshape(sides, order="F")


def _element(data: bytes, place: int) -> tuple[int, memoryview, int]:
    """The kind and the content of the element at this place, and where the next one begins."""
    kind, size = TAG.unpack_from(data, place)
    start, end = place + TAG.size, place + TAG.size + size
    following = end + -size % 8
    if kind >> 16:  # a short element has its content in the second half of its tag
        kind, size = kind & 0xFFFF, kind >> 16
        start, end, following = place + 4, place + 4 + size, place + TAG.size
    if end > len(data) or end > following:
        raise ValueError("it is damaged")
    return kind, memoryview(data)[start:end], following
