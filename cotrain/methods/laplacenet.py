"""LaplaceNet (Sellars et al., IEEE TNNLS 2022).

Before each pass, labels propagate over a graph of the images' features. The network learns the resulting classes on
mixtures of images, in several strong views. docs/methods/laplacenet.md.
"""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cotrain.graph import aligned, attached, divided, neighbour_graph, propagate
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
        """Propagate the labels over the graph of the training images; given labels stay as they are."""
        labels = learner.memory["labels"]
        rows = torch.cat([pool.labelled, pool.unlabelled]).unique()
        nodes, far = divided(rows, pool.labelled, lambda: rows, learner.generator)

        def see(some: Tensor) -> Tensor:
            with evaluating(learner.net):
                return look(some)[0, :, pool.classes :].to(labels.device)

        features = see(nodes)
        graph = neighbour_graph(features, self.neighbours)
        seeds = torch.zeros(len(nodes), pool.classes, dtype=torch.float64)
        there = torch.isin(pool.labelled, nodes)
        seeds[torch.searchsorted(nodes, pool.labelled[there]), pool.labels[there]] = 1
        others = ~seeds.any(dim=1)
        shares = (pool.labels.bincount(minlength=pool.classes).double() / len(pool.labels)).numpy()
        spread = propagate(graph, seeds.numpy())
        reached = others.numpy() & spread.any(axis=1)
        spread[reached] = aligned(spread[reached], shares)
        labels[nodes] = classes_of(torch.from_numpy(spread)).to(labels.device)
        given = torch.where(others[:, None], torch.from_numpy(spread), seeds).to(features)
        for some, heard in attached(far, see, features, given, self.neighbours):
            labels[some] = classes_of(heard)
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


def classes_of(spread: Tensor) -> Tensor:
    """The class that reached each image most; -1 where none did."""
    return torch.where(spread.any(dim=1), spread.argmax(dim=1), -1)
