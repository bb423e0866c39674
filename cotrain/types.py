"""The nouns every other file speaks in.

B labelled and U unlabelled images a step, K weak and S strong views of each unlabelled image, H heads, C classes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from torch import Tensor, nn

NOTHING = torch.zeros(0)


class UserError(ValueError):
    """Something the user can put right. The command line prints it as one line and exits with code 2."""


class Settings(BaseModel):
    """Base of everything configurable: frozen, checked, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def none_if_written(value: Any) -> Any:
    """On the command line, the word none stands for None."""
    return None if value == "none" else value


IntOrNone = Annotated[int | None, BeforeValidator(none_if_written)]
StrOrNone = Annotated[str | None, BeforeValidator(none_if_written)]


@dataclass(frozen=True)
class Views:
    """The views that a method wants of a step's images."""

    weak: int = 1  # of each unlabelled image
    strong: int = 0  # of each unlabelled image
    weak_augment: bool = True  # false: the weak views are the images as they are
    labelled_strong: int = 0  # strong views of each labelled image, besides its weak one
    labelled_operations: int | None = None  # operations in those; none: as many as in the others
    ctaugment: Literal["none", "plain", "cutout"] = "none"  # strong views by the method's `rates`; a probe
    every_pass: bool = False  # each unlabelled image once in a pass over them, not drawn at random
    whole: bool = False  # each of several processes needs all views, as the method mixes images

    @property
    def any_unlabelled(self) -> bool:
        """Whether unlabelled images are used at all."""
        return self.weak + self.strong > 0


@dataclass(frozen=True)
class Batch:
    """One step's images, augmented and normalised. No label of an unlabelled image exists here."""

    x: Tensor  # (B, c, h, w) weak views of labelled images
    y: Tensor  # (B,) their classes
    labelled_rows: Tensor  # (B,) their rows in the data set
    weak: Tensor  # (K, U, c, h, w)
    strong: Tensor  # (S, U, c, h, w)
    unlabelled_rows: Tensor  # (U,) rows of the unlabelled images in the data set
    x_strong: Tensor = NOTHING  # (L, B, c, h, w) strong views of the labelled images
    probe: Tensor = NOTHING  # (B, c, h, w) the labelled images under CTAugment's operations at any strength
    probe_bins: Tensor = NOTHING  # (B, 2, 2) which bins of its rates made them, see augment/ctaugment.py


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
    """What a method sees of the training at one step.

    `net(images)` are logits (H, n, C); `net(images, extra=True)` has the outputs of the method's `extra` beside them;
    in `net(images, trunk_of=0)` only the first head's gradient reaches the trunk.
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


Look = Callable[[Tensor], Tensor]  # rows of the data set -> (H, n, C + extra) for the images as they are, no gradient


@dataclass(frozen=True)
class Term:
    """One term of the objective: its value before weighting, and its weight at this step."""

    value: Tensor
    weight: float = 1.0


@dataclass(frozen=True)
class Losses:
    """The objective, term by term; `total` is what is minimised.

    `losses["supervised"]` is the value of a term. Monitors are logged with the terms and teach nothing.
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

    unlabelled_ratio: ClassVar[float] = 7  # unlabelled images a step for each labelled one, U / B, in its paper
    paper_optim: ClassVar[Mapping[str, Any]] = {}  # settings of `optim` in its paper, where not co-training's
    terms: ClassVar[tuple[str, ...]] = ("supervised", "unsupervised")  # of `loss`, at every step

    heads: int = Field(1, ge=1, description="classification heads M on the shared trunk")
    unsupervised_weight: float = Field(1.0, ge=0, description="lambda, the weight of the unsupervised loss")
    unsupervised_ramp: float = Field(
        0.0, ge=0, le=1, description="share of the steps in which lambda rises from 0; 0: no rise"
    )

    @property
    @abstractmethod
    def views(self) -> Views:
        """The views of a step's images that `loss` uses."""

    @property
    def share(self) -> str | None:
        """Where the trunk ends, if that is the method's to say; "none": heads are separate models."""
        return None

    @property
    def dropout(self) -> tuple[float, ...] | None:
        """Of each head, if there is any."""
        return None

    def extra(self, features: int) -> nn.Module | None:
        """A further output of each head, from its pooled features."""
        return None

    def init(self, pool: Pool) -> dict[str, Tensor]:
        """Memory that lives as long as the run and is checkpointed with it."""
        return {}

    def rates(self, memory: Mapping[str, Tensor]) -> Tensor | None:
        """CTAugment's rates for the next step's strong views, changed in place by `loss`; None: none are learned."""
        return None

    def refresh_steps(self, pool: Pool, steps: int, unlabelled: int) -> Collection[int]:
        """The steps before which `refresh` is called, in a run of so many steps with U unlabelled images each."""
        return ()

    def refresh(self, learner: Learner, pool: Pool, look: Look) -> None:
        """What a method does once per pass or round: it looks at any of the images and renews its memory."""

    def rise(self, progress: float) -> float:
        """The share of lambda that is reached after this share of the steps, from 0 to 1."""
        return ramp(progress, self.unsupervised_ramp)

    def weight(self, progress: float) -> float:
        """Lambda after this share of the steps."""
        return self.unsupervised_weight * self.rise(progress)

    @abstractmethod
    def loss(self, learner: Learner, batch: Batch) -> Losses:
        """The objective on one batch, in the terms named by `terms`."""


class SingleModel(Method, ABC):
    """A method that trains one ordinary network."""

    heads: int = Field(1, ge=1, le=1, description="one network with one head")


def ramp(progress: float, share: float) -> float:
    """Rises linearly from 0 to 1 in this share of the steps; 0: is 1 from the start."""
    return min(progress / share, 1.0) if share else 1.0


def pass_starts(first: int, steps: int, unlabelled: int, images: int) -> list[int]:
    """The steps, from `first` on, with which a pass over so many images begins; `first` is one of them."""
    return [
        step
        for step in range(first, steps)
        if step == first or step * unlabelled // images != (step - 1) * unlabelled // images
    ]


def exponential_ramp(progress: float, share: float) -> float:
    """Rises from exp(-5) to 1 by exp(-5 (1 - t)^2) in this share of the steps; 0: is 1 from the start."""
    return math.exp(-5 * (1 - ramp(progress, share)) ** 2)
