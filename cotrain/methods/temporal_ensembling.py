"""Temporal Ensembling (Laine & Aila, ICLR 2017).

The network's prediction should match the average of its predictions for the same image in earlier passes.
docs/methods/temporal_ensembling.md.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cotrain.types import Batch, Learner, Losses, Pool, SingleModel, Term, Views, exponential_ramp


class TemporalEnsembling(SingleModel):
    unlabelled_ratio: ClassVar[float] = 1
    paper_optim: ClassVar = {"kind": "adam", "lr": 0.003, "momentum": 0.9, "weight_decay": 0.0}

    unsupervised_weight: float = Field(30.0, ge=0, description="w_max, the weight of the consistency loss")
    unsupervised_ramp: float = Field(
        0.27,
        ge=0,
        le=1,
        description="fraction of the steps over which the weight rises as exp(-5 (1 - t)^2); 0: no ramp",
    )
    momentum: float = Field(0.6, ge=0, lt=1, description="alpha, the decay of the ensemble")

    @property
    def views(self) -> Views:
        return Views(weak=1, every_pass=True)

    def rise(self, progress: float) -> float:
        return exponential_ramp(progress, self.unsupervised_ramp)

    def init(self, pool: Pool) -> dict[str, Tensor]:
        return {
            "ensemble": torch.zeros(pool.images, pool.classes),
            "updates": torch.zeros(pool.images, dtype=torch.int64),
        }

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        (logits,) = learner.net(torch.cat([batch.x, batch.weak[0]]))
        supervised = F.cross_entropy(logits[: len(batch.y)].float(), batch.y)

        outputs = logits.float().softmax(dim=-1)  # of the labelled images too
        rows = torch.cat([batch.labelled_rows, batch.unlabelled_rows])
        updates = learner.memory["updates"][rows, None]
        known = updates > 0  # no image has a target in the first pass
        targets = learner.memory["ensemble"][rows] / (1 - self.momentum ** updates.clamp(min=1))
        unsupervised = ((outputs - targets).square() * known).mean()
        self.remember(learner.memory, rows, outputs.detach())
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms, {"known": known.float().mean()})

    def remember(self, memory: dict[str, Tensor], rows: Tensor, outputs: Tensor) -> None:
        """Z <- alpha Z + (1 - alpha) z; an image that occurs several times in a batch counts once, with its mean z."""
        times = (rows[:, None] == rows).sum(dim=1, keepdim=True)
        step = (1 - self.momentum) * (outputs - memory["ensemble"][rows])
        memory["ensemble"].index_add_(0, rows, step / times)
        memory["updates"][rows] += 1
