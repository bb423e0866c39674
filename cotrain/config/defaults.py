"""The data and settings of a run, where the user did not choose them: the recipe follows the images and the network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from cotrain.config import Config, data_settings
from cotrain.config.recipes import recipe_named, with_preset
from cotrain.data import Dataset, Split, open_data
from cotrain.data.dataset import UNLABELLED
from cotrain.model.named import is_pretrained

PHOTOS, FROM_SCRATCH = "photos", "small32"  # the recipes for a pretrained network and for one from scratch
ROUTED = "routed32"  # the latter with routed views, which learn more in the same time
PHOTOGRAPH = 48  # shorter side in pixels, from which on a grey image counts as a photograph
VALID_SHARE, FEWEST_VALID, MOST_VALID = (
    0.2,
    100,
    500,
)  # validation images that `fit` sets aside for a network from scratch


def opened(
    data: str | Path | Dataset,
    config: Config | None,
    changes: Mapping[str, Any],
    memory: float | None,
    console: Console,
) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if config is None and (name := recipe_for_backbone(changes)) is not None:
        config = recipe_named(name)
    return open_data(data, data_settings(config, changes), memory=memory, console=console)


def configured(
    dataset: Dataset, config: Config | None, preset: str, changes: Mapping[str, Any], scratch: str = FROM_SCRATCH
) -> Config:
    """The given config, or the default one for this data, with a preset and these changes."""
    base = config or default_config(dataset, changes, scratch)
    return with_preset(base, preset).changed(changes)


def configured_for_fit(
    dataset: Dataset, config: Config | None, preset: str, changes: Mapping[str, Any], split: Split | None
) -> Config:
    """As `configured`. By default a network from scratch gets routed views and, if labels can be spared, validation
    images that tell whether the unlabelled images do harm."""
    asked = configured(dataset, config, preset, changes, recipe_from_scratch(changes, preset))
    own_recipe = config is not None or dataset.recipe is not None
    if own_recipe or split is not None or "data.valid_share" in changes:
        return asked
    return asked.changed({"data.valid_share": share_to_spare(asked, dataset)})


def share_to_spare(config: Config, dataset: Dataset) -> float:
    """The fraction of the labelled images to validate on: a fifth, but at most 500 images; none if that is below 100.

    A pretrained network is cross-validated instead. If only some of the known labels are used in training
    (`data.labels`), the others come first.
    """
    settings, classes = config.data, len(dataset.classes)
    on_features = is_pretrained(config.model.backbone) or dataset.kind.on_features
    if on_features or len(dataset.valid) or not config.wants_baseline:
        return settings.valid_share
    train = dataset.labels.numpy()[dataset.train]
    known = np.bincount(train[train != UNLABELLED], minlength=classes)
    if not len(dataset.test):
        known = known - np.round(settings.test_share * known).astype(np.int64)
    total, used = int(known.sum()), settings.labels or 0
    share = np.floor(1000 * min(VALID_SHARE, MOST_VALID / max(total, 1), 1 - used / max(total, 1))) / 1000
    needed = -(-used // classes) if settings.balance == "equal" else 0
    enough = share * total >= FEWEST_VALID and (known - np.round(share * known) >= needed).all()
    return float(share) if enough else 0.0


def default_config(dataset: Dataset, changes: Mapping[str, Any], scratch: str = FROM_SCRATCH) -> Config:
    """The recipe for this data. Data whose meaning a mirror image changes is not flipped.

    Colour images and larger grey ones get a pretrained network, unless the user chose another one. The others get a
    network from scratch, by the recipe `scratch`.
    """
    if dataset.kind.recipe is not None:
        return with_fewer(recipe_named(dataset.kind.recipe), dataset)
    name = recipe_for_backbone(changes, scratch)
    if name is None and (dataset.recipe is not None or not is_photographic(dataset)):
        return scratch_config(dataset, scratch)
    config = recipe_named(name or PHOTOS).changed({"augment.flip": dataset.mirror})
    return with_fewer(config, dataset)


def with_fewer(config: Config, dataset: Dataset) -> Config:
    """With fewer unlabelled images per step, if there are not as many."""
    fewer = min(config.unlabelled, max(1, len(dataset.train) // 2))
    return config.changed({"optim.unlabelled": fewer}) if fewer < config.unlabelled else config


def scratch_config(dataset: Dataset, name: str = FROM_SCRATCH) -> Config:
    """The recipe for a network from scratch; some data have their own."""
    if dataset.recipe is not None:
        return recipe_named(dataset.recipe)
    return recipe_named(name).changed({"augment.flip": dataset.mirror})


def recipe_for_backbone(changes: Mapping[str, Any], scratch: str = FROM_SCRATCH) -> str | None:
    """The recipe to start from if the user chose the network."""
    backbone = changes.get("model.backbone")
    return None if backbone is None else PHOTOS if is_pretrained(str(backbone)) else scratch


def recipe_from_scratch(changes: Mapping[str, Any], preset: str) -> str:
    """What `fit` uses: routed views, unless the user chose the method, or the released code, which has none."""
    return FROM_SCRATCH if "method" in changes or preset != "paper" else ROUTED


def is_photographic(dataset: Dataset) -> bool:
    height, width, channels = dataset.shape
    return channels == 3 or (channels == 1 and min(height, width) >= PHOTOGRAPH)
