"""A family of backbones: the names it answers to, and how one of them is built."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from cotrain.model.stages import Backbone, BuildHead, Extra, no_extra, no_head


@dataclass(frozen=True)
class Wanted:
    """What a backbone is built for."""

    channels: int  # of the images
    classes: int
    bn_momentum: float = 0.001
    extra: Extra = no_extra  # for the `Output` at the end
    last_width: int | None = None  # model.last_width, only for a family that takes it
    head: BuildHead = no_head  # for a pretrained family: the stages after its pooled features
    side: int = 0  # for a pretrained family: smaller images are enlarged to this side
    downloads: bool = False  # whether weights that are not here may be downloaded: the user named the backbone


class BackboneFamily(ABC):
    """One final subclass per file in `cotrain/model/`, or per entry point in `cotrain.backbones`."""

    name: ClassVar[str]  # of the file, or of the entry point
    listed: ClassVar[str] = ""  # its names, as errors list them, where it has others than its own
    takes_last_width: ClassVar[bool] = False
    is_pretrained: ClassVar[bool] = False

    def recognises(self, name: str) -> bool:
        return name == self.name

    @abstractmethod
    def build(self, name: str, wanted: Wanted) -> Backbone:
        """The stages of the backbone of this name."""
