"""Pseudo-Label (Lee, ICML workshop 2013), as in the tables of MixMatch and FixMatch.

A confident prediction for a weak view is the label of that same view. docs/methods/pseudo_label.md.
"""

from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field

from cotrain.ops import without_update
from cotrain.types import Batch, Learner, Losses, SingleModel, Term, Views


class PseudoLabel(SingleModel):
    unlabelled_ratio: ClassVar[float] = 1
    paper_optim: ClassVar = {"lr": 0.03, "momentum": 0.9}

    unsupervised_ramp: float = Field(
        0.4, ge=0, le=1, description="fraction of the steps over which lambda rises from 0"
    )
    threshold: float = Field(0.95, ge=0, le=1, description="confidence above which a pseudo-label is used")
    mask: Literal["example", "outer"] = Field(
        "example",
        description="example: only confident images have a loss; outer: all have, scaled by the fraction of confident "
        "images (Google's code)",
    )

    @property
    def views(self) -> Views:
        return Views(weak=1)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        (labelled,) = learner.net(batch.x)
        supervised = F.cross_entropy(labelled.float(), batch.y)

        with without_update(learner.net):
            (weak,) = learner.net(batch.weak[0])
        confidence, pseudo_labels = weak.detach().float().softmax(dim=-1).max(dim=-1)
        confident = (confidence > self.threshold).float()
        losses = F.cross_entropy(weak.float(), pseudo_labels, reduction="none")
        unsupervised = (losses * confident).mean() if self.mask == "example" else losses.mean() * confident.mean()
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms, {"selected": confident.mean()})
