"""Labelled images only: the baseline that shows whether unlabelled images help."""

from typing import ClassVar

from cotrain.ops import heads_cross_entropy
from cotrain.types import Batch, Learner, Losses, Method, Term, Views


class Supervised(Method):
    paper_optim: ClassVar = {"lr": 0.03, "momentum": 0.9}
    terms: ClassVar[tuple[str, ...]] = ("supervised",)

    @property
    def views(self) -> Views:
        return Views(weak=0, strong=0)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        supervised = heads_cross_entropy(learner.net(batch.x), batch.y).mean(dim=1).sum()
        return Losses({"supervised": Term(supervised)})
