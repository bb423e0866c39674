"""A run is a folder: config.json, split.json, log.jsonl, checkpoint/, model.safetensors, scores.npz, result.json.

Every report about a run is read from this folder. No file in it is a pickle.
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout
from pydantic import ValidationError
from torch import Tensor

from cotrain.config import Config, differences
from cotrain.data import Dataset, Split, is_openable
from cotrain.model.own import OwnNetwork
from cotrain.model.trust import Trust, is_import_path, is_importable
from cotrain.runs.checkpoint import Checkpoints, read_tensors, write_tensors
from cotrain.runs.packages import PACKAGES, Packages, check_available, not_installed, packages_of, read_packages
from cotrain.runs.result import Result
from cotrain.runs.schema import COMMAND, ModelFacts
from cotrain.runs.scores import HELD_OUT, Outputs, checked_outputs
from cotrain.runs.upgrade import read_config
from cotrain.storage.reading import checked, read_json
from cotrain.storage.writing import names_in, remove_abandoned, write_json
from cotrain.types import UserError

SCORES = "scores.npz"
DOES_NOT_BELONG, SUSPECT_LABELS = "does_not_belong.csv", "suspect_labels.csv"  # lists for a person to look at
MADE_FROM = "made_from.json"  # which labels and images the page's Finish writes this run from
LABELLED_ONLY: Final = "labelled_only"  # baselines: folders in a run, names in result.json
LOGISTIC: Final = "logistic_regression"


class Busy(UserError):
    """Another process is training this run."""


def is_unused(folder: Path) -> bool:
    """Whether the folder holds nothing, or only what a start that was killed left behind."""
    return folder.is_dir() and names_in(folder) <= {"split.json", "command.json", PACKAGES, MADE_FROM}


@dataclass
class Written:
    """What this process wrote to a run's folder, so that it need not read it back."""

    result: Result | None = None
    model: ModelFacts | None = None


@dataclass(frozen=True)
class Run:
    folder: Path
    config: Config
    split: Split
    written: Written = field(default_factory=Written, compare=False, repr=False)

    @classmethod
    def create(cls, folder: Path, config: Config, split: Split, command: str = "") -> "Run":
        """Start a new run, in a folder that is new or empty.

        config.json is written last. A folder without it is not a run, so files of a killed start are overwritten.
        """
        if folder.exists() and not is_unused(folder):
            raise UserError(f"{folder} already exists; choose another --out, or add --resume to continue that run")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create the run folder {folder}: {error.strerror}") from error
        remove_abandoned(folder)
        write_json(folder / "split.json", split.model_dump())
        write_json(folder / "command.json", command)
        if packages := packages_of(config, split.source):
            write_json(folder / PACKAGES, packages)
        write_json(folder / "config.json", config.model_dump())
        return cls(folder, config, split)

    @classmethod
    def open(cls, folder: Path) -> "Run":
        if not folder.exists():
            raise UserError(f"there is no run {folder}")
        if not (folder / "config.json").exists():
            raise UserError(f"{folder} is not a run: it has no config.json")
        values = read_json(folder / "config.json")
        check_available(folder, values)
        config = read_config(values, folder / "config.json")
        return cls(folder, config, checked(Split, read_json(folder / "split.json"), folder / "split.json"))

    def resumed(self, config: Config, split: Split) -> "Run":
        """The same run with the network of `config`. Its settings and split must be those that the run started with."""
        same = {
            "data.labels_file": self.config.data.labels_file,  # its content is in the fingerprint
            "optim.per_method": self.config.optim.per_method,  # only says where the other settings come from
        }
        if changed := differences(self.config.model_dump(), config.changed(same).model_dump()):
            raise UserError(f"{self.folder} cannot be resumed with different settings: {'; '.join(changed)}")
        if split.hash != self.split.hash:
            raise UserError(f"{self.folder} uses split {self.split.hash}, but this split is {split.hash}")
        return self.with_network_of(config)

    def with_network_of(self, config: Config) -> "Run":
        """The same run with the network that the same settings have in this process."""
        return replace(self, config=self.config.with_network_of(config))

    def with_network(self, network: OwnNetwork | None) -> "Run":
        """The same run with the network that the user passed in this process, whatever its name is here."""
        if network is None:
            return self
        recorded = replace(network, recorded=self.config.model.backbone)
        return replace(self, config=self.config.with_network(recorded))

    def trusting_code(self) -> "Run":
        """The same run with permission to import what its settings name. The module's name is printed first."""
        backbone = self.config.model.backbone
        if is_importable(backbone):
            print(f"{self.folder} runs the code of {backbone.partition(':')[0]}", file=sys.stderr)
        return replace(self, config=self.config.with_trust(Trust.ALLOWED))

    @property
    def packages(self) -> Packages:
        """The packages that the run needs besides cotrain, by what they provide."""
        return read_packages(self.folder)

    @property
    def data_missing(self) -> str:
        """The error message for a `split.source` that cannot be opened."""
        source = self.split.source
        if "data" in self.packages and source is not None and not Path(source).is_absolute():
            return not_installed(self.folder, "data", source, self.packages)
        return f"the data of {self.folder} are no longer at {source}; pass their new location with --data"

    def check_data(self, dataset: Dataset) -> None:
        self.split.check_fits(dataset, str(self.folder))
        self.split.check_usable(dataset)

    @property
    def checkpoints(self) -> Checkpoints:
        return _checkpoints(self.folder)

    @property
    def is_begun(self) -> bool:
        """Whether the run or one of its baselines has a checkpoint."""
        return any(_checkpoints(folder).paths() for folder in (self.folder, *self.baselines.values()))

    @property
    def model_path(self) -> Path:
        return self.folder / "model.safetensors"

    def read_model(self) -> tuple[dict[str, Tensor], ModelFacts]:
        """The weights of the finished model, and what else is needed to use it."""
        tensors, facts = read_tensors(self.model_path)
        known = checked(ModelFacts, facts, self.model_path)
        trained = read_config(known.config, self.model_path)
        if changed := differences(self.config.model_dump(), trained.model_dump()):
            raise UserError(
                f"{self.model_path} was trained with other settings than {self.folder / 'config.json'} has: "
                f"{'; '.join(changed)}; restore the one that was changed"
            )
        return tensors, known

    def write_model(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        write_tensors(self.model_path, tensors, facts)
        self.written.model = checked(ModelFacts, as_read(facts), self.model_path)

    @property
    def model_facts(self) -> ModelFacts:
        """What else than its weights is needed to use the finished model."""
        return self.written.model or self.read_model()[1]

    def outputs(self, classes: int) -> dict[str, Outputs]:
        """The model's outputs for the test images and for the validation images, if the run has them."""
        rows = {"test": self.split.test, "valid": self.split.valid, HELD_OUT: self.split.labelled}
        return checked_outputs(self.scores_path, self.config.method.heads, classes, rows)

    @property
    def resume_command(self) -> str:
        """The command or Python call that continues a stopped run."""
        network = self.config.model.backbone
        if is_import_path(network) and not is_importable(network):
            return f"cotrain.fit(data, out={str(self.folder)!r}, resume=True, model=...)"
        if not is_openable(self.split.source):
            return f"cotrain.fit(data, out={str(self.folder)!r}, resume=True)"
        started = os.environ.get("LOCAL_WORLD_SIZE", "1")
        program = ["cotrain"] if started == "1" else ["torchrun", "--nproc-per-node", started, "-m", "cotrain"]
        allowed = ["--trust-code"] if is_importable(network) else []
        return shlex.join([*program, "fit", str(self.split.source), "--out", str(self.folder), "--resume", *allowed])

    @property
    def log_path(self) -> Path:
        return self.folder / "log.jsonl"

    @property
    def scores_path(self) -> Path:
        """The finished model's outputs for the test and validation images."""
        return self.folder / SCORES

    @property
    def belonging_path(self) -> Path:
        """What says of new images whether they belong to any class."""
        return self.folder / "belonging.safetensors"

    @property
    def baseline_folder(self) -> Path:
        """The folder of the labelled-only baseline, a run inside this run."""
        return self.folder / LABELLED_ONLY

    @property
    def baselines(self) -> dict[str, Path]:
        """The folders of the baselines that exist, by name."""
        places = {name: self.folder / name for name in (LABELLED_ONLY, LOGISTIC)}
        return {name: folder for name, folder in places.items() if (folder / "config.json").exists()}

    @property
    def command(self) -> str:
        """The command that started the run."""
        path = self.folder / "command.json"
        try:
            return COMMAND.validate_python(read_json(path), strict=True)
        except ValidationError as error:
            raise UserError(f'{path} is damaged: it does not hold a command; replace its content by ""') from error

    @property
    def result(self) -> Result | None:
        """None: the run is not finished."""
        if self.written.result is not None:
            return self.written.result
        path = self.folder / "result.json"
        return Result.read(path) if path.exists() else None

    def finish(self, result: Result) -> None:
        write_json(self.folder / "result.json", result.flat)
        self.written.result = result

    @contextmanager
    def locked(self, name: str = ".lock") -> Iterator[None]:
        """Hold the run's lock, so that only one process trains it."""
        lock = FileLock(self.folder / name)
        try:
            lock.acquire(blocking=False)
        except Timeout as error:
            raise Busy(f"another process is training {self.folder}") from error
        remove_abandoned(self.folder)
        try:
            yield
        finally:
            lock.release()


def _checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(folder / "checkpoint")


def as_read(value: Any) -> Any:
    """The value as it is read back from JSON, which has neither tuples nor keys that are numbers."""
    return json.loads(json.dumps(value))


def as_typed(command: str) -> str:
    """The command in a form to paste: the program is `cotrain`, whatever its path and however it was started."""
    try:
        program, *arguments = shlex.split(command)
    except ValueError:
        return command
    path = Path(program)
    ours = path.name in ("cotrain", "cotrain.exe") or path.parts[-2:] == ("cotrain", "__main__.py")
    return shlex.join(["cotrain", *arguments]) if ours else command


def reserve_folder(base: Path, name: str) -> Path:
    """Create the first of base/name, base/name-2, base/name-3, ... that does not exist yet."""
    base.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        folder = base / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError
