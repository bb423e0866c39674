"""The nouns every other file speaks in.

B labelled and U unlabelled images a step, K weak and S strong views of each unlabelled image, H heads, C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn


class UserError(ValueError):
    """Something the user can put right. The command line prints it as one line and exits with code 2."""


class Settings(BaseModel):
    """Base of everything configurable: frozen, checked, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class Views:
    """How many views of each unlabelled image a method wants."""

    weak: int = 1
    strong: int = 0
    weak_augment: bool = True  # false: the weak views are the images as they are
    whole: bool = False  # true: each of several processes needs all views, as the method mixes images


@dataclass(frozen=True)
class Batch:
    """One step's images, augmented and normalised. No label of an unlabelled image exists here."""

    x: Tensor  # (B, c, h, w) weak views of labelled images
    y: Tensor  # (B,) their classes
    row: Tensor  # (B,) their rows in the data set
    weak: Tensor  # (K, U, c, h, w)
    strong: Tensor  # (S, U, c, h, w)
    index: Tensor  # (U,) the unlabelled images' rows in the data set


@dataclass(frozen=True)
class Pool:
    """What a method may know before training, to lay out its per-sample memory."""

    labelled: Tensor  # rows
    labels: Tensor  # their classes
    unlabelled: Tensor  # rows
    images: int  # rows in the data set, labelled or not
    classes: int


@dataclass(frozen=True)
class Learner:
    """What a method sees of the training at one step."""

    net: nn.Module
    teacher: nn.Module
    progress: float  # k / K
    generator: torch.Generator  # seeded by (seed, step)
    memory: dict[str, Tensor]


@dataclass(frozen=True)
class Losses:
    supervised: Tensor
    unsupervised: Tensor
    monitors: Mapping[str, Tensor] = field(default_factory=dict)


class Method(Settings, ABC):
    """A learning algorithm: its typed fields are its settings, `loss` is its equation.

    One final subclass per file in `methods/`; the file's name is the method's name.
    """

    name: ClassVar[str]

    heads: int = Field(1, ge=1, description="classification heads M on the shared trunk")
    unsupervised_weight: float = Field(1.0, ge=0, description="lambda, the weight of the unsupervised loss")
    unsupervised_ramp: float = Field(
        0.0, ge=0, le=1, description="share of the steps in which lambda rises from 0, for short runs; 0: no rise"
    )

    @property
    @abstractmethod
    def views(self) -> Views:
        """The views of each unlabelled image that `loss` uses."""

    def init(self, pool: Pool) -> dict[str, Tensor]:
        """Memory that lives as long as the run and is checkpointed with it."""
        return {}

    def weight(self, progress: float) -> float:
        """Lambda after this share of the steps."""
        return self.unsupervised_weight * (min(progress / self.unsupervised_ramp, 1) if self.unsupervised_ramp else 1)

    @abstractmethod
    def loss(self, learner: Learner, batch: Batch) -> Losses:
        """The two terms of the objective on one batch."""
