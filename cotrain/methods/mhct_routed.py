"""Multi-Head Co-Training with routed views: our variant, about as cheap as FixMatch.

Each unlabelled image has one strong view instead of M, and one head learns from it, drawn at random at every step. The
vote is unchanged. docs/methods/mhct_routed.md.
"""

from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from cotrain.methods.mhct import MultiHeadCoTraining
from cotrain.ops import heads_cross_entropy
from cotrain.types import Batch, Learner, Losses, Term


class RoutedCoTraining(MultiHeadCoTraining):
    strong_views: Literal["shared"] = Field(
        "shared", description="one strong view of each image, for the head it is routed to"
    )

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        images = len(batch.unlabelled_rows)
        routed = self.route(images, learner.generator)  # (M, U)
        labelled, weak, strong = self.predict(partial(learner.net, seen=routed), batch)
        pseudo_labels, selected = self.pseudo_label(weak)
        learnt = selected & routed.to(selected.device)
        supervised = heads_cross_entropy(labelled, batch.y).mean(dim=1).sum()
        unsupervised = self.unsupervised(strong, pseudo_labels, learnt, images / self.heads)
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms, {"agreement": selected.float().mean()})

    def route(self, images: int, generator: torch.Generator) -> Tensor:
        """(M, U) whether a head learns from an image: one random head per image, equally many images per head.

        Drawn on the host, where the sizes of the parts must be known, so that nothing waits for a GPU.
        """
        on_host = torch.Generator().manual_seed(generator.initial_seed())
        head = torch.randperm(images, generator=on_host) % self.heads
        return head == torch.arange(self.heads)[:, None]
