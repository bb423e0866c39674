"""Multi-Head Co-Training (Chen et al., AAAI 2022), Algorithm 1.

Every head is taught by the vote of the other heads on a weakly augmented image, and learns it on a strongly
augmented view of its own. docs/methods/mhct.md has the equations and every point where the released code differs.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from cotrain.ops import confident, heads_cross_entropy, vote_of_others
from cotrain.types import Batch, Learner, Losses, Method, Views


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
        labelled, weak, strong = self.predict(learner, batch)  # (M, B, C), (M, U, C), (M, U, C)
        supervised = heads_cross_entropy(labelled, batch.y).mean(dim=1).sum()

        pseudo_labels, selected = self.pseudo_label(weak)  # (M, U), (M, U)
        cross_entropy = heads_cross_entropy(strong, pseudo_labels)  # (M, U)
        counted = selected.sum(dim=1).clamp(min=1) if self.normaliser == "selected" else selected.shape[1]
        per_head = (cross_entropy * selected).sum(dim=1) / counted  # (M,)
        unsupervised = per_head.mean() if self.reduction == "mean" else per_head.sum()
        return Losses(supervised, unsupervised, {"agreement": selected.float().mean()})

    @torch.no_grad()
    def pseudo_label(self, weak: Tensor) -> tuple[Tensor, Tensor]:
        """What the other heads say of each unlabelled image, and whether enough of them agree."""
        weak = weak.float()
        if self.heads <= 2:  # a single head does the labelling: the head itself, or its only peer
            return confident(weak.flip(0), self.threshold)
        pseudo_labels, votes = vote_of_others(weak.argmax(dim=-1), weak.shape[-1])
        return pseudo_labels, votes > self.heads / 2

    def predict(self, learner: Learner, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of every head on the labelled images, the weak views, and the head's own strong view."""
        labelled, unlabelled = len(batch.x), len(batch.index)
        together, private = [batch.x], None
        if self.weak_pass == "joint":
            together.append(batch.weak[0])
        if self.strong_views == "shared":
            together.append(batch.strong[0])
        else:
            private = batch.strong
        if self.weak_pass == "joint":
            logits = learner.net(torch.cat(together), private)
            return logits.split([labelled, unlabelled, unlabelled], dim=1)
        with torch.no_grad():
            weak = learner.net(batch.weak[0])
        x, strong = learner.net(torch.cat(together), private).split([labelled, unlabelled], dim=1)
        return x, weak, strong
