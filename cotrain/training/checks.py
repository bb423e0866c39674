"""Checks before training, so that a run that cannot start writes nothing."""

import numpy as np
import torch

from cotrain.augment import draw_weak
from cotrain.config import TABLE_BACKBONE, Config
from cotrain.data import Dataset, Split
from cotrain.data.memory import free_memory
from cotrain.data.settings import LARGEST_SIDE
from cotrain.device import check_compiler, pick_device, pick_precision
from cotrain.model.build import check_outputs
from cotrain.model.trust import is_import_path
from cotrain.networks import build_network
from cotrain.progress import needed_and_free
from cotrain.runs.tracking import check_tracker
from cotrain.training.experiment import Prepared
from cotrain.types import Method, UserError

COPIES = 8  # of a step's logits in memory, with their gradients


def check_trainable(prepared: Prepared) -> None:
    """Raise an error if the device, precision, network, batch or views make training impossible."""
    config, dataset, ranks = prepared.config, prepared.dataset, prepared.ranks
    device = pick_device(config.run.device, ranks.local)
    height, width, channels = dataset.shape
    pick_precision(config.run.precision, device)
    if config.run.compile:
        check_compiler(device)
    if config.run.batchnorm == "synchronised" and device.type == "cpu":
        raise UserError("run.batchnorm=synchronised needs a GPU; use local or auto")
    if ranks.size > 1 and ":" in config.run.device:
        raise UserError(
            f"run.device={config.run.device} names one device for {ranks.size} processes; use cuda, cpu or auto"
        )
    check_tracker(config.run.track)
    ranks.check_divides(labelled=config.optim.labelled, unlabelled=config.unlabelled)
    if dataset.kind.table is not None:
        _check_table(config, dataset)
    elif height * width > LARGEST_SIDE**2:
        raise UserError(
            f"{dataset.name} has images of {height}x{width} pixels; at most {LARGEST_SIDE}x{LARGEST_SIDE} fit: make "
            "them smaller, for example with data.size=224"
        )
    else:
        draw_weak(config.augment, 1, height, width, np.random.default_rng(0))
    if config.method.views.ctaugment != "none" and channels not in (1, 3):
        raise UserError(f"{config.method.name} uses CTAugment, which needs 1 or 3 channels; the images have {channels}")
    few = min(config.optim.labelled, config.unlabelled, 2)
    try:
        net = build_network(config, len(dataset.classes), channels).train()
        shape = (channels, height, width)
        if prepared.trunk is not None:
            check_works_on_features(config.method)
            shape = prepared.trunk.shape
        check_outputs(net, torch.zeros(few, *shape), config.method, config.model.backbone)
    except UserError:
        raise
    except (ValueError, RuntimeError, MemoryError) as error:
        reason = str(error).splitlines()[0]
        size = f"{channels} columns" if dataset.kind.table is not None else f"{height}x{width} with {channels} channels"
        raise UserError(
            f"{config.model.backbone} cannot be trained on {dataset.unit.many} of {size} ({reason})"
        ) from error


def _check_table(config: Config, dataset: Dataset) -> None:
    if config.model.backbone != TABLE_BACKBONE and not is_import_path(config.model.backbone):
        raise UserError(f"model.backbone={config.model.backbone} takes images; {dataset.name} is a table: use features")
    if config.method.views.ctaugment != "none":
        raise UserError(f"{config.method.name} augments pixels; choose another method for a table, such as mhct")
    logits = config.method.heads * (config.optim.labelled + 2 * config.unlabelled) * len(dataset.classes)
    needed, free = COPIES * 4 * logits / 1e9, free_memory()
    if needed > free:
        wanted, left = needed_and_free(1e9 * needed, 1e9 * free)
        raise UserError(
            f"{dataset.name} has {len(dataset.classes):,} classes, so that a step needs {wanted} of memory, and only "
            f"{left} is free; merge rare classes, or set optim.unlabelled to fewer rows"
        )


def check_works_on_features(method: Method) -> None:
    if method.views.ctaugment != "none":
        raise UserError(
            f"{method.name} learns how strongly to augment pixels while it trains, but a frozen trunk sees each image "
            "only once, before training; choose another method, or model.trunk=learned"
        )


def check_batches(config: Config, dataset: Dataset, split: Split) -> None:
    """Raise an error if a step needs more unlabelled images or rows than there are."""
    views = config.method.views
    if views.any_unlabelled and len(split.unlabelled) < config.unlabelled:
        raise UserError(
            f"there are {len(split.unlabelled):,} unlabelled {dataset.unit.many}, but each step needs "
            f"{config.unlabelled:,}: set optim.unlabelled to {len(split.unlabelled)} or less"
        )
