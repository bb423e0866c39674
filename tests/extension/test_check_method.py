"""`cotrain.testing.check_method` finds what is wrong with a method, and names the rule."""

import sys
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ConfigDict, Field
from torch import nn

from cotrain import Batch, Learner, Losses, Pool, SingleModel, Term, Views
from cotrain.testing import check_method


def two_terms(supervised: torch.Tensor, unsupervised: torch.Tensor) -> Losses:
    return Losses({"supervised": Term(supervised), "unsupervised": Term(unsupervised)})


class Good(SingleModel):
    """A soft target from the weak view."""

    @property
    def views(self) -> Views:
        return Views(weak=1, strong=1)

    def target(self, learner: Learner, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            return learner.net(batch.weak[0])[0].softmax(dim=-1)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        target = self.target(learner, batch)
        labelled, strong = learner.net(torch.cat([batch.x, batch.strong[0]]))[0].split(
            [len(batch.y), len(batch.unlabelled_rows)]
        )
        return self.losses(F.cross_entropy(labelled, batch.y), F.cross_entropy(strong, target))

    def losses(self, supervised: torch.Tensor, unsupervised: torch.Tensor) -> Losses:
        return two_terms(supervised, unsupervised)


class Undescribed(Good):
    threshold: float = 0.5


class Changeable(Good):
    model_config = ConfigDict(frozen=False)


class Lenient(Good):
    model_config = ConfigDict(extra="ignore")


class Unnamed(Good):
    def losses(self, supervised: torch.Tensor, unsupervised: torch.Tensor) -> Losses:
        return Losses({"supervised": Term(supervised), "consistency": Term(unsupervised)})


class NoGradient(Good):
    def losses(self, supervised: torch.Tensor, unsupervised: torch.Tensor) -> Losses:
        return two_terms(supervised, unsupervised.detach())


class Random(Good):
    def target(self, learner: Learner, batch: Batch) -> torch.Tensor:
        return torch.rand_like(super().target(learner, batch)).softmax(dim=-1)


class NumpyRandom(Good):
    def losses(self, supervised: torch.Tensor, unsupervised: torch.Tensor) -> Losses:
        return two_terms(supervised, unsupervised * (1 + np.random.rand()))


class Leaky(Good):
    """Looks up the true labels in the data set of whoever calls it."""

    def target(self, learner: Learner, batch: Batch) -> torch.Tensor:
        trial = sys._getframe(2).f_locals["self"]
        labels = trial.dataset.labels[batch.unlabelled_rows]
        known = F.one_hot(labels.clamp(min=0), trial.state.net.classes).float()
        return super().target(learner, batch) + known * (labels >= 0)[:, None]


class Blind(Good):
    def loss(self, learner: Learner, batch: Batch) -> Losses:
        labelled = F.cross_entropy(learner.net(batch.x)[0], batch.y)
        return two_terms(labelled, labelled * 0.5)


class TaughtByTheTeacher(Good):
    def target(self, learner: Learner, batch: Batch) -> torch.Tensor:
        learner.teacher.requires_grad_(True)
        return learner.teacher(batch.weak[0])[0].softmax(dim=-1)


class Infinite(Good):
    """Divides by nothing where nothing is selected."""

    def losses(self, supervised: torch.Tensor, unsupervised: torch.Tensor) -> Losses:
        return two_terms(supervised, unsupervised)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        losses = super().loss(learner, batch)
        selected = (self.target(learner, batch).max(dim=-1).values > 0.5).float()
        return two_terms(losses["supervised"], losses["unsupervised"] * selected.sum() / selected.sum())


class TenClasses(Good):
    def target(self, learner: Learner, batch: Batch) -> torch.Tensor:
        return super().target(learner, batch) * torch.ones(10)


class Stuck(Good):
    def losses(self, supervised: torch.Tensor, unsupervised: torch.Tensor) -> Losses:
        return two_terms(0 * supervised, 1e-9 * unsupervised)


class Forgetful(Good):
    """Counts its steps in the object, where no checkpoint finds them."""

    counts: ClassVar[WeakKeyDictionary[nn.Module, int]] = WeakKeyDictionary()  # an id can be used twice

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        seen = self.counts.get(learner.net, 0)
        self.counts[learner.net] = seen + 1
        losses = super().loss(learner, batch)
        return two_terms(losses["supervised"] * (1 + 1e-3 * seen), losses["unsupervised"])


class Idle(Good):
    def init(self, pool: Pool) -> dict[str, torch.Tensor]:
        return {"never": torch.zeros(pool.classes)}


class WithASetting(Good):
    temperature: float = Field(0.5, gt=0, description="below 1 sharpens")


def test_a_method_that_keeps_the_contract_passes() -> None:
    check_method(WithASetting)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (Undescribed, "settings_are_frozen_and_described: settings without a description: threshold"),
        (Changeable, "settings_are_frozen_and_described: its settings can be changed"),
        (Lenient, "settings_are_frozen_and_described: it accepts a setting that does not exist"),
        (Unnamed, "terms_are_named_and_add_up: step 0 has the terms supervised, consistency; the method declares "),
        (NoGradient, "unlabelled_gradient_reaches_the_student_only: the unsupervised loss has no gradient"),
        (Random, "losses_are_repeatable: the unsupervised loss is .*; draw only from learner.generator"),
        (NumpyRandom, "losses_are_repeatable: the unsupervised loss is "),
        (Leaky, "labels_of_unlabelled_images_are_not_used: the unsupervised loss depends on the labels"),
        (Blind, "unlabelled_pixels_matter: flipping all unlabelled images leaves the unsupervised loss"),
        (TaughtByTheTeacher, "unlabelled_gradient_reaches_the_student_only: the teacher gets a gradient"),
        (Infinite, "an_ignorant_network_gives_finite_losses: the unsupervised loss is nan"),
        (Stuck, "it_learns: the loss on the labelled images was "),
        (Forgetful, "a_resumed_run_ends_with_the_same_bits: after resuming, .* differ"),
        (Idle, "a_resumed_run_ends_with_the_same_bits: nothing in the memory that `init` returns is ever changed"),
    ],
)
def test_a_broken_method_is_told_which_rule_it_breaks(broken: type[SingleModel], rule: str) -> None:
    with pytest.raises(AssertionError, match=f"{broken.__name__} breaks the rule {rule}"):
        check_method(broken)


def test_an_error_in_the_methods_code_says_when_it_came() -> None:
    with pytest.raises(RuntimeError) as caught:
        check_method(TenClasses)
    assert caught.value.__notes__ == ["TenClasses breaks the rule any_channels_and_classes, or has a bug"]
