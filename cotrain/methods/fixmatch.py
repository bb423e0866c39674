"""FixMatch (Sohn et al., NeurIPS 2020) with RandAugment.

Confident predictions on weak views become pseudo-labels for strong views. docs/methods/fixmatch.md.
"""

from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cotrain.ops import confident, labelled_weak_strong
from cotrain.types import Batch, Learner, Losses, SingleModel, Term, Views


class FixMatch(SingleModel):
    paper_optim: ClassVar = {"lr": 0.03, "momentum": 0.9}

    threshold: float = Field(0.95, ge=0, le=1, description="minimum confidence of a pseudo-label that is used")
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
        pseudo_labels, selected = self.pseudo_label(weak)
        unsupervised = (F.cross_entropy(strong, pseudo_labels, reduction="none") * selected).mean()
        supervised = F.cross_entropy(labelled, batch.y)
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms, {"selected": selected.float().mean()})

    def pseudo_label(self, weak: Tensor) -> tuple[Tensor, Tensor]:
        """The class of each image, and whether it is used: (U,) both."""
        return confident(weak, self.threshold)
