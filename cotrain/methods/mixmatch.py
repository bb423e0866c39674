"""MixMatch (Berthelot et al., NeurIPS 2019).

Labelled images and unlabelled images with guessed labels are all mixed with each other. docs/methods/mixmatch.md.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cotrain.ops import interleaved_logits, mix_pool, sharpen, soft_cross_entropy, without_update
from cotrain.types import Batch, Learner, Losses, SingleModel, Term, Views


class MixMatch(SingleModel):
    unlabelled_ratio: ClassVar[float] = 1
    paper_optim: ClassVar = {"lr": 0.03, "momentum": 0.9}

    unsupervised_weight: float = Field(100.0, ge=0, description="lambda_U, the weight of the unlabelled loss")
    unsupervised_ramp: float = Field(
        1 / 64, ge=0, le=1, description="fraction of the steps over which lambda_U rises from 0"
    )
    temperature: float = Field(0.5, gt=0, description="T; below 1 sharpens the guessed labels")
    alpha: float = Field(0.5, gt=0, description="the mixing coefficients are drawn from Beta(alpha, alpha)")

    @property
    def views(self) -> Views:
        return Views(weak=2, whole=True)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        guessed = self.guess(learner, batch.weak)
        labels = F.one_hot(batch.y, guessed.shape[-1]).float()

        sizes = [len(batch.x)] + [len(view) for view in batch.weak]
        images, targets = mix_pool(
            torch.cat([batch.x, *batch.weak]),
            torch.cat([labels] + [guessed] * len(batch.weak)),
            self.alpha,
            learner.generator,
        )
        labelled, *unlabelled = interleaved_logits(learner.net, images.split(sizes), updating=0)
        labels, guesses = targets.split([sizes[0], sum(sizes[1:])])

        supervised = soft_cross_entropy(labelled, labels).mean()
        unsupervised = F.mse_loss(torch.cat(unlabelled).float().softmax(dim=-1), guesses)
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms)

    @torch.no_grad()
    def guess(self, learner: Learner, views: Tensor) -> Tensor:
        """(U, C): the mean prediction over an image's views, sharpened."""
        with without_update(learner.net):
            logits = torch.cat([learner.net(view) for view in views])
        return sharpen(logits.float().softmax(dim=-1).mean(dim=0), self.temperature)
