"""Speed of the bank and of training on it, as ratios measured in one run.

    python -m benchmarks.bank [--images 64] [--size 128]

Views per second of filling a bank, of the bare runtime on ready-made views, and of the same trunk in torch, in turns;
then the training time of the heads on a bank of 5,000 images, and the time to open it again.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

import cotrain
from cotrain.config.recipes import recipe_named
from cotrain.data import BankSettings, Dataset, draw_split
from cotrain.networks import build_trunk
from cotrain.training.experiment import Experiment
from cotrain.training.loop import trained_net
from cotrain.trunk.building import AT_ONCE, cores, open_bank
from cotrain.trunk.on_demand import on_all_cores
from cotrain.trunk.runtime import compiled

QUIET = Console(quiet=True)
VIEWS = BankSettings(weak=2, strong=4)


def some_images(images: int, size: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (images, size, size, 3), np.uint8)
    return cotrain.from_arrays(pixels, np.arange(images) % 10)


def filling(images: int, size: int, turn: int) -> float:
    """Views per second, everything included."""
    config, dataset = recipe_named("photos"), some_images(images, size, turn)
    trunk = build_trunk(config, 10, dataset.shape)
    assert trunk is not None
    began = time.monotonic()
    open_bank(dataset, trunk, config.augment, VIEWS, QUIET)
    return images * 7 / (time.monotonic() - began)


def bare(images: int, size: int, kind: str) -> float:
    """Views per second of the trunk alone, on views that are there already."""
    trunk = build_trunk(recipe_named("photos"), 10, (size, size, 3))
    assert trunk is not None
    views = np.random.default_rng(0).integers(0, 256, (images * 7, size, size, 3), np.uint8)
    compute = on_all_cores(compiled(trunk, "onnxruntime")) if kind == "onnxruntime" else in_batches(trunk)
    compute(views[:AT_ONCE])
    began = time.monotonic()
    compute(views)
    return len(views) / (time.monotonic() - began)


def in_batches(trunk: object) -> Callable[[np.ndarray], object]:
    compute = compiled(trunk, "torch")  # type: ignore[arg-type]  # torch uses all cores for each batch
    return lambda views: [compute(views[at : at + 32]) for at in range(0, len(views), 32)]


def heads(images: int) -> tuple[float, float]:
    """Seconds to train the heads for the recipe's steps, and to open the bank again."""
    config, dataset = recipe_named("photos"), some_images(images, 16, 0)
    config = config.changed({"data.labels": 40, "model.enlarge": 32})
    trunk = build_trunk(config, 10, dataset.shape)
    assert trunk is not None
    open_bank(dataset, trunk, config.augment, VIEWS, QUIET)
    began = time.monotonic()
    banked = replace(dataset, bank=open_bank(dataset, trunk, config.augment, VIEWS, QUIET))
    opened = time.monotonic() - began
    split = draw_split(banked, config.data, 0)
    began = time.monotonic()
    trained_net(Experiment(config, banked, split, torch.device("cpu")))
    return time.monotonic() - began, opened


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--trained", type=int, default=5000, help="images of the bank that heads are trained on")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["COTRAIN_HOME"] = str(Path(home))
        found: dict[str, list[float]] = {"bank": [], "bare onnxruntime": [], "torch": []}
        bare(1, asked.size, "onnxruntime")  # exports the graph
        for turn in range(asked.turns):
            found["bank"].append(filling(asked.images, asked.size, turn))
            found["bare onnxruntime"].append(bare(asked.images, asked.size, "onnxruntime"))
            found["torch"].append(bare(asked.images, asked.size, "torch"))
        print(
            f"{asked.images} images x 7 views of {asked.size}x{asked.size}, lite0, {cores()} cores, {asked.turns} turns"
        )
        print(f"{'':18}{'best views/s':>14}{'median':>10}{'bank / it':>12}{'by medians':>12}")
        for name, values in found.items():
            best, middle = max(values), statistics.median(values)
            ratio, by_median = max(found["bank"]) / best, statistics.median(found["bank"]) / middle
            print(f"{name:18}{best:14.0f}{middle:10.0f}{ratio:12.2f}{by_median:12.2f}")
        seconds, opened = heads(asked.trained)
        steps = recipe_named("photos").optim.steps
        print(f"heads on {asked.trained:,} images: {seconds:.1f} s for {steps} steps; opening the bank: {opened:.2f} s")


if __name__ == "__main__":
    main()
