"""A run and many photos to predict, for the tests of prediction jobs."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import cotrain
from cotrain import Dataset
from cotrain.cli.main import main
from cotrain.inference import streaming
from cotrain.storage.reading import read_json
from cotrain.storage.writing import write_json
from tests.inference.many import BATCH, IMAGES, words


@pytest.fixture(scope="session")
def many(toy: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and photos of several sizes to predict, some of them unreadable."""
    folder = tmp_path_factory.mktemp("many")
    settings = {"optim.steps": 20, "optim.labelled": 8, "optim.unlabelled": 16, "data.labels": 40}
    settings |= {"run.baseline": False, "run.report": False}
    cotrain.fit(toy, out=folder / "run", config=cotrain.recipe_named("digits"), settings=settings)
    result = read_json(folder / "run" / "result.json")
    write_json(folder / "run" / "result.json", result | {"temperature": 6.0})  # probabilities that differ
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        path = folder / "photos" / str(number % 7) / f"{number}, a.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (8, 8) if number % 3 else (5 + number % 11, 9)
        pixels = toy.images[number % 80, :, :, 0].numpy() ^ rng.integers(0, 32, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).resize(size).save(path)
        if number % 97 == 5:
            path.write_bytes(b"torn")
    return folder


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "LARGEST_BATCH", BATCH)


@pytest.fixture(scope="session")
def whole(many: Path) -> dict[str, bytes]:
    """The tables of jobs that nobody disturbed, by suffix."""
    tables = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "LARGEST_BATCH", BATCH)
        for suffix, more in {"csv": [], "parquet": [], "deferred.csv": ["--defer-below", "0.9"]}.items():
            main(words(many, many / f"whole.{suffix}", *more))
            tables[suffix] = (many / f"whole.{suffix}").read_bytes()
    return tables
