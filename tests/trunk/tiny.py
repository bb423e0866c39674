"""A pretrained backbone of two small convolutions, and data so small that its features take milliseconds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from cotrain import Config, Dataset, from_arrays, recipe_named
from cotrain.data.bank import PLAIN
from cotrain.data.imagefacts import Facts
from cotrain.data.imagefile import ImageFile, image_rows
from cotrain.model.family import BackboneFamily, Wanted
from cotrain.model.named import BACKBONES
from cotrain.model.stages import Backbone, Pretrained, Stage
from cotrain.networks import build_trunk
from cotrain.storage.rows import INDEX, RECORD
from cotrain.trunk import building
from cotrain.trunk.runtime import Compute, compiled

SIDE = 16
FEATURES = 12
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
QUIET = Console(quiet=True)
CONFIG = recipe_named("small32").changed(
    {
        "data.labels": 8,
        "model.backbone": "tiny",
        "model.last_width": None,
        "model.hidden": 8,
        "bank.strong": 3,
        "optim.labelled": 4,
        "optim.unlabelled": 8,
        "optim.steps": 6,
        "run.runtime": "torch",
        "run.log_every": 2,
        "run.evaluate_every": 3,
        "run.checkpoint_every": 2,
        "run.baseline": False,
        "run.report": False,
        "run.device": "cpu",
    }
)


class Pool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3), keepdim=True)


class TinyBackbones(BackboneFamily):
    """`tiny` and `tiny2` differ in their weights."""

    listed = "tiny, tiny2"

    def recognises(self, name: str) -> bool:
        return name in ("tiny", "tiny2")

    def build(self, name: str, wanted: Wanted) -> Backbone:
        seed = {"tiny": 0, "tiny2": 1}[name]

        def convolution(inputs: int, outputs: int) -> Callable[[float], nn.Module]:
            return lambda dropout: nn.Sequential(pretrained_convolution(inputs, outputs, seed), nn.ReLU())

        stages = (
            Stage("first", convolution(wanted.channels, 6)),
            Stage("second", convolution(6, FEATURES)),
            Stage("features", lambda dropout: Pool()),
        )
        pretrained = Pretrained(
            size=SIDE,
            mean=MEAN[: wanted.channels],
            std=STD[: wanted.channels],
            digest=f"seed {seed}",
            features="features",
            tuned_after="first",
        )
        return Backbone(
            name, (*stages, *wanted.head(FEATURES)), "features", wanted.channels, wanted.classes, pretrained=pretrained
        )


def pretrained_convolution(inputs: int, outputs: int, seed: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
    generator = torch.Generator().manual_seed(seed)
    for weight in layer.parameters():
        weight.data = torch.randn(weight.shape, generator=generator) / 3
    return layer


@contextmanager
def known() -> Iterator[None]:
    with BACKBONES.with_added("tiny", TinyBackbones):
        yield


def reference(images: NDArray[np.uint8], seed: int = 0, pooled: bool = True) -> NDArray[np.float32]:
    """The features of `tiny`, written out: (n, h, w, c) -> (n, 12, h', w')."""
    unit = torch.from_numpy(images).double().permute(0, 3, 1, 2) / 255
    x = (unit - torch.tensor(MEAN).double().view(-1, 1, 1)) / torch.tensor(STD).double().view(-1, 1, 1)
    with torch.no_grad():
        for inputs, outputs in ((3, 6), (6, FEATURES)):
            layer = pretrained_convolution(inputs, outputs, seed)
            weight, bias = layer.weight.double(), layer.bias.double()
            x = nn.functional.conv2d(x, weight, bias, stride=2, padding=1).relu()
    return (x.mean(dim=(2, 3), keepdim=True) if pooled else x).numpy()


def pictures(count: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE, 3)).astype(np.uint8)


def small_data(train: int = 40, valid: int = 6, test: int = 10, seed: int = 0) -> Dataset:
    """Three classes, which differ in the brightness of one channel."""
    images = pictures(train + valid + test, seed) // 2
    labels = np.arange(len(images)) % 3
    images[np.arange(len(images)), ..., labels] += 100
    held = {
        name: (images[rows], labels[rows])
        for name, rows in {"valid": slice(train, train + valid), "test": slice(train + valid, None)}.items()
        if len(images[rows])
    }
    return from_arrays(images[:train], labels[:train], **held, name="small")


def on_disk(dataset: Dataset, path: Path) -> Dataset:
    return replace(dataset, images=image_file(path, dataset.images.numpy()))


def image_file(path: Path, images: NDArray[np.uint8]) -> ImageFile:
    rows = image_rows(path, images.shape[1:])
    rows.write(rows.add(np.arange(len(images), dtype=np.uint64)), images)
    rows.save()
    return ImageFile(path, Facts(images.shape))


def opened(dataset: Dataset, config: Config = CONFIG, *, augmented: bool = True, console: Console = QUIET) -> Dataset:
    """The dataset with its bank."""
    trunk = build_trunk(config, len(dataset.classes), dataset.shape)
    assert trunk is not None
    views, runtime = (config.augment, config.bank, console), config.run.runtime
    return replace(dataset, bank=building.open_bank(dataset, trunk, *views, runtime, augmented=augmented))


def stored(dataset: Dataset, name: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    assert dataset.bank is not None
    if name == PLAIN:
        return dataset.bank.plain(rows).numpy()
    kind, number = name.split("-")
    return dataset.bank.views(kind, rows, np.full(len(rows), int(number))).numpy()


class Counting:
    """Counts the views that trunks compute for banks. The first image of a bank is computed twice more, to time it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.views, self.compiled, self.lock = 0, 0, Lock()
        patch.setattr(building, "compiled", self.counted)
        patch.setattr(building.Work, "seconds_per_view", lambda work, task: 0.0)

    def counted(self, trunk: building.Trunk, kind: building.Kind) -> Compute:
        self.compiled += 1
        compute = compiled(trunk, kind)

        def counting(images: NDArray[np.uint8]) -> NDArray[np.float32]:
            with self.lock:
                self.views += len(images)
            return compute(images)

        return counting

    def since(self) -> int:
        """The views since the last call."""
        views, self.views = self.views, 0
        return views


def files(home: Path) -> dict[str, bytes]:
    """The content of all banks below a folder."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted((home / "banks").rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def only_bank(home: Path) -> Path:
    (folder,) = (home / "banks").iterdir()
    return folder


def index(folder: Path, name: str) -> NDArray[np.void]:
    """The keys and digests of the rows of a view."""
    return np.fromfile(folder / f"{name}{INDEX}", RECORD)
