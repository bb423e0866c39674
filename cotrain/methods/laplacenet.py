"""LaplaceNet (Sellars et al., IEEE TNNLS 2022).

Before each pass, labels propagate over a graph of the images' features. The network learns the resulting classes on
mixtures of images, in several strong views. docs/methods/laplacenet.md.
"""

import math
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cotrain.graph import aligned, neighbour_graph, propagate
from cotrain.ops import beta, evaluating, mix, mixed_cross_entropy
from cotrain.types import Batch, Learner, Look, Losses, Pool, SingleModel, Term, Views, pass_starts


class LaplaceNet(SingleModel):
    unlabelled_ratio: ClassVar[float] = 252 / 48
    paper_optim: ClassVar = {"lr": 0.03, "momentum": 0.9, "weight_decay": 5e-4}

    supervised_share: float = Field(
        0.005, ge=0, lt=1, description="fraction of the steps, at the start, that use only labelled images"
    )
    views_each: int = Field(3, ge=1, description="strong views of each image, labelled or not")
    alpha: float = Field(1.0, gt=0, description="the mixing coefficients are drawn from Beta(alpha, alpha)")
    neighbours: int = Field(50, ge=1, description="neighbours of each image in the graph")

    @property
    def views(self) -> Views:
        n = self.views_each
        return Views(weak=0, strong=n, labelled_strong=n, labelled_operations=1, every_pass=True, whole=True)

    def extra(self, features: int) -> nn.Module:
        return nn.Identity()

    def init(self, pool: Pool) -> dict[str, Tensor]:
        return {"labels": torch.full((pool.images,), -1)}

    def first(self, steps: int) -> int:
        """The first step with unlabelled images."""
        return math.ceil(self.supervised_share * steps)

    def refresh_steps(self, pool: Pool, steps: int, unlabelled: int) -> list[int]:
        return pass_starts(self.first(steps), steps, unlabelled, len(pool.unlabelled))

    def refresh(self, learner: Learner, pool: Pool, look: Look) -> None:
        """Propagate the labels over the graph of all training images; given labels stay as they are."""
        labels = learner.memory["labels"]
        rows = torch.cat([pool.labelled, pool.unlabelled]).unique()
        with evaluating(learner.net):
            features = look(rows)[0, :, pool.classes :]
        graph = neighbour_graph(features.to(labels.device), self.neighbours)

        seeds = torch.zeros(len(rows), pool.classes, dtype=torch.float64)
        seeds[torch.searchsorted(rows, pool.labelled), pool.labels] = 1
        others = ~seeds.any(dim=1)
        spread = propagate(graph, seeds.numpy())[others.numpy()]
        reached, shares = spread.any(axis=1), (seeds.sum(dim=0) / len(pool.labelled)).numpy()
        classes = np.where(reached, 0, -1)
        classes[reached] = aligned(spread[reached], shares).argmax(axis=1)
        labels[rows[others]] = torch.from_numpy(classes).to(labels.device)
        labels[pool.labelled] = pool.labels.to(labels.device)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        views, labels = batch.x_strong, batch.y
        if learner.step >= self.first(learner.steps):
            views = torch.cat([views, batch.strong], dim=1)
            labels = torch.cat([labels, learner.memory["labels"][batch.unlabelled_rows]])

        order = torch.randperm(len(labels), generator=learner.generator, device=labels.device)
        share = beta(self.alpha, (1,), learner.generator)
        logits = [learner.net(mix(view, view[order], share))[0] for view in views]
        targets = self.targets(labels, logits[0].shape[-1])
        costs = torch.stack([mixed_cross_entropy(view_logits, targets, order, share) for view_logits in logits])
        costs = costs.mean(dim=0) / len(labels)
        supervised, unsupervised = costs[: len(batch.y)].sum(), costs[len(batch.y) :].sum()
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms)

    @staticmethod
    def targets(labels: Tensor, classes: int) -> Tensor:
        """One-hot; uniform for an image that no label has reached."""
        known = F.one_hot(labels.clamp(min=0), classes).float()
        return torch.where((labels < 0)[:, None], 1 / classes, known)
