"""Read files that may be damaged, or not files at all. Whatever is wrong with one is a `UserError` that names it."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from cotrain.storage.regular import open_regular
from cotrain.types import UserError

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]


def read_bytes(path: Path, *, inside: Path | None = None) -> bytes:
    """As `Path.read_bytes`, for regular files only. With `inside`, links out of that folder are refused."""
    with open_regular(path, inside=inside) as file:
        return file.read()


def parse_json(content: bytes | str) -> Any:
    """Strict JSON: no NaN or Infinity. Whatever is wrong is a ValueError."""
    try:
        return json.loads(content, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def read_json(path: Path) -> Any:
    try:
        return parse_json(read_bytes(path))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({reason(error)})") from error


def checked(model: type[M], values: Any, where: object) -> M:
    """The values as an object of this type, if they fit it."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where} is damaged: {first_problem(error)}") from error


def first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"])) or "its content"
    return f"{key}: {first['msg'][0].lower()}{first['msg'][1:]}"


def read_arrays(path: Path, check: Callable[[int], object] = lambda size: None) -> Arrays:
    """The arrays of an .npz file. `check` gets the number of bytes that they say they take, before they are read."""
    with open_regular(path) as file:
        return decoded(lambda: _arrays(file, check))


def arrays_of(content: bytes) -> Arrays:
    """The arrays of an .npz file that is in memory. Whatever is wrong with it is a ValueError."""
    return decoded(lambda: _arrays(io.BytesIO(content), lambda size: None))


def _arrays(file: IO[bytes], check: Callable[[int], object]) -> Arrays:
    loaded = np.load(file, allow_pickle=False)
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise ValueError("it holds a single array")
    with loaded:
        assert loaded.zip is not None
        check(sum(entry.file_size for entry in loaded.zip.infolist()))
        return {key: array_in(loaded, key) for key in loaded.files}


def array_in(loaded: "np.lib.npyio.NpzFile", key: str) -> NDArray[Any]:
    """numpy returns the bytes of a member that is not an array."""
    if not isinstance(array := loaded[key], np.ndarray):
        raise ValueError(f"{key} is not an array")
    return array


def decoded(decode: Callable[[], T]) -> T:
    """What a library makes of untrusted bytes. Its readers raise all kinds of errors on damage; here it is ValueError.

    numpy's alone: zlib.error, tokenize.TokenError, LZMAError, OverflowError, MemoryError, BadZipFile and others.
    """
    try:
        return decode()
    except Exception as error:
        if isinstance(error, UserError) or (isinstance(error, OSError) and error.errno):  # the disk, not the content
            raise
        raise ValueError(reason(error)) from error


def reason(error: BaseException) -> str:
    """The error in one line, which is never empty."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:300] or type(error).__name__
