"""Finished runs without any training: the outputs and log that a test wants, with an untrained network."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cotrain import Config, Dataset, from_arrays, recipe_named
from cotrain.data import draw_split, from_features
from cotrain.evaluation.calibration import fitted_on
from cotrain.networks import build_network
from cotrain.runs.checkpoint import write_tensors
from cotrain.runs.result import Result
from cotrain.runs.run import Run
from cotrain.runs.scores import Outputs, read_outputs, write_outputs
from cotrain.storage.writing import write_json

SETTINGS = {"optim.steps": 100, "data.test_share": 0.0}


def some_data(classes: tuple[str, ...] = ("cat", "dog", "owl"), *, test: int = 60, seed: int = 0) -> Dataset:
    """8x8 noise: ten training images per class, and no test image of the last class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(10 * len(classes)) % len(classes)
    images = rng.integers(0, 255, (len(labels), 8, 8, 3)).astype(np.uint8)
    test_labels = np.arange(test) % (len(classes) - 1)
    pair = (rng.integers(0, 255, (test, 8, 8, 3)).astype(np.uint8), test_labels) if test else None
    return from_arrays(images, labels, test=pair, classes=classes, name="noise")


def some_rows(classes: tuple[str, ...], columns: tuple[str, ...], *, test: int = 60) -> Dataset:
    """A table of noise: ten training rows per class, and some test rows."""
    rng = np.random.default_rng(0)
    labels, test_labels = (np.arange(count) % len(classes) for count in (10 * len(classes), test))
    values, test_values = (rng.normal(size=(count, len(columns))) for count in (len(labels), test))
    pair = (test_values, test_labels) if test else None
    return from_features(values, labels, test=pair, classes=classes, columns=columns, name="noise")


def some_logits(labels: torch.Tensor, classes: int, right: float, *, heads: int = 3, seed: int = 0) -> torch.Tensor:
    """(H, n, C) logits of heads that know about this share of the labels and differ a little."""
    draw = torch.Generator().manual_seed(seed)
    knows = torch.rand(len(labels), generator=draw) < right
    believed = torch.where(knows, labels, (labels + 1) % classes)
    noise = torch.randn(heads, len(labels), classes, generator=draw)
    return noise + 3 * torch.nn.functional.one_hot(believed, classes)


def made_up_run(
    folder: Path,
    dataset: Dataset,
    *,
    right: float = 0.9,
    alone: float | None = 0.5,
    logits: torch.Tensor | None = None,
    result: dict[str, Any] | None = None,
    changes: dict[str, Any] | None = None,
) -> Run:
    """`right` is the share of labels that the run knows, `alone` that of its baseline; None for no baseline."""
    recipe = recipe_named("digits" if dataset.kind.table is None else "features")
    config = recipe.changed({**SETTINGS, "data.labels": 4 * len(dataset.classes), **(changes or {})})
    run = _written(folder, config, dataset, right, logits, seed=1)
    rows = [
        {"step": step, "seconds": step / 9, "lr": 0.1 - step / 2000, "agreement": 0.9, "supervised": 9 / step,
         "unsupervised": 1.0}
        for step in range(10, 101, 10)
    ]  # fmt: skip
    rows.append(
        {"step": 100, "unlabelled_error": 12.0, "heads_disagree": 4.0, "vote_selected": 90.0, "vote_right": 80.0}
    )
    run.log_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = {"test_error": 10.0 if run.split.test else None, "agreement": 0.8, "labels": 12, "seconds": 11.1}
    if run.split.valid:
        facts["temperature"] = fitted_on(read_outputs(run.scores_path)["valid"], config.run.ensemble)
    facts |= {"versions": {"cotrain": "0.1.0", "torch": "2.13.0"}, "parameters": 123456, "device": "cpu", "leaks": 0}
    run.finish(Result.parse(facts | (result or {}), folder))
    if alone is not None:
        baseline = _written(run.baseline_folder, config, dataset, alone, None, seed=2)
        baseline.log_path.write_text('{"step": 100, "unlabelled_error": 40.0}\n')
        baseline.finish(Result.parse({"test_error": 50.0}, folder))
    return run


def with_result(run: Run, **changes: Any) -> Run:
    """The same run with these keys of its result.json changed."""
    return rewritten(run, {**(run.result or {}), **changes})


def rewritten(run: Run, content: Mapping[str, Any]) -> Run:
    """The same run with another result.json, as somebody may have edited it."""
    write_json(run.folder / "result.json", content)
    run.written.result = None
    return run


def _written(
    folder: Path, config: Config, dataset: Dataset, right: float, logits: torch.Tensor | None, seed: int
) -> Run:
    run = Run.create(folder, config, draw_split(dataset, config.data, 0), "cotrain fit noise")
    height, width, channels = dataset.shape
    classes = len(dataset.classes)
    facts = {"config": config.model_dump(), "classes": list(dataset.classes), "size": [height, width]}
    facts |= {"channels": channels, "mean": [0.5] * channels, "std": [0.3] * channels}
    if dataset.kind.table is not None:
        count = len(dataset.kind.table.columns)
        facts |= {"mean": [0.0] * count, "std": [1.0] * count, "columns": dataset.kind.table.facts}
    torch.manual_seed(0)
    write_tensors(run.model_path, build_network(config, classes, channels).state_dict(), facts)
    parts = {}
    for part in ("test", "valid"):
        if rows := getattr(run.split, part):
            labels = dataset.labels[list(rows)]
            drawn = some_logits(labels, classes, right, heads=config.method.heads, seed=seed)
            parts[part] = Outputs(logits if logits is not None and part == "test" else drawn, labels, np.asarray(rows))
    write_outputs(run.scores_path, parts)
    return run
