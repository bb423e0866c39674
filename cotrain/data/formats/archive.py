"""Archives, which are not read, apart from CIFAR's own."""

from pathlib import Path

from cotrain.data.dataset import Dataset
from cotrain.data.format import AFTER_OTHERS, DataFormat, Request
from cotrain.types import UserError

SUFFIXES = (".zip", ".tar", ".gz", ".tgz")


class Archive(DataFormat):
    order = AFTER_OTHERS + 1

    def recognises(self, source: str) -> bool:
        return Path(source).suffix in SUFFIXES and Path(source).exists()

    def open(self, request: Request) -> Dataset:
        raise UserError(f"{request.source} is an archive, and not one of CIFAR's; unpack it and name the folder")
