"""Multi-Head Co-Training with routed views, ours: about as cheap as FixMatch.

One strong view of each unlabelled image instead of M. A single head learns from it, drawn anew at every step; the vote
is unchanged. docs/methods/mhct_routed.md.
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
        "shared", description="one strong view of each image, for the head that it is sent to"
    )

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        images = len(batch.unlabelled_rows)
        sent = self.route(images, learner.generator)  # (M, U)
        labelled, strong, pseudo_labels, selected = self.predict(partial(learner.net, seen=sent), batch)
        taught = selected & sent.to(selected.device)
        supervised = heads_cross_entropy(labelled, batch.y).mean(dim=1).sum()
        unsupervised = self.unsupervised(strong, pseudo_labels, taught, images / self.heads)
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms, {"agreement": selected.float().mean()})

    def route(self, images: int, generator: torch.Generator) -> Tensor:
        """(M, U) which head learns from which image: one each, at random, all heads from equally many.

        It is drawn on the host, where the sizes of the parts must be known, so that nothing waits for a GPU.
        """
        on_host = torch.Generator().manual_seed(generator.initial_seed())
        head = torch.randperm(images, generator=on_host) % self.heads
        return head == torch.arange(self.heads)[:, None]
