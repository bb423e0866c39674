"""Multi-Head Co-Training (Chen et al., AAAI 2022), Algorithm 1.

The other heads vote on a weakly augmented image; their majority is a head's pseudo-label for its own strongly augmented
view. docs/methods/mhct.md has the equations and every point where the released code differs.
"""

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from cotrain.ops import confident, heads_cross_entropy, majority_of_others
from cotrain.types import MOST_HEADS, Batch, Learner, Losses, Method, Term, Views


class MultiHeadCoTraining(Method):
    heads: int = Field(3, ge=1, le=MOST_HEADS, description="classification heads M on the shared trunk")
    strong_views: Literal["per_head", "shared"] = Field(
        "per_head", description="one strong view for each head, or one shared by all heads (ablation 2)"
    )
    weak_augment: bool = Field(
        True, description="predict pseudo-labels on weak views; false: on the unaugmented images (ablation 3)"
    )
    normaliser: Literal["selected", "batch"] = Field(
        "selected",
        description="divide each head's unsupervised loss by the number of selected images, or of all images",
    )
    reduction: Literal["mean", "sum"] = Field("mean", description="how the heads' unsupervised losses are combined")
    threshold: float = Field(
        0.95,
        ge=0,
        le=1,
        description="minimum confidence of a pseudo-label when a single head predicts it (M = 1, 2)",
    )
    weak_pass: Literal["joint", "separate"] = Field(
        "separate",
        description="joint: weak views share one batch and the backward pass with the other images (released code); "
        "separate: weak views have their own pass without gradient (cheaper)",
    )

    @property
    def views(self) -> Views:
        strong = self.heads if self.strong_views == "per_head" else 1
        return Views(weak=1, strong=strong, weak_augment=self.weak_augment)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        """Line numbers are those of Algorithm 1. The images are already augmented (lines 2, 6 and 14)."""
        labelled, weak, strong = self.predict(learner.net, batch)
        pseudo_labels, selected = self.pseudo_label(weak)
        supervised = heads_cross_entropy(labelled, batch.y).mean(dim=1).sum()  # line 4: L_l
        unsupervised = self.unsupervised(strong, pseudo_labels, selected, len(batch.unlabelled_rows))  # line 18: L_u
        # line 19: minimise L_l + lambda L_u
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms, {"agreement": selected.float().mean()})

    def predict(self, net: Callable[..., Tensor], batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the labelled images (M, B, C), of the weak views and of each head's strong views (M, U, C)."""
        labels, images = len(batch.y), len(batch.unlabelled_rows)  # B_l, B_u
        if self.weak_pass == "joint":
            logits = net(torch.cat([batch.x, batch.weak[0]]), batch.strong)
            labelled, weak, strong = logits.split([labels, images, images], dim=1)
            return labelled, weak.detach(), strong
        with torch.no_grad():
            weak = net(batch.weak[0])
        labelled, strong = net(batch.x, batch.strong).split([labels, images], dim=1)
        return labelled, weak, strong

    @torch.no_grad()
    def pseudo_label(self, weak: Tensor) -> tuple[Tensor, Tensor]:
        """For each head, the other heads' class for each image, and whether it is selected: (M, U) both."""
        weak = weak.float()
        if self.heads <= 2:  # no majority is possible: the head itself (M = 1) or the other head (M = 2) labels
            return confident(weak.flip(0), self.threshold)
        predicted = weak.argmax(dim=-1)  # line 8: q
        return majority_of_others(predicted, weak.shape[-1])  # line 11: do the other heads agree?

    def unsupervised(self, strong: Tensor, pseudo_labels: Tensor, selected: Tensor, images: float) -> Tensor:
        """L_u: the cross-entropy of the heads on their selected pseudo-labels; `images` is the batch size per head."""
        losses = heads_cross_entropy(strong, pseudo_labels)  # line 15: l, (M, U)
        divisor = selected.sum(dim=1).clamp(min=1) if self.normaliser == "selected" else images
        per_head = (losses * selected).sum(dim=1) / divisor  # (M,)
        return per_head.mean() if self.reduction == "mean" else per_head.sum()
