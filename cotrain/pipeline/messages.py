"""What is said before training: of the data, the network, and how long it will take."""

from collections.abc import Iterator

import torch

from cotrain.config import Config
from cotrain.data import Dataset, Split, leaks
from cotrain.pipeline.baseline import has_yardstick, wants_yardstick, yardstick_config
from cotrain.progress import clock
from cotrain.runs.run import Run
from cotrain.training.distributed import Ranks
from cotrain.training.loop import synchronised
from cotrain.training.state import pool_of
from cotrain.training.timing import pace
from cotrain.types import Method

PATIENCE = 0.6  # seconds of trial steps: on a busy machine a single step says little


def heading(run: Run, dataset: Dataset, device: torch.device, ranks: Ranks) -> Iterator[str]:
    config, split = run.config, run.split
    height, width, _ = dataset.shape
    if dataset.paths:
        size = f"{height}x{width}" if config.data.size else f"{height}x{width} (--size)"
        yield f"{dataset.name}: {dataset.layout}; {len(dataset.classes)} classes; images as {size}, {dataset.kept}"
    yield from warnings_about(dataset, split)
    if wants_yardstick(config) and not has_yardstick(run):
        yield "so no network is trained with the labelled images alone: there is nothing to compare the two on"
    images = (
        f"{len(split.labelled):,} labelled, {len(split.unlabelled):,} unlabelled and {len(split.test):,} test images"
    )
    yield f"{images}; {network(config)}, on {device} -> {run.folder}"
    if ranks.size > 1:
        batchnorm = "all their images" if synchronised(config, device, ranks) else "each one's own images"
        yield (
            f"{ranks.size} processes, {config.optim.labelled // ranks.size} labelled and "
            f"{config.unlabelled // ranks.size} unlabelled images each a step; batch-norm over {batchnorm}"
        )


def warnings_about(dataset: Dataset, split: Split) -> Iterator[str]:
    """What a user should know about the data before believing a result."""
    yield from dataset.notes
    if dataset.missing:
        yield f"left out, as their files are not there: {len(dataset.missing):,} rows, first {dataset.missing[0]}"
    if dataset.unreadable:
        path, why = next(iter(dataset.unreadable.items()))
        more = f", and {len(dataset.unreadable) - 1:,} more" if len(dataset.unreadable) > 1 else ""
        yield f"unreadable and left out: {path} ({why}){more}"
    if not split.test:
        yield "there are no test images, given or set aside: the error of the result will be unknown"
    elif not len(dataset.test):
        yield (
            f"no test images were given: {len(split.test):,} of the labelled ones are set aside to test on "
            "(data.test_share=0 trains on all)"
        )
    if leaked := len(leaks(dataset, split)):
        yield f"{leaked:,} of {len(split.test):,} test images are also among the training images: the error is too good"


def estimate(run: Run, dataset: Dataset, device: torch.device, ranks: Ranks) -> str:
    """How long all of it will take, from a few trial steps."""
    methods = {run.config.method.name: run.config}
    if has_yardstick(run):
        methods = {"labelled only": yardstick_config(run.config), **methods}
    seconds = {
        name: pace(config, dataset, run.split, device, ranks, PATIENCE).seconds(config, pool_of(dataset, run.split))
        for name, config in methods.items()
    }
    parts = " and ".join(f"{clock(each)} for {name}" for name, each in seconds.items())
    return f"about {clock(sum(seconds.values()))} for all {run.config.optim.steps:,} steps: {parts}"


def title_of(method: Method) -> str:
    return f"{method.name}, {_parts(method)}" if method.heads > 1 else method.name


def network(config: Config) -> str:
    """In words."""
    parts = f", {_parts(config.method)}" if config.method.heads > 1 else ""
    return f"{config.model.backbone}{parts}"


def _parts(method: Method) -> str:
    return f"{method.heads} {'models' if method.share == 'none' else 'heads'}"
