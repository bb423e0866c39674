"""FixMatch (Sohn et al., NeurIPS 2020) with CTAugment.

FixMatch whose strong views are as strong as the averaged network can handle. docs/methods/fixmatch_cta.md.
"""

from collections.abc import Mapping

from torch import Tensor

from cotrain.augment.ctaugment import initial_rates, learn_rates
from cotrain.methods.fixmatch import FixMatch
from cotrain.types import Batch, Learner, Losses, Pool, Views


class FixMatchCTA(FixMatch):
    @property
    def views(self) -> Views:
        return Views(weak=1, strong=1, ctaugment="cutout")

    def init(self, pool: Pool) -> dict[str, Tensor]:
        return {"cta_rates": initial_rates()}

    def rates(self, memory: Mapping[str, Tensor]) -> Tensor:
        return memory["cta_rates"]

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        learn_rates(self.rates(learner.memory), learner.teacher, batch)
        return super().loss(learner, batch)
