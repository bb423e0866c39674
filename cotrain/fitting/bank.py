"""The bank of a run: the features that its frozen trunk computes for all images before training."""

from dataclasses import replace

from rich.console import Console

from cotrain.config import Config
from cotrain.data import Dataset
from cotrain.networks import build_trunk
from cotrain.training.distributed import ALONE, Ranks
from cotrain.trunk.building import open_bank


def with_bank(
    dataset: Dataset, config: Config, console: Console, ranks: Ranks = ALONE, *, augmented: bool = True
) -> Dataset:
    """The dataset with the features of its images, if the network has a frozen trunk. Rank 0 computes for all ranks."""
    trunk = build_trunk(config, len(dataset.classes), dataset.shape)
    if trunk is None:
        return replace(dataset, bank=None)

    def opened() -> Dataset:
        runtime = config.run.runtime
        return open_bank(dataset, trunk, config.augment, config.bank, console, runtime, augmented=augmented)

    ranks.from_first(lambda: opened() and None)
    return opened()
