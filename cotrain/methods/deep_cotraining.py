"""Deep Co-Training (Qiao et al., ECCV 2018) with two networks.

Both must make the same prediction for an image, and each must resist adversarial examples made against the other.
docs/methods/deep_cotraining.md.
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
        0.13,
        ge=0,
        le=1,
        description="fraction of the steps over which both weights rise as exp(-5 (1 - t)^2); 0: no ramp",
    )
    epsilon: float = Field(
        0.08,
        gt=0,
        description="step size of the attack for each value of a normalised image (0.08 is 0.02 for pixels in [0, 1])",
    )
    soft_targets: Literal["gradient", "detached"] = Field(
        "gradient", description="whether the gradient of the view difference loss also flows into the targets"
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
        attacked = learner.net(images[:0], adversarial.flip(0))  # each network gets the examples made against the other
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
        """(2, n, c, h, w) adversarial examples for each network: one FGSM step up its loss on these classes (2, n)."""
        perturbed = images.detach().expand(2, *images.shape).clone().requires_grad_()
        with evaluating(learner.net), full_precision(images), torch.enable_grad():
            losses = heads_cross_entropy(learner.net(images[:0], perturbed), classes)
            (gradient,) = torch.autograd.grad(losses.sum(), perturbed)
        return perturbed.detach() + self.epsilon * gradient.sign()
