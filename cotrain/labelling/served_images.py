"""Images for the browser: decoded in worker processes and encoded again, so that no file reaches it as it is."""

import io
import os
import threading
from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Self

from PIL import Image

from cotrain.data.workers import Workers
from cotrain.storage.regular import leads_out

Size = Literal["small", "large"]
SIDES: dict[Size, int] = {"small": 256, "large": 1280}  # longest side in pixels
SMALL = 128  # images up to this side are sent without loss
WORKERS = 2
CACHE_BYTES = 96 * 2**20


class NotShown(Exception):
    """The image cannot be shown; the text says why."""


class Outside(NotShown):
    """The file is not in the folder, but a link to somewhere else."""


class Pictures:
    """The images of a folder, re-encoded as PNG or JPEG of bounded size."""

    def __init__(self, folder: Path, *, follow_links: bool = False) -> None:
        self.folder, self.follow_links = folder, follow_links
        self.root = os.path.realpath(folder)
        self._closing = ExitStack()
        self._workers: Workers | None = None
        self._starting, self._lock = threading.Lock(), threading.Lock()
        self._cache: OrderedDict[tuple[str, Size, int], tuple[bytes, str]] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def is_inside(self, path: str) -> bool:
        """Whether a file is in the folder, and not a link out of it."""
        return self.follow_links or not leads_out(os.path.join(self.folder, path), self.root)

    def encoded(self, path: str, size: Size) -> tuple[bytes, str]:
        """The image and its media type."""
        if not self.is_inside(path):
            raise Outside("this file is a link out of the folder")
        file = os.path.join(self.folder, path)
        try:
            key = (path, size, os.stat(file).st_mtime_ns)
        except OSError as error:
            raise NotShown(f"the file cannot be read: {error.strerror}") from error
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        answer = self._encode(file, SIDES[size])
        with self._lock:
            self._cache[key] = answer
            while sum(len(data) for data, _ in self._cache.values()) > CACHE_BYTES:
                self._cache.popitem(last=False)
        return answer

    def _encode(self, file: str, side: int) -> tuple[bytes, str]:
        workers = self._started()
        ((header,),) = workers.map([{"paths": [file], "rows": [0]}])
        if "error" in header:
            raise NotShown(f"the image cannot be decoded: {header['error']}")
        height, width, _ = header
        scale = min(1.0, side / max(height, width))
        shape = (max(1, round(scale * height)), max(1, round(scale * width)), 3)
        (decoded,) = workers.decode([[file]], shape)
        if decoded.errors[0] is not None:
            raise NotShown(f"the image cannot be decoded: {decoded.errors[0]}")
        data = io.BytesIO()
        picture = Image.fromarray(decoded.images[0])
        if max(shape) <= SMALL:
            picture.save(data, "PNG")
            return data.getvalue(), "image/png"
        picture.save(data, "JPEG", quality=88)
        return data.getvalue(), "image/jpeg"

    def _started(self) -> Workers:
        with self._starting:
            if self._workers is None:
                self._workers = self._closing.enter_context(Workers(WORKERS))
            return self._workers
