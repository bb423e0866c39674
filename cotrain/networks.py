"""From the settings of a run to its network and its frozen trunk."""

from cotrain.config import Config
from cotrain.model import MultiHead
from cotrain.model import build as model
from cotrain.trunk import trunk
from cotrain.trunk.trunk import Trunk

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def build_network(config: Config, classes: int, channels: int) -> MultiHead:
    """The network, initialised from the seed."""
    return model.build_network(config.model, config.method, classes=classes, channels=channels, seed=config.run.seed)


def build_trunk(config: Config, classes: int, images: tuple[int, int, int]) -> Trunk | None:
    """The frozen part of a pretrained network, if the settings have one, for images of this shape."""
    return trunk.build_trunk(config.model, config.method, classes=classes, images=images)


def pixel_statistics(config: Config, classes: int, channels: int) -> Statistics | None:
    """The mean and standard deviation that a pretrained network expects of pixels; None: those of the data."""
    return model.pixel_statistics(config.model, config.method, classes=classes, channels=channels)
