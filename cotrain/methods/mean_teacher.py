"""Mean Teacher (Tarvainen & Valpola, NeurIPS 2017), as in the tables of MixMatch and FixMatch.

The network's prediction should match its moving average's prediction for another weak view.
docs/methods/mean_teacher.md.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field

from cotrain.ops import without_update
from cotrain.types import Batch, Learner, Losses, SingleModel, Term, Views


class MeanTeacher(SingleModel):
    unlabelled_ratio: ClassVar[float] = 1
    paper_optim: ClassVar = {"lr": 0.03, "momentum": 0.9}

    unsupervised_weight: float = Field(50.0, ge=0, description="lambda, the weight of the consistency loss")
    unsupervised_ramp: float = Field(
        0.4, ge=0, le=1, description="fraction of the steps over which lambda rises from 0"
    )

    @property
    def views(self) -> Views:
        return Views(weak=2)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        (labelled,) = learner.net(batch.x)
        supervised = F.cross_entropy(labelled.float(), batch.y)

        with torch.no_grad(), without_update(learner.teacher, like=learner.net):
            (teacher,) = learner.teacher(batch.weak[0])
        with without_update(learner.net):
            (student,) = learner.net(batch.weak[1])
        unsupervised = F.mse_loss(student.float().softmax(dim=-1), teacher.float().softmax(dim=-1))
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms)
