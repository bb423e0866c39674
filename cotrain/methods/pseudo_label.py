"""Pseudo-Label (Lee, ICML workshop 2013), as in the tables of MixMatch and FixMatch.

Where the network is sure of a weak view, it learns its own prediction on that same view. docs/methods/pseudo_label.md.
"""

from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field

from cotrain.ops import without_update
from cotrain.types import Batch, Learner, Losses, SingleModel, Term, Views


class PseudoLabel(SingleModel):
    unlabelled_ratio: ClassVar[float] = 1
    paper_optim: ClassVar = {"lr": 0.03, "momentum": 0.9}

    unsupervised_ramp: float = Field(0.4, ge=0, le=1, description="share of the steps in which lambda rises from 0")
    threshold: float = Field(0.95, ge=0, le=1, description="confidence above which a pseudo-label is used")
    mask: Literal["example", "outer"] = Field(
        "example",
        description="sure images have a loss, or all have it in proportion to the number of sure ones (Google's code)",
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
        sure = (confidence > self.threshold).float()
        losses = F.cross_entropy(weak.float(), pseudo_labels, reduction="none")
        unsupervised = (losses * sure).mean() if self.mask == "example" else losses.mean() * sure.mean()
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms, {"selected": sure.mean()})
