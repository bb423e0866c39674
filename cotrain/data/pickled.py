"""Read the pickles of CIFAR's python version. Nothing in them is run: only plain values and uint8 arrays are made."""

import io
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cotrain.storage.reading import decoded, reason
from cotrain.types import UserError

MOST_READS = 1 << 22  # of a few bytes each; CIFAR-100's larger file takes a quarter of them, at most
KEYS = (bytes, str, int)


def unpickle(content: bytes, what: str) -> dict[bytes, Any]:
    """The dict that a file holds. `what` names the file in errors."""
    try:
        loaded = decoded(ArrayUnpickler(Bounded(content), encoding="bytes").load)
    except ValueError as error:
        raise UserError(f"{what} is not a valid CIFAR pickle: {reason(error)}") from error
    if not isinstance(loaded, dict):
        raise UserError(f"{what} holds a {type(loaded).__name__}; expected a dict")
    return loaded


class Bounded(io.BytesIO):
    """Bytes that are read in a limited number of pieces, so that a pickle cannot take for ever."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > MOST_READS:
            raise pickle.UnpicklingError("it is longer than any of CIFAR's")
        return super().read(size)


class Start:
    """An array or a data type before its state is set."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def _uint8(code: str | bytes, *_: object) -> Start:
    if code not in ("u1", b"u1"):
        raise pickle.UnpicklingError(f"it has an array of type {code!r} instead of uint8")
    return Start("dtype")


def _latin1(text: str, *_: object) -> bytes:
    return text.encode("latin1")


ALLOWED: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": lambda *_: Start("array"),
    "numpy._core.multiarray._reconstruct": lambda *_: Start("array"),
    "numpy.ndarray": lambda *_: Start("array"),
    "numpy.dtype": _uint8,
    "_codecs.encode": _latin1,
}


def _array(state: Any) -> NDArray[np.uint8]:
    """The array that numpy's own state describes: version, shape, data type, order and bytes."""
    if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[2], Start):
        raise pickle.UnpicklingError("it has an array without uint8 pixels")
    _, shape, _, fortran, pixels = state
    if not isinstance(pixels, bytes) or not isinstance(shape, tuple):
        raise pickle.UnpicklingError("it has an array without pixels")
    return np.frombuffer(pixels, np.uint8).reshape(shape, order="F" if fortran else "C")


InPython: Any = pickle._Unpickler
REFUSED = (
    *(pickle.OBJ, pickle.INST, pickle.NEWOBJ, pickle.NEWOBJ_EX),
    *(pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.BYTEARRAY8),
)


class ArrayUnpickler(InPython):
    """The unpickler that is written in Python: the one in C can be made to crash or to take all memory."""

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        code: load for code, load in InPython.dispatch.items() if bytes([code]) not in REFUSED
    }

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed and was not run")
        return ALLOWED[f"{module}.{name}"]

    def load_build(self) -> None:
        """Set the state of an array; that of a data type says nothing new about uint8."""
        state = self.stack.pop()
        start = self.stack[-1]
        if not isinstance(start, Start):
            raise pickle.UnpicklingError(f"it sets the state of a {type(start).__name__}")
        if start.kind == "array":
            self.stack[-1] = array = _array(state)
            for index in [index for index, known in self.memo.items() if known is start]:
                self.memo[index] = array

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def load_setitems(self) -> None:
        self._set(self.pop_mark())

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set(items)

    def _set(self, items: list[Any]) -> None:
        """Keys are plain: hashing a nested one may take for ever."""
        keys = items[::2]
        if not all(isinstance(key, KEYS) for key in keys) or not isinstance(self.stack[-1], dict):
            raise pickle.UnpicklingError("it has a key that is neither text nor a number")
        self.stack[-1].update(zip(keys, items[1::2], strict=True))

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict
