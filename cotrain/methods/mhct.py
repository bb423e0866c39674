"""Multi-Head Co-Training (Chen et al., AAAI 2022), Algorithm 1.

Every head is taught by the vote of the other heads on a weakly augmented image, and learns it on a strongly
augmented view of its own. docs/methods/mhct.md has the equations and every point where the released code differs.
"""

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from cotrain.ops import confident, heads_cross_entropy, majority_of_others
from cotrain.types import Batch, Learner, Losses, Method, Term, Views


class MultiHeadCoTraining(Method):
    heads: int = Field(3, ge=1, description="classification heads M on the shared trunk")
    strong_views: Literal["per_head", "shared"] = Field(
        "per_head", description="a strong view for each head, or one for all of them (ablation 2)"
    )
    weak_augment: bool = Field(
        True, description="pseudo-labels come from weak views; false: from the images as they are (ablation 3)"
    )
    normaliser: Literal["selected", "batch"] = Field(
        "selected", description="divide each head's unsupervised loss by the examples selected for it, or by the batch"
    )
    reduction: Literal["mean", "sum"] = Field("mean", description="how the heads' unsupervised losses are put together")
    threshold: float = Field(
        0.95,
        ge=0,
        le=1,
        description="confidence that selects a pseudo-label when one head does the labelling (M = 1, 2)",
    )
    weak_pass: Literal["joint", "separate"] = Field(
        "separate",
        description="weak views in the same batch as the rest and carried through backward (released code), "
        "or in a pass of their own without gradient (cheaper)",
    )

    @property
    def views(self) -> Views:
        strong = self.heads if self.strong_views == "per_head" else 1
        return Views(weak=1, strong=strong, weak_augment=self.weak_augment)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        labelled, strong, pseudo_labels, selected = self.predict(learner.net, batch)
        supervised = heads_cross_entropy(labelled, batch.y).mean(dim=1).sum()  # L_l
        unsupervised = self.unsupervised(strong, pseudo_labels, selected, len(batch.unlabelled_rows))  # L_u
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms, {"agreement": selected.float().mean()})

    def predict(self, net: Callable[..., Tensor], batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits on the labelled images (M, B, C) and the strong views (M, U, C), pseudo-labels and selected (M, U)."""
        labels, images = len(batch.y), len(batch.unlabelled_rows)
        if self.weak_pass == "joint":
            logits = net(torch.cat([batch.x, batch.weak[0]]), batch.strong)
            labelled, weak, strong = logits.split([labels, images, images], dim=1)
            return labelled, strong, *self.pseudo_label(weak)
        with torch.no_grad():
            weak = net(batch.weak[0])
        labelled, strong = net(batch.x, batch.strong).split([labels, images], dim=1)
        return labelled, strong, *self.pseudo_label(weak)

    @torch.no_grad()
    def pseudo_label(self, weak: Tensor) -> tuple[Tensor, Tensor]:
        """What the other heads predict for each unlabelled image, and whether enough of them agree: (M, U) both."""
        weak = weak.float()
        if self.heads <= 2:  # a single head does the labelling: the head itself, or its only peer
            return confident(weak.flip(0), self.threshold)
        return majority_of_others(weak.argmax(dim=-1), weak.shape[-1])

    def unsupervised(self, strong: Tensor, pseudo_labels: Tensor, selected: Tensor, images: float) -> Tensor:
        """Each head's cross-entropy on its selected pseudo-labels; `images` is the batch that a head learns from."""
        counted = selected.sum(dim=1).clamp(min=1) if self.normaliser == "selected" else images
        per_head = (heads_cross_entropy(strong, pseudo_labels) * selected).sum(dim=1) / counted  # (M,)
        return per_head.mean() if self.reduction == "mean" else per_head.sum()
