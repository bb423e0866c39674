"""Multi-Head Co-Training (Chen et al., AAAI 2022), Algorithm 1.

Every head is taught by the vote of the other heads on a weakly augmented image, and learns it on a strongly
augmented view of its own. docs/methods/mhct.md has the equations and every point where the released code differs.
"""

from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from cotrain.ops import confident, heads_cross_entropy, majority_of_others
from cotrain.types import Batch, Learner, Losses, Method, Views


class MultiHeadCoTraining(Method):
    heads: int = Field(3, ge=1, description="classification heads M on the shared trunk")
    strong_views: Literal["per_head", "shared", "routed"] = Field(
        "per_head",
        description="a strong view for each head, one for all of them (ablation 2), "
        "or one for a single head, another one each step (ours: about as cheap as FixMatch)",
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

    strong_pass: Literal["all", "selected"] = Field(
        "all",
        description="all strong views, or only those that have a pseudo-label: less work, "
        "but batch-norm then sees no others; needs a separate weak pass",
    )

    @field_validator("strong_pass")
    @classmethod
    def _known_in_time(cls, value: str, info: ValidationInfo) -> str:
        if value == "selected" and info.data.get("weak_pass") == "joint":
            raise ValueError("in a joint pass nothing is known of the pseudo-labels; use weak_pass=separate")
        return value

    @property
    def views(self) -> Views:
        strong = self.heads if self.strong_views == "per_head" else 1
        return Views(weak=1, strong=strong, weak_augment=self.weak_augment)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        images = len(batch.unlabelled_rows)
        sent = self.route(images, learner.generator) if self.strong_views == "routed" else None  # (M, U)
        labelled, strong, pseudo_labels, selected = self.predict(learner, batch, sent)
        supervised = heads_cross_entropy(labelled, batch.y).mean(dim=1).sum()

        taught = selected if sent is None else selected & sent.to(selected.device)
        considered = images if sent is None else images / self.heads
        counted = taught.sum(dim=1).clamp(min=1) if self.normaliser == "selected" else considered
        per_head = (heads_cross_entropy(strong, pseudo_labels) * taught).sum(dim=1) / counted  # (M,)
        unsupervised = per_head.mean() if self.reduction == "mean" else per_head.sum()
        return Losses(supervised, unsupervised, {"agreement": selected.float().mean()})

    def predict(self, learner: Learner, batch: Batch, sent: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits on the labelled images (M, B, C) and the strong views (M, U, C), pseudo-labels and selected (M, U)."""
        labels, images = len(batch.y), len(batch.unlabelled_rows)
        if self.weak_pass == "joint":
            logits = learner.net(torch.cat([batch.x, batch.weak[0]]), batch.strong, sent)
            labelled, weak, strong = logits.split([labels, images, images], dim=1)
            return labelled, strong, *self.pseudo_label(weak)
        with torch.no_grad():
            weak = learner.net(batch.weak[0])
        pseudo_labels, selected = self.pseudo_label(weak)
        seen = sent
        if self.strong_pass == "selected":
            seen = selected if sent is None else selected & sent.to(selected.device)
        labelled, strong = learner.net(batch.x, batch.strong, seen).split([labels, images], dim=1)
        return labelled, strong, pseudo_labels, selected

    @torch.no_grad()
    def pseudo_label(self, weak: Tensor) -> tuple[Tensor, Tensor]:
        """What the other heads say of each unlabelled image, and whether enough of them agree."""
        weak = weak.float()
        if self.heads <= 2:  # a single head does the labelling: the head itself, or its only peer
            return confident(weak.flip(0), self.threshold)
        return majority_of_others(weak.argmax(dim=-1), weak.shape[-1])

    def route(self, images: int, generator: torch.Generator) -> Tensor:
        """(M, U) which head learns from which image: one each, at random, all heads from equally many.

        It is made on the host, where the sizes of the parts must be known: a GPU need not be waited for.
        """
        on_host = torch.Generator().manual_seed(generator.initial_seed())
        head = torch.randperm(images, generator=on_host) % self.heads
        return head == torch.arange(self.heads)[:, None]
