"""A run is a folder: config.json, split.json, log.jsonl, checkpoint/, model.safetensors, result.json.

Everything that is shown of a run is read back from there, and nothing in it is a pickle.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from cotrain.checkpoint import Checkpoints, read_json, write_json
from cotrain.config import Config, differences
from cotrain.data import Dataset, Split
from cotrain.types import UserError


@dataclass(frozen=True)
class Run:
    folder: Path
    config: Config
    split: Split

    @classmethod
    def create(cls, folder: Path, config: Config, split: Split) -> "Run":
        """A new folder, whole from the start. One that holds anything is never written into."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} exists already; choose another --out, or add --resume to go on with that run")
        unborn = folder.with_name(f".{folder.name}.partial")
        try:
            unborn.mkdir(parents=True, exist_ok=True)
            write_json(unborn / "split.json", split.model_dump())
            write_json(unborn / "config.json", config.model_dump())
            unborn.replace(folder)
        except OSError as error:
            raise UserError(f"cannot make the run folder {folder}: {error.strerror}") from error
        return cls(folder, config, split)

    @classmethod
    def open(cls, folder: Path) -> "Run":
        if not (folder / "config.json").exists():
            raise UserError(f"{folder} is not a run: there is no config.json in it")
        config = Config.parse(read_json(folder / "config.json"))
        split = Split.model_validate(read_json(folder / "split.json"))
        return cls(folder, config, split)

    def check_same(self, config: Config, split: Split) -> None:
        """Refuse to go on with other settings or another split than the run began with."""
        if changed := differences(self.config, config):
            raise UserError(f"{self.folder} cannot be resumed with other settings: {'; '.join(changed)}")
        self.check_split(split)

    def check_split(self, split: Split) -> None:
        if split.fingerprint != self.split.fingerprint:
            raise UserError(f"{self.folder} was made from other data: {split.source} differs from {self.split.source}")
        if split.hash != self.split.hash:
            raise UserError(f"{self.folder} was made with split {self.split.hash}; this one is {split.hash}")

    def check_data(self, dataset: Dataset) -> None:
        if dataset.fingerprint != self.split.fingerprint:
            raise UserError(
                f"{dataset.name} is not the data {self.folder} was made from: its content differs "
                f"(fingerprint {dataset.fingerprint}, not {self.split.fingerprint})"
            )

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder / "checkpoint")

    @property
    def model_path(self) -> Path:
        return self.folder / "model.safetensors"

    @property
    def log_path(self) -> Path:
        return self.folder / "log.jsonl"

    @property
    def baseline_folder(self) -> Path:
        """The labelled-only run, the yardstick, is a run inside the run."""
        return self.folder / "labelled_only"

    @property
    def result(self) -> dict[str, Any] | None:
        path = self.folder / "result.json"
        return read_json(path) if path.exists() else None

    def finish(self, result: dict[str, Any]) -> None:
        write_json(self.folder / "result.json", result)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time trains a run."""
        with open(self.folder / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(f"another process is training {self.folder}") from error
            yield


def free_folder(base: Path, name: str) -> Path:
    """The first of base/name, base/name-2, base/name-3, ... that does not exist yet."""
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(base / candidate for candidate in names if not (base / candidate).exists())
