"""FixMatch (Sohn et al., NeurIPS 2020) with RandAugment.

The network labels a weak view where it is sure, and learns that label on a strong view. docs/methods/fixmatch.md.
"""

from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field

from cotrain.ops import confident, labelled_weak_strong
from cotrain.types import Batch, Learner, Losses, SingleModel, Term, Views


class FixMatch(SingleModel):
    paper_optim: ClassVar = {"lr": 0.03, "momentum": 0.9}

    threshold: float = Field(0.95, ge=0, le=1, description="confidence from which a pseudo-label is used")
    weak_pass: Literal["joint", "separate"] = Field(
        "separate",
        description="weak views in the same batch as the rest and carried through backward (released code), "
        "or in a pass of their own without gradient (cheaper)",
    )

    @property
    def views(self) -> Views:
        return Views(weak=1, strong=1)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        labelled, weak, strong = labelled_weak_strong(learner.net, batch, self.weak_pass)
        pseudo_labels, sure = confident(weak, self.threshold)
        unsupervised = (F.cross_entropy(strong, pseudo_labels, reduction="none") * sure).mean()
        supervised = F.cross_entropy(labelled, batch.y)
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms, {"selected": sure.float().mean()})
