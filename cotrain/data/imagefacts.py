"""What the file of decoded images knows about each of them, in columns: a million images take 60 MB, not a gigabyte."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotrain.storage.reading import arrays_of, decoded, parse_json

UNREADABLE = -1  # in the place of a header
SEPARATOR = "\0"  # no path contains it

Header = tuple[int, int, str]  # height, width and mode of a file


@dataclass(frozen=True)
class Facts:
    """About images by row. The columns are empty if the images do not come from files."""

    shape: tuple[int, int, int, int]
    names: bytes = b""  # the paths, joined
    stamps: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))  # change when a file does
    kinds: Sequence[Header] = ()
    headers: NDArray[np.int32] = field(
        default_factory=lambda: np.zeros(0, np.int32)
    )  # which of `kinds` a file is, or UNREADABLE
    hashes: NDArray[np.uint64] = field(
        default_factory=lambda: np.zeros(0, np.uint64)
    )  # of the pixels; 0 for an unreadable file
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))  # in the file of pixels
    errors: Mapping[str, str] = field(default_factory=dict)  # path -> why it is unreadable

    @property
    def paths(self) -> list[str]:
        return self.names.decode(errors="surrogateescape").split(SEPARATOR) if self.names else []

    @property
    def sizes(self) -> dict[Header, int]:
        """The number of files by height, width and mode."""
        counts = np.bincount(self.headers[self.headers != UNREADABLE], minlength=len(self.kinds))
        return {kind: count for kind, count in zip(self.kinds, counts.tolist(), strict=True) if count}

    def packed(self) -> bytes:
        plain = {"shape": self.shape, "kinds": self.kinds, "errors": self.errors}
        file = io.BytesIO()
        np.savez(
            file,
            plain=np.frombuffer(json.dumps(plain).encode(), np.uint8),
            names=np.frombuffer(self.names, np.uint8),
            stamps=self.stamps,
            headers=self.headers,
            hashes=self.hashes,
            keys=self.keys,
        )
        return file.getvalue()


def joined(paths: Sequence[str]) -> bytes:
    return SEPARATOR.join(paths).encode(errors="surrogateescape")


def unpacked(content: bytes) -> Facts:
    """Raises ValueError if this is not what `packed` makes."""
    arrays = arrays_of(content)
    return decoded(
        lambda: Facts(
            names=arrays["names"].tobytes(),
            stamps=arrays["stamps"],
            headers=arrays["headers"],
            hashes=arrays["hashes"],
            keys=arrays["keys"],
            **_plain(parse_json(arrays["plain"].tobytes())),
        )
    )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    kinds = [(int(height), int(width), str(mode)) for height, width, mode in values["kinds"]]
    count, height, width, channels = map(int, values["shape"])
    errors = {str(path): str(why) for path, why in values["errors"].items()}
    return {"shape": (count, height, width, channels), "kinds": kinds, "errors": errors}
