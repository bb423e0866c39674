"""ReMixMatch (Berthelot et al., ICLR 2020).

MixMatch whose guessed labels are aligned with the label distribution and are the targets of strong views.
docs/methods/remixmatch.md.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cotrain.augment.ctaugment import initial_rates, learn_rates
from cotrain.ops import interleaved_logits, mix_pool, sharpen, soft_cross_entropy, without_update
from cotrain.types import Batch, Learner, Losses, Pool, SingleModel, Term, Views

REMEMBERED = 128  # batches whose mean predictions are kept
DECAY = 0.999  # of the running average of the labels
TURNS = (0, 2, 1, 3)  # rotations, in units of 90 degrees, of the four quarters of a batch


class ReMixMatch(SingleModel):
    unlabelled_ratio: ClassVar[float] = 1
    paper_optim: ClassVar = {"lr": 0.03, "momentum": 0.9}
    terms: ClassVar[tuple[str, ...]] = ("supervised", "mixed", "unmixed", "rotation")

    strong_views: int = Field(8, ge=1, description="K, strong views of each unlabelled image")
    unsupervised_weight: float = Field(1.0, ge=0, description="weight of all three unlabelled terms")
    unsupervised_ramp: float = Field(
        1 / 64, ge=0, le=1, description="fraction of the steps over which all of them except rotation rise from 0"
    )
    mixed_weight: float = Field(1.5, ge=0, description="lambda_U, the weight of mixed unlabelled images")
    unmixed_weight: float = Field(0.5, ge=0, description="lambda_U1, the weight of the first strong view, unmixed")
    rotation_weight: float = Field(0.5, ge=0, description="lambda_r, the weight of predicting an image's rotation")
    temperature: float = Field(0.5, gt=0, description="T; below 1 sharpens the guessed labels")
    alpha: float = Field(0.75, gt=0, description="the mixing coefficients are drawn from Beta(alpha, alpha)")

    @property
    def views(self) -> Views:
        return Views(weak=1, strong=self.strong_views, labelled_strong=1, ctaugment="plain", whole=True)

    def extra(self, features: int) -> nn.Module:
        return nn.Linear(features, len(TURNS))

    def init(self, pool: Pool) -> dict[str, Tensor]:
        return {
            "cta_rates": initial_rates(),
            "guesses": torch.full((REMEMBERED, pool.classes), 1 / pool.classes),
            "labels": torch.full((pool.classes,), 1 / pool.classes),
        }

    def rates(self, memory: Mapping[str, Tensor]) -> Tensor:
        return memory["cta_rates"]

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        learn_rates(self.rates(learner.memory), learner.teacher, batch)
        labels = F.one_hot(batch.y, len(learner.memory["labels"])).float()
        guessed = self.guess(learner, batch.weak[0], labels)

        unlabelled = [*batch.weak, *batch.strong]
        sizes = [len(labels)] + [len(guessed)] * len(unlabelled)
        images, targets = mix_pool(
            torch.cat([*batch.x_strong, *unlabelled]),
            torch.cat([labels] + [guessed] * len(unlabelled)),
            self.alpha,
            learner.generator,
        )
        logits = interleaved_logits(learner.net, images.split(sizes), updating=len(unlabelled))
        supervised, mixed = soft_cross_entropy(torch.cat(logits), targets).split([len(labels), sum(sizes[1:])])

        with without_update(learner.net):
            (first,) = learner.net(batch.strong[0])
        unmixed = soft_cross_entropy(first, guessed).mean()
        rotation = self.rotation(learner, batch.strong[0])

        weight = self.weight(learner.progress)
        terms = {
            "supervised": Term(supervised.mean()),
            "mixed": Term(mixed.mean(), weight * self.mixed_weight),
            "unmixed": Term(unmixed, weight * self.unmixed_weight),
            "rotation": Term(rotation, self.unsupervised_weight * self.rotation_weight),
        }
        return Losses(terms)

    @torch.no_grad()
    def guess(self, learner: Learner, weak: Tensor, labels: Tensor) -> Tensor:
        """(U, C): aligned and sharpened predictions. Then update both distributions with this step's batch."""
        with without_update(learner.net):
            (logits,) = learner.net(weak)
        predicted = logits.float().softmax(dim=-1)
        guesses, label_average = learner.memory["guesses"], learner.memory["labels"]
        guessed = sharpen(align(predicted, label_average, guesses.mean(dim=0)), self.temperature)
        guesses[learner.step % REMEMBERED] = predicted.mean(dim=0)
        label_average.lerp_(labels.mean(dim=0), 1 - DECAY)
        return guessed

    def rotation(self, learner: Learner, images: Tensor) -> Tensor:
        """Cross-entropy of the rotations, predicted by the `extra` output."""
        turned, turns = rotated(images)
        with without_update(learner.net):
            (outputs,) = learner.net(turned, extra=True)
        classes = len(learner.memory["labels"])
        return F.cross_entropy(outputs[:, classes:].float(), turns)


def align(predicted: Tensor, wanted: Tensor, usual: Tensor) -> Tensor:
    """Distribution alignment: scale by the ratio of the wanted to the usual class frequencies."""
    aligned = predicted * (1e-6 + wanted) / (1e-6 + usual)
    return aligned / aligned.sum(dim=-1, keepdim=True)


def rotated(images: Tensor) -> tuple[Tensor, Tensor]:
    """The images, rotated by quarters of the batch, and each image's rotation in units of 90 degrees.

    Images that are not square are only rotated by 180 degrees.
    """
    square = images.shape[-1] == images.shape[-2]
    quarters = list(zip(images.tensor_split(len(TURNS)), TURNS if square else (0, 2, 0, 2), strict=True))
    turns = [torch.full((len(quarter),), turn, device=images.device) for quarter, turn in quarters]
    return torch.cat([quarter.rot90(turn, (-2, -1)) for quarter, turn in quarters]), torch.cat(turns)
