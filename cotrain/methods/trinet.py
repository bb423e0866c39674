"""Tri-net (Chen et al., IJCAI 2018).

Three heads start from differently smeared labels. In every round, each head learns the classes on which the other two
agree, confidently and stably under dropout. docs/methods/trinet.md.
"""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cotrain.ops import batch_statistics, evaluating, heads_cross_entropy, soft_cross_entropy
from cotrain.types import Batch, Learner, Look, Losses, Method, Pool, Term, Views

FIRST_POOL = 1000  # images; the pool to label doubles in every round
SMEARED_EVERY = 4  # rounds


class TriNet(Method):
    paper_optim: ClassVar = {"lr": 0.03, "momentum": 0.9}

    heads: int = Field(3, ge=3, le=3, description="three heads on the shared trunk")
    initial: float = Field(
        0.25, ge=0, lt=1, description="fraction of the steps, at the start, that use only smeared labels"
    )
    rounds: int = Field(30, ge=1, description="rounds of pseudo-labelling in the remaining steps")
    threshold: float = Field(
        0.95, ge=0, le=1, description="minimum mean confidence of two heads that label for the third"
    )
    smeared_less: float = Field(
        0.25, ge=0, le=1, description="how much lower the threshold is in the round after smearing"
    )
    smeared_step: float = Field(
        0.05, ge=0, le=1, description="how much each new smearing permanently lowers the threshold"
    )
    smearing: float = Field(0.05, ge=0, description="standard deviation of the noise on the labels")
    passes: int = Field(9, ge=0, description="passes with dropout; at most a third of them may predict another class")

    @property
    def views(self) -> Views:
        return Views(weak=1)

    @property
    def dropout(self) -> tuple[float, ...]:
        return 0.3, 0.4, 0.5

    def init(self, pool: Pool) -> dict[str, Tensor]:
        place = torch.zeros(pool.images, dtype=torch.int64)
        place[pool.labelled] = torch.arange(len(pool.labelled))
        return {
            "labels": torch.full((3, pool.images), -1),  # pseudo-labels for each head; -1: none
            "noise": torch.zeros(3, len(pool.labelled), pool.classes),
            "place": place,  # where the noise of a labelled row is
            "unlabelled": pool.unlabelled,
        }

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return (self.smearing * torch.randn(shape, generator=generator, device=generator.device)).clamp(min=0)

    def round(self, step: int, steps: int) -> int:
        """1, 2, ...; 0 in the initial phase."""
        first = math.ceil(self.initial * steps)
        return 1 + (step - first) * self.rounds // (steps - first) if step >= first else 0

    def smears(self, number: int, unlabelled: int) -> bool:
        """Whether a round uses only smeared labels: the initial one, and every fourth once the pool is complete."""
        return number == 0 or (FIRST_POOL * 2**number >= unlabelled and number % SMEARED_EVERY == 0)

    def sigma(self, number: int, unlabelled: int) -> float:
        """The threshold of a round."""
        smeared = sum(self.smears(earlier, unlabelled) for earlier in range(1, number))
        reduction = self.smeared_less if self.smears(number - 1, unlabelled) else 0
        return max(0.0, self.threshold - self.smeared_step * smeared - reduction)

    def refresh_steps(self, pool: Pool, steps: int, unlabelled: int) -> list[int]:
        rounds = [self.round(step, steps) for step in range(steps)]
        return [step for step in range(steps) if step == 0 or rounds[step] > rounds[step - 1]]

    def refresh(self, learner: Learner, pool: Pool, look: Look) -> None:
        """Start a round: draw new smeared labels for all heads, or new pseudo-labels for each head."""
        number, images = self.round(learner.step, learner.steps), len(pool.unlabelled)
        labels, noise = learner.memory["labels"], learner.memory["noise"]
        labels.fill_(-1)
        if self.smears(number, images):
            noise.copy_(self.noise(tuple(noise.shape), learner.generator))
            return
        order = torch.randperm(images, generator=learner.generator, device=learner.generator.device).cpu()
        rows = pool.unlabelled[order[: FIRST_POOL * 2**number]]
        with evaluating(learner.net), batch_statistics(learner.net):
            classes, confident = self.label(look(rows), self.sigma(number, images))
        with evaluating(learner.net, dropout=True), batch_statistics(learner.net):
            changed = sum(self.differs(look(rows), classes) for _ in range(self.passes))
        kept = confident & (3 * changed <= self.passes)
        labels[:, rows] = torch.where(kept, classes, -1).to(labels.device)

    def label(self, logits: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        """For each head, a class, and whether the other two agree on it with enough confidence: (3, n, C) -> (3, n)."""
        confidence, predicted = logits.softmax(dim=-1).max(dim=-1)
        one, other = [1, 2, 0], [2, 0, 1]
        agree = predicted[one] == predicted[other]
        return predicted[one], agree & ((confidence[one] + confidence[other]) / 2 >= sigma)

    def differs(self, logits: Tensor, classes: Tensor) -> Tensor:
        """For each head, whether the other two together now predict another class."""
        probabilities = logits.softmax(dim=-1)
        return (probabilities.sum(dim=0) - probabilities).argmax(dim=-1) != classes

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        memory = learner.memory
        if self.smears(self.round(learner.step, learner.steps), len(memory["unlabelled"])):
            logits = learner.net(batch.x)
            targets = F.one_hot(batch.y, logits.shape[-1]) + memory["noise"][:, memory["place"][batch.labelled_rows]]
            targets = targets / targets.sum(dim=-1, keepdim=True)
            supervised = soft_cross_entropy(logits, targets).mean(dim=1).sum()
            nothing = supervised.new_zeros(())
            return Losses({"supervised": Term(supervised), "unsupervised": Term(nothing)}, {"labelled": nothing})

        logits = learner.net(torch.cat([batch.x, batch.weak[0]]), trunk_of=0)
        labelled, unlabelled = logits.split([len(batch.y), len(batch.unlabelled_rows)], dim=1)
        supervised = heads_cross_entropy(labelled, batch.y).mean(dim=1).sum()
        labels = memory["labels"][:, batch.unlabelled_rows]
        selected = labels >= 0
        per_head = (heads_cross_entropy(unlabelled, labels.clamp(min=0)) * selected).sum(dim=1)
        unsupervised = (per_head / selected.sum(dim=1).clamp(min=1)).sum()
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms, {"labelled": selected.float().mean()})
