"""The types that all other modules share.

B labelled and U unlabelled images per step, K weak and S strong views of each unlabelled image, H heads, C classes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from torch import Tensor, nn

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_HEADS = 100  # the paper has 1 to 7; each is a copy of the last stages of the network
LARGEST_FLOAT = 1e30  # of a setting
NOTHING = torch.zeros(0)


class UserError(ValueError):
    """An error the user can fix. The command line prints it as one line and exits with code 2."""


class Unit(StrEnum):
    """What one example is called. Whoever writes a sentence about a dataset or a run takes the noun from it."""

    IMAGE = "image"
    ROW = "row"  # of a table

    @property
    def many(self) -> str:
        return f"{self}s"

    @property
    def with_article(self) -> str:
        return f"an {self}" if self is Unit.IMAGE else f"a {self}"


class Settings(BaseModel):
    """Base of all settings: frozen and validated; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    advanced: ClassVar[frozenset[str]] = frozenset()  # settings that hardly anybody changes: `--help` leaves them out

    @field_validator("*")
    @classmethod
    def _computable(cls, value: Any) -> Any:
        """No number that torch and numpy cannot compute with in 32-bit floats and 64-bit integers."""
        if isinstance(value, float) and abs(value) > LARGEST_FLOAT:
            raise ValueError(f"must be between -{LARGEST_FLOAT:g} and {LARGEST_FLOAT:g}")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError("must have at most 64 bits")
        return value


def none_if_written(value: Any) -> Any:
    """On the command line, the word "none" stands for None."""
    return None if value == "none" else value


IntOrNone = Annotated[int | None, BeforeValidator(none_if_written)]
StrOrNone = Annotated[str | None, BeforeValidator(none_if_written)]


@dataclass(frozen=True)
class Views:
    """The views of each step's images that a method needs."""

    weak: int = 1  # of each unlabelled image
    strong: int = 0  # of each unlabelled image
    weak_augment: bool = True  # false: the weak views are the unaugmented images
    labelled_strong: int = 0  # strong views of each labelled image, in addition to its weak view
    labelled_operations: int | None = None  # operations in those; None: as many as in the other strong views
    ctaugment: Literal["none", "plain", "cutout"] = "none"  # strong views drawn by the method's `rates`, and a probe
    every_pass: bool = False  # pass over the unlabelled images in shuffled order instead of drawing with replacement
    whole: bool = False  # every process needs all views, because the method mixes images

    @property
    def any_unlabelled(self) -> bool:
        """Whether unlabelled images are used at all."""
        return self.weak + self.strong > 0


@dataclass(frozen=True)
class Batch:
    """One step's images, augmented and normalised. It holds no labels of unlabelled images."""

    x: Tensor  # (B, c, h, w) weak views of labelled images
    y: Tensor  # (B,) their classes
    labelled_rows: Tensor  # (B,) their rows in the data set
    weak: Tensor  # (K, U, c, h, w)
    strong: Tensor  # (S, U, c, h, w)
    unlabelled_rows: Tensor  # (U,) rows of the unlabelled images in the data set
    x_strong: Tensor = NOTHING  # (L, B, c, h, w) strong views of the labelled images
    probe: Tensor = NOTHING  # (B, c, h, w) the labelled images after random CTAugment operations
    probe_bins: Tensor = NOTHING  # (B, 2, 2) the bins of the rates that these came from, see augment/ctaugment.py


@dataclass(frozen=True)
class Pool:
    """What a method knows about the data before training, for example to allocate memory for each image."""

    labelled: Tensor  # rows
    labels: Tensor  # their classes
    unlabelled: Tensor  # rows
    images: int  # rows in the data set, labelled or not
    classes: int
    shares: Tensor | None = None  # (C,) of the classes among the unlabelled images, if they are known or estimated
    weights: Tensor | None = None  # (L,) of the labels, from 0 to 1; None: all 1


@dataclass(frozen=True)
class Learner:
    """The state of training at one step, as a method sees it.

    `net(images)` returns logits (H, n, C). `net(images, extra=True)` appends the outputs of the method's `extra`.
    With `net(images, trunk_of=0)`, only the first head's gradient reaches the trunk.
    """

    net: nn.Module
    teacher: nn.Module
    step: int  # k
    steps: int  # K
    generator: torch.Generator  # seeded by (seed, step)
    memory: dict[str, Tensor]

    @property
    def progress(self) -> float:
        return self.step / self.steps


class Look(Protocol):
    """Looks at images of the dataset as they are: rows -> outputs (H, n, C + extra) without gradient."""

    def __call__(self, rows: Tensor, /) -> Tensor: ...

    def features(self, rows: Tensor, /) -> Tensor:
        """(n, D) outputs of the trunk, pooled over the image."""

    def graph(self, features: Tensor, neighbours: int, /) -> "csr_array":
        """`graph.neighbour_graph` of features that do not change from training to training: made only once."""

    def upcoming(self) -> Tensor:
        """The rows of the unlabelled images that training will use before the next refresh, sorted."""


@dataclass(frozen=True)
class Term:
    """One term of the objective: its value before weighting, and its weight at this step."""

    value: Tensor
    weight: float = 1.0


@dataclass(frozen=True)
class Losses:
    """The objective, term by term; training minimises `total`.

    `losses["supervised"]` is the value of a term. Monitors are only logged.
    """

    terms: Mapping[str, Term]
    monitors: Mapping[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.terms[name].value

    @property
    def total(self) -> Tensor:
        return torch.stack([term.weight * term.value for term in self.terms.values()]).sum()

    @property
    def logged(self) -> dict[str, Tensor]:
        """The monitors, and every term before weighting."""
        return {**self.monitors, **{name: term.value for name, term in self.terms.items()}}


class Method(Settings, ABC):
    """A learning algorithm: its typed fields are its settings, `loss` is its equation.

    One final subclass per file in `methods/`; the file's name is the method's name.
    """

    name: ClassVar[str]

    unlabelled_ratio: ClassVar[float] = 7  # U / B in its paper: unlabelled images per labelled image
    paper_optim: ClassVar[Mapping[str, Any]] = {}  # `optim` settings of its paper that differ from co-training's
    terms: ClassVar[tuple[str, ...]] = ("supervised", "unsupervised")  # that `loss` returns at every step

    heads: int = Field(1, ge=1, le=MOST_HEADS, description="classification heads M on the shared trunk")
    unsupervised_weight: float = Field(1.0, ge=0, description="lambda, the weight of the unsupervised loss")
    unsupervised_ramp: float = Field(
        0.0, ge=0, le=1, description="fraction of the steps over which lambda rises from 0; 0: no ramp"
    )

    @property
    @abstractmethod
    def views(self) -> Views:
        """The views of a step's images that `loss` uses."""

    @property
    def share(self) -> str | None:
        """Where the trunk ends, if the method decides it; "none": the heads are separate models."""
        return None

    @property
    def dropout(self) -> tuple[float, ...] | None:
        """The dropout rate of each head, if the heads have dropout."""
        return None

    def extra(self, features: int) -> nn.Module | None:
        """An additional output of each head, computed from its pooled features."""
        return None

    def init(self, pool: Pool) -> dict[str, Tensor]:
        """The method's memory. It lasts for the whole run and is saved in checkpoints."""
        return {}

    def rates(self, memory: Mapping[str, Tensor]) -> Tensor | None:
        """CTAugment's rates for the next step's strong views, updated in place by `loss`; None: no CTAugment."""
        return None

    def refresh_steps(self, pool: Pool, steps: int, unlabelled: int) -> Collection[int]:
        """The steps before which `refresh` is called, in a run of `steps` steps with `unlabelled` images each."""
        return ()

    def refresh(self, learner: Learner, pool: Pool, look: Look) -> None:
        """Update the memory once per pass or round; `look` computes outputs for any images."""

    def rise(self, progress: float) -> float:
        """The factor of lambda after this fraction of the steps, from 0 to 1."""
        return ramp(progress, self.unsupervised_ramp)

    def weight(self, progress: float) -> float:
        """Lambda after this fraction of the steps."""
        return self.unsupervised_weight * self.rise(progress)

    @abstractmethod
    def loss(self, learner: Learner, batch: Batch) -> Losses:
        """The objective on one batch; its terms are named by `terms`."""


class SingleModel(Method, ABC):
    """A method that trains one ordinary network."""

    heads: int = Field(1, ge=1, le=1, description="one network with one head")


def ramp(progress: float, share: float) -> float:
    """Rises linearly from 0 to 1 over this share of the steps; with share 0 it is always 1."""
    return min(progress / share, 1.0) if share else 1.0


def pass_starts(first: int, steps: int, unlabelled: int, images: int) -> list[int]:
    """The steps at which a pass over `images` unlabelled images starts, beginning with `first`."""
    return [
        step
        for step in range(first, steps)
        if step == first or step * unlabelled // images != (step - 1) * unlabelled // images
    ]


def exponential_ramp(progress: float, share: float) -> float:
    """Rises from exp(-5) to 1 as exp(-5 (1 - t)^2) over this share of the steps; with share 0 it is always 1."""
    return math.exp(-5 * (1 - ramp(progress, share)) ** 2)
