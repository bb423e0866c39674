"""Unsupervised Data Augmentation (Xie et al., NeurIPS 2020).

Confident predictions on weak views, sharpened, are the targets for strong views. docs/methods/uda.md.
"""

import math
from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cotrain.ops import kl_divergence, labelled_weak_strong
from cotrain.types import Batch, Learner, Losses, SingleModel, Term, Views


class UDA(SingleModel):
    paper_optim: ClassVar = {"lr": 0.03, "momentum": 0.9}

    threshold: float = Field(0.8, ge=0, le=1, description="confidence above which a prediction is used")
    temperature: float = Field(0.4, gt=0, description="divides the logits of weak views; below 1 sharpens")
    tsa: Literal["off", "linear", "exp", "log"] = Field(
        "off",
        description="training signal annealing: labelled images predicted with more confidence than a rising threshold "
        "have no loss",
    )
    weak_pass: Literal["joint", "separate"] = Field(
        "separate",
        description="joint: weak views share one batch and the backward pass with the other images (released code); "
        "separate: weak views have their own pass without gradient (cheaper)",
    )

    @property
    def views(self) -> Views:
        return Views(weak=1, strong=1)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        labelled, weak, strong = labelled_weak_strong(learner.net, batch, self.weak_pass)
        confident = (weak.softmax(dim=-1).amax(dim=-1) > self.threshold).float()
        unsupervised = (kl_divergence(weak / self.temperature, strong) * confident).mean()
        supervised = self.supervised(labelled, batch.y, learner.progress)
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms, {"selected": confident.mean()})

    def supervised(self, logits: Tensor, y: Tensor, progress: float) -> Tensor:
        """The cross-entropy of the images whose confidence is not above the annealing threshold."""
        losses = F.cross_entropy(logits, y, reduction="none")
        if self.tsa == "off":
            return losses.mean()
        kept = ((-losses.detach()).exp() <= self.most(progress, logits.shape[-1])).float()
        return (losses * kept).sum() / kept.sum().clamp(min=1)

    def most(self, progress: float, classes: int) -> float:
        """The annealing threshold, the highest confidence that still has a loss: rises from 1 / C to 1."""
        rises = {"linear": progress, "exp": math.exp(5 * (progress - 1)), "log": 1 - math.exp(-5 * progress)}
        return 1 / classes + rises[self.tsa] * (1 - 1 / classes)
