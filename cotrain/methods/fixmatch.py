"""FixMatch (Sohn et al., NeurIPS 2020) with RandAugment.

The network labels a weak view where it is sure, and learns that label on a strong view. docs/methods/fixmatch.md.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from cotrain.ops import confident
from cotrain.types import Batch, Learner, Losses, SingleModel, Views


class FixMatch(SingleModel):
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
        labels, images = len(batch.y), len(batch.index)
        if self.weak_pass == "joint":
            (logits,) = learner.net(torch.cat([batch.x, batch.weak[0], batch.strong[0]]))
            labelled, weak, strong = logits.split([labels, images, images])
        else:
            with torch.no_grad():
                (weak,) = learner.net(batch.weak[0])
            (logits,) = learner.net(torch.cat([batch.x, batch.strong[0]]))
            labelled, strong = logits.split([labels, images])

        pseudo_labels, sure = confident(weak.detach().float(), self.threshold)
        unsupervised = (F.cross_entropy(strong.float(), pseudo_labels, reduction="none") * sure).mean()
        return Losses(F.cross_entropy(labelled.float(), batch.y), unsupervised, {"selected": sure.float().mean()})
