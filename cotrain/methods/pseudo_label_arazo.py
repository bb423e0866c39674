"""Pseudo-labelling against confirmation bias (Arazo et al., IJCNN 2020).

Every image has a soft label, recorded in the previous pass. Images are mixed with each other, and two regularisers keep
the labels from collapsing. docs/methods/pseudo_label_arazo.md.
"""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cotrain.ops import batch_statistics, beta, entropy, evaluating, mix, mixed_cross_entropy, without_update
from cotrain.types import Batch, Learner, Look, Losses, Pool, SingleModel, Term, Views, pass_starts


class ArazoPseudoLabel(SingleModel):
    unlabelled_ratio: ClassVar[float] = 84 / 16
    paper_optim: ClassVar = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
    terms: ClassVar[tuple[str, ...]] = ("supervised", "pseudo_label", "prior", "entropy")

    warmup: float = Field(
        1 / 548, ge=0, lt=1, description="fraction of the steps, at the start, that use only labelled images"
    )
    alpha: float = Field(1.0, gt=0, description="the mixing coefficients are drawn from Beta(alpha, alpha)")
    prior_weight: float = Field(
        0.8, ge=0, description="weight of R_p, which encourages predicting all classes equally often"
    )
    entropy_weight: float = Field(0.4, ge=0, description="weight of R_e, which encourages confident predictions")

    @property
    def views(self) -> Views:
        return Views(weak=1, every_pass=True, whole=True)

    def init(self, pool: Pool) -> dict[str, Tensor]:
        labels = torch.full((pool.images, pool.classes), 1 / pool.classes)
        return {"labels": labels, "recorded": labels.clone()}

    def first(self, steps: int) -> int:
        """The first step after the warm-up."""
        return math.ceil(self.warmup * steps)

    def refresh_steps(self, pool: Pool, steps: int, unlabelled: int) -> list[int]:
        return pass_starts(self.first(steps), steps, unlabelled, len(pool.unlabelled))

    def refresh(self, learner: Learner, pool: Pool, look: Look) -> None:
        """Labels for the next pass: the predictions recorded in the previous one, or new ones before the first."""
        labels, recorded = learner.memory["labels"], learner.memory["recorded"]
        if learner.step == self.first(learner.steps):
            with evaluating(learner.net), batch_statistics(learner.net):
                (logits,) = look(pool.unlabelled)
            recorded[pool.unlabelled] = logits.softmax(dim=-1).to(recorded.device)
        labels.copy_(recorded)
        labels[pool.labelled] = F.one_hot(pool.labels, pool.classes).to(labels)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        labelled = len(batch.y)
        if learner.step < self.first(learner.steps):
            images, targets = batch.x, self.one_hot(learner, batch)
        else:
            images = torch.cat([batch.x, batch.weak[0]])
            targets = torch.cat([self.one_hot(learner, batch), learner.memory["labels"][batch.unlabelled_rows]])
            with torch.no_grad(), without_update(learner.net):
                (unmixed,) = learner.net(images)
            learner.memory["recorded"][batch.unlabelled_rows] = unmixed[labelled:].float().softmax(dim=-1)

        order = torch.randperm(len(images), generator=learner.generator, device=images.device)
        share = beta(self.alpha, (1,), learner.generator)
        (logits,) = learner.net(mix(images, images[order], share))
        costs = mixed_cross_entropy(logits, targets, order, share) / len(images)

        predicted = logits.float().softmax(dim=-1)
        prior = -predicted.mean(dim=0).clamp(min=1e-8).log().mean()
        uncertainty = entropy(logits).mean()
        weight = self.weight(learner.progress)
        terms = {
            "supervised": Term(costs[:labelled].sum()),
            "pseudo_label": Term(costs[labelled:].sum(), weight),
            "prior": Term(prior, weight * self.prior_weight),
            "entropy": Term(uncertainty, weight * self.entropy_weight),
        }
        return Losses(terms)

    def one_hot(self, learner: Learner, batch: Batch) -> Tensor:
        labels = learner.memory["labels"]
        return F.one_hot(batch.y, labels.shape[1]).to(labels)
