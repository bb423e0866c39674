"""Pi-Model (Laine & Aila, ICLR 2017), as in the tables of MixMatch and FixMatch.

The network's predictions for two weak views of an image should match. docs/methods/pi_model.md.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field

from cotrain.ops import without_update
from cotrain.types import Batch, Learner, Losses, SingleModel, Term, Views


class PiModel(SingleModel):
    unlabelled_ratio: ClassVar[float] = 1
    paper_optim: ClassVar = {"lr": 0.03, "momentum": 0.9}

    unsupervised_weight: float = Field(10.0, ge=0, description="lambda, the weight of the consistency loss")
    unsupervised_ramp: float = Field(
        0.4, ge=0, le=1, description="fraction of the steps over which lambda rises from 0"
    )

    @property
    def views(self) -> Views:
        return Views(weak=2)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        (labelled,) = learner.net(batch.x)
        supervised = F.cross_entropy(labelled.float(), batch.y)

        with without_update(learner.net):
            with torch.no_grad():
                (first,) = learner.net(batch.weak[0])
            (second,) = learner.net(batch.weak[1])
        unsupervised = F.mse_loss(second.float().softmax(dim=-1), first.float().softmax(dim=-1))
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms)
