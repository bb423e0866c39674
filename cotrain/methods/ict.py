"""Interpolation Consistency Training (Verma et al., IJCAI 2019).

The prediction for a mixture of two images should match the same mixture of the averaged network's two predictions.
docs/methods/ict.md.
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from cotrain.ops import beta, mix, without_update
from cotrain.types import Batch, Learner, Losses, SingleModel, Term, Views


class ICT(SingleModel):
    unlabelled_ratio: ClassVar[float] = 1
    paper_optim: ClassVar = {"kind": "adam", "lr": 0.002, "momentum": 0.9, "weight_decay": 0.02}

    unsupervised_weight: float = Field(100.0, ge=0, description="lambda, the weight of the consistency loss")
    unsupervised_ramp: float = Field(
        0.4, ge=0, le=1, description="fraction of the steps over which lambda rises from 0"
    )
    alpha: float = Field(0.75, gt=0, description="the mixing coefficients are drawn from Beta(alpha, alpha)")
    mix: Literal["probabilities", "logits"] = Field(
        "probabilities",
        description="which of the teacher's outputs are mixed: probabilities (paper) or logits (released code)",
    )

    @property
    def views(self) -> Views:
        return Views(weak=1, whole=True)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        (labelled,) = learner.net(batch.x)
        supervised = F.cross_entropy(labelled.float(), batch.y)

        (images,) = batch.weak
        share = beta(self.alpha, (len(images),), learner.generator)
        share = torch.maximum(share, 1 - share)
        with torch.no_grad(), without_update(learner.teacher, like=learner.net):
            (teacher,) = learner.teacher(images)
        teacher = teacher.float()
        if self.mix == "probabilities":
            teacher = teacher.softmax(dim=-1)
        targets = mix(teacher, teacher.flip(0), share)
        if self.mix == "logits":
            targets = targets.softmax(dim=-1)

        with without_update(learner.net):
            (mixed,) = learner.net(mix(images, images.flip(0), share))
        unsupervised = F.mse_loss(mixed.float().softmax(dim=-1), targets)
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms)
