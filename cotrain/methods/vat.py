"""Virtual Adversarial Training (Miyato et al., TPAMI 2018) with entropy minimisation.

Predictions must be confident, and stable under the small perturbation that changes them most. docs/methods/vat.md.
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cotrain.ops import entropy, full_precision, kl_divergence, without_update
from cotrain.types import Batch, Learner, Losses, SingleModel, Term, Views

VALUES = 3 * 32 * 32  # per image, at the size for which epsilon is given


class VAT(SingleModel):
    unlabelled_ratio: ClassVar[float] = 1
    paper_optim: ClassVar = {"kind": "adam", "lr": 0.002, "momentum": 0.9, "weight_decay": 0.02}
    terms: ClassVar[tuple[str, ...]] = ("supervised", "adversarial", "entropy")

    unsupervised_weight: float = Field(0.3, ge=0, description="weight of the adversarial loss")
    unsupervised_ramp: float = Field(
        0.4, ge=0, le=1, description="fraction of the steps over which that weight rises from 0"
    )
    entropy_weight: float = Field(0.06, ge=0, description="weight of the entropy; constant")
    epsilon: float = Field(
        12.0,
        gt=0,
        description="L2 norm of the perturbation of a normalised 3x32x32 image (12 is 6 for pixels in [-1, 1]); "
        "scaled to other sizes so that the mean square per value is the same",
    )
    xi: float = Field(
        1e-3, gt=0, description="L2 norm, in the same units, of the random step that starts the power iteration"
    )
    kl: Literal["paper", "reverse"] = Field(
        "paper", description="paper: KL(clean || perturbed); reverse: KL(perturbed || clean), as in Google's code"
    )

    @property
    def views(self) -> Views:
        return Views(weak=1)

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        (labelled,) = learner.net(batch.x)
        supervised = F.cross_entropy(labelled.float(), batch.y)

        (images,) = batch.weak
        with without_update(learner.net):
            with full_precision(images):
                (clean,) = learner.net(images)
                perturbation = self.perturbation(learner, images, clean.detach())
            (perturbed,) = learner.net(images + perturbation)
        adversarial = self.divergence(clean.detach(), perturbed).mean()
        uncertainty = entropy(clean).mean()
        terms = {
            "supervised": Term(supervised),
            "adversarial": Term(adversarial, self.weight(learner.progress)),
            "entropy": Term(uncertainty, self.entropy_weight),
        }
        return Losses(terms)

    def perturbation(self, learner: Learner, images: Tensor, clean: Tensor) -> Tensor:
        """One power iteration from a small random step: the direction in which the KL divergence grows fastest."""
        noise = torch.randn(images.shape, generator=learner.generator, device=images.device)
        probe = (self.xi * unit(noise)).requires_grad_()
        with torch.enable_grad():
            (probed,) = learner.net(images + probe)
            (direction,) = torch.autograd.grad(kl_divergence(clean, probed).sum(), probe)
        return self.epsilon * (images[0].numel() / VALUES) ** 0.5 * unit(direction)

    def divergence(self, clean: Tensor, perturbed: Tensor) -> Tensor:
        return kl_divergence(clean, perturbed) if self.kl == "paper" else kl_divergence(perturbed, clean)


def unit(vectors: Tensor) -> Tensor:
    """Scale each image to L2 norm 1; zero stays zero."""
    flat = vectors.flatten(1)
    flat = flat / (1e-12 + flat.abs().amax(dim=1, keepdim=True))
    return (flat * (1e-6 + flat.square().sum(dim=1, keepdim=True)).rsqrt()).view_as(vectors)
