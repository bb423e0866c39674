"""Deep Co-Training (Qiao et al., ECCV 2018) with two networks.

Both must say the same of an image, and each must resist what fools the other. docs/methods/deep_cotraining.md.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cotrain.ops import evaluating, full_precision, heads_cross_entropy, js_divergence, soft_cross_entropy
from cotrain.types import Batch, Learner, Losses, Method, Term, Views, exponential_ramp


class DeepCoTraining(Method):
    unlabelled_ratio: ClassVar[float] = 11.5
    paper_optim: ClassVar = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
    terms: ClassVar[tuple[str, ...]] = ("supervised", "disagreement", "difference")

    heads: int = Field(2, ge=2, le=2, description="two networks that share nothing")
    unsupervised_weight: float = Field(10.0, ge=0, description="lambda_cot, the weight of the networks' disagreement")
    difference_weight: float = Field(0.5, ge=0, description="lambda_diff, the weight of the view difference loss")
    unsupervised_ramp: float = Field(
        0.13, ge=0, le=1, description="share of the steps in which both weights rise by exp(-5 (1 - t)^2); 0: no rise"
    )
    epsilon: float = Field(
        0.08,
        gt=0,
        description="step of the attack on each value of a normalised image (0.08: 0.02 for pixels in [0, 1])",
    )
    soft_targets: Literal["gradient", "detached"] = Field(
        "gradient", description="whether the view difference loss also teaches the network that gives the target"
    )

    @property
    def views(self) -> Views:
        return Views(weak=1)

    @property
    def share(self) -> str:
        return "none"

    def rise(self, progress: float) -> float:
        return exponential_ramp(progress, self.unsupervised_ramp)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        labels, images = len(batch.y), torch.cat([batch.x, batch.weak[0]])
        logits = learner.net(images)  # (2, B + U, C)
        supervised = heads_cross_entropy(logits[:, :labels], batch.y).mean(dim=1).sum()
        disagreement = js_divergence(logits[:, labels:]).mean()

        predicted = logits[:, labels:].detach().argmax(dim=-1)
        adversarial = self.attack(learner, images, torch.cat([batch.y.expand(2, -1), predicted], dim=1))
        attacked = learner.net(images[:0], adversarial.flip(0))  # each network sees what was made against the other
        targets = logits.float().softmax(dim=-1).flip(0)
        if self.soft_targets == "detached":
            targets = targets.detach()
        difference = soft_cross_entropy(attacked, targets).sum(dim=0).mean()
        terms = {
            "supervised": Term(supervised),
            "disagreement": Term(disagreement, self.weight(learner.progress)),
            "difference": Term(difference, self.difference_weight * self.rise(learner.progress)),
        }
        return Losses(terms)

    def attack(self, learner: Learner, images: Tensor, classes: Tensor) -> Tensor:
        """(2, n, c, h, w) images that fool network m: one step up its loss on these classes (2, n), by sign."""
        own = images.detach().expand(2, *images.shape).clone().requires_grad_()
        with evaluating(learner.net), full_precision(images), torch.enable_grad():
            losses = heads_cross_entropy(learner.net(images[:0], own), classes)
            (gradient,) = torch.autograd.grad(losses.sum(), own)
        return own.detach() + self.epsilon * gradient.sign()
