"""Jobs that are killed at random moments: how each starts, resumes and ends, and what must be the same in the end."""

import json
import shutil
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
from PIL import Image

from cotrain.runs.checkpoint import read_tensors
from cotrain.storage.reading import read_arrays, read_json
from cotrain.storage.writing import is_partial
from tests.processes import Running, run, start
from tests.trunk.tiny import files
from tests.trunk.worker import cotrain_on_tiny, fill

SHORT = ["--steps", "40", "--optim.labelled", "8", "--optim.unlabelled", "16", "--run.report", "false"]
SHORT += ["--run.checkpoint_every", "5", "--run.log_every", "5"]
FIT = ["fit", "digits", "--labels", "20", "--no-baseline", *SHORT]
COMPARE = ["compare", "digits", "--labels", "20", "--methods", "supervised,fixmatch", "--seeds", "1", *SHORT]
FROM_BASELINE = ["fit", "digits", "--labels", "20", "--recipe", "routed32", *SHORT]
ON_FEATURES = ["--recipe", "photos", "--model.backbone", "tiny", "--run.runtime", "torch", "--run.repeats", "1", *SHORT]
COLOUR = (8, 8, 3)
CHANGING = ("seconds", "command")  # endings of a result's keys: they depend on when and where


def check_whole(folder: Path) -> None:
    """No file has its final name before it is complete."""
    for path in folder.rglob("*"):
        if not path.is_file() or is_partial(path.name):
            continue
        match path.suffix:
            case ".json":
                read_json(path)
            case ".npz":
                read_arrays(path)
            case ".safetensors":
                read_tensors(path)


class Job(ABC):
    """`folder` is empty at first, and again after the job was finished and compared."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    @abstractmethod
    def begin(self) -> Running:
        """Start the job, or resume it."""

    @abstractmethod
    def made(self) -> object:
        """What the finished job has made, without what depends on time."""

    def clear(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()


def trained(folder: Path) -> dict[str, object]:
    """The weights and the result of every run in a folder."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("model.safetensors")):
        result = read_json(path.with_name("result.json"))
        where = str(path.parent.relative_to(folder))
        found[where] = (path.read_bytes(), {key: result[key] for key in result if not key.endswith(CHANGING)})
    return found


def begun(out: Path) -> list[str]:
    """What resumes a run that was begun."""
    return ["--resume"] if (out / "config.json").exists() else []


class Fit(Job):
    words = FIT

    def begin(self) -> Running:
        out = self.folder / "run"
        return start(*self.words, "--out", out, *begun(out))

    def made(self) -> object:
        return trained(self.folder)


class FitFromBaseline(Fit):
    """Train the labelled-only baseline first, and start from its weights."""

    words = FROM_BASELINE


class Compare(Job):
    def begin(self) -> Running:
        return start(*COMPARE, "--out", self.folder / "out")

    def made(self) -> object:
        return trained(self.folder)


class FillBank(Job):
    def begin(self) -> Running:
        return Running(fill, self.folder, 0.01, {"SAVE_SECONDS": 0.0})

    def made(self) -> object:
        return files(self.folder)


def make_photos(folder: Path, photos: int, shape: tuple[int, ...] = (8, 8)) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(photos):
        Image.fromarray(rng.integers(0, 255, shape, np.uint8)).save(folder / f"{number:04d}.png")


def label_photos(folder: Path) -> None:
    lines = ["path,label", *(f"{number:04d}.png,{number % 2}" for number in range(20))]
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")


class FitPhotos(Job):
    """Train on a folder of photos, twenty of them labelled."""

    def __init__(self, folder: Path, photos: int = 800) -> None:
        super().__init__(folder)
        self.photos = folder.with_name("photos")
        make_photos(self.photos, photos)
        label_photos(self.photos)

    def begin(self) -> Running:
        return start("fit", self.photos, "--out", self.folder / "run", "--no-baseline", *SHORT)

    def made(self) -> object:
        return trained(self.folder)


class FitFeatures(Job):
    """Decode photos, compute their features, train on them, and cross-validate."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.photos = folder.with_name("photos")
        make_photos(self.photos, 80, COLOUR)
        label_photos(self.photos)

    def begin(self) -> Running:
        out = self.folder / "run"
        words = ["fit", str(self.photos), *ON_FEATURES, "--out", str(out), *begun(out)]
        return Running(cotrain_on_tiny, words, environment={"COTRAIN_HOME": str(self.folder / "home")})

    def made(self) -> object:
        return files(self.folder / "home"), trained(self.folder)


class Predict(Job):
    """Predict photos, with decoding workers, by a run that is trained first."""

    def __init__(self, folder: Path, photos: int = 800) -> None:
        super().__init__(folder)
        self.run, self.photos = folder.with_name("model"), folder.with_name("photos")
        make_photos(self.photos, photos)
        assert run(*FIT, "--out", self.run).returncode == 0

    @property
    def out(self) -> Path:
        return self.folder / "preds.csv"

    def words(self) -> list[str | Path]:
        more = ["--resume"] if Path(f"{self.out}.partial").exists() else []
        return ["predict", self.run, self.photos, "--out", self.out, "--workers", "2", *more]

    def begin(self) -> Running:
        return start(*self.words())

    def made(self) -> object:
        assert [*self.folder.iterdir()] == [self.out]
        return self.out.read_bytes()


def journal_of(folder: Path) -> dict[str, int]:
    """The class of each image, by the journal of a labelled folder."""
    history = folder / "labels-history.jsonl"
    lines = history.read_bytes().split(b"\n")[:-1] if history.exists() else []
    events = [json.loads(line) for line in lines]
    return {image: event["class"] for event in events if event["kind"] == "label" for image in event["images"]}
