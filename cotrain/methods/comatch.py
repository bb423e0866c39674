"""CoMatch (Li, Xiong & Hoi, ICCV 2021).

The network learns class probabilities and an embedding together: neighbours in the embedding smooth the pseudo-labels,
and images with similar pseudo-labels are pulled together in the embedding. docs/methods/comatch.md.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cotrain.ops import full_precision, soft_cross_entropy
from cotrain.types import Batch, Learner, Losses, Pool, SingleModel, Term, Views


class CoMatch(SingleModel):
    paper_optim: ClassVar = {"lr": 0.03, "momentum": 0.9}
    terms: ClassVar[tuple[str, ...]] = ("supervised", "pseudo_label", "contrast")

    unsupervised_weight: float = Field(1.0, ge=0, description="lambda_cls, the weight of the pseudo-label loss")
    contrast_weight: float = Field(1.0, ge=0, description="lambda_ctr, the weight of the graph contrastive loss")
    threshold: float = Field(0.95, ge=0, le=1, description="minimum confidence of a pseudo-label that is used")
    graph_threshold: float = Field(0.8, ge=0, le=1, description="minimum similarity of neighbouring pseudo-labels")
    alpha: float = Field(
        0.9, ge=0, le=1, description="weight of an image's own prediction in its pseudo-label; the rest is the bank's"
    )
    temperature: float = Field(0.2, gt=0, description="temperature of the similarities between embeddings")
    dimensions: int = Field(64, ge=1, description="size of the embedding")
    bank: int = Field(
        2560, ge=1, description="how many of the latest images' embeddings are kept; 5 (B + U) in the paper"
    )
    batches: int = Field(32, ge=1, description="how many of the latest batches distribution alignment averages over")

    @property
    def views(self) -> Views:
        return Views(weak=1, strong=2)

    def extra(self, features: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, features), nn.LeakyReLU(0.1), nn.Linear(features, self.dimensions))

    def init(self, pool: Pool) -> dict[str, Tensor]:
        return {
            "means": torch.zeros(self.batches, pool.classes),
            "batches": torch.zeros(1, dtype=torch.int64),  # number seen so far
            "embeddings": torch.zeros(self.bank, self.dimensions),
            "probabilities": torch.zeros(self.bank, pool.classes),
            "images": torch.zeros(1, dtype=torch.int64),  # number put into the bank so far
        }

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        sizes = [len(batch.y)] + 3 * [len(batch.unlabelled_rows)]
        (outputs,) = learner.net(torch.cat([batch.x, batch.weak[0], *batch.strong]), extra=True)
        with full_precision(outputs):
            logits, embeddings = outputs.float().tensor_split([outputs.shape[1] - self.dimensions], dim=1)
            labelled, weak, strong, _ = logits.split(sizes)
            labelled_embeddings, weak_embeddings, first, second = F.normalize(embeddings, dim=1).split(sizes)
            supervised = F.cross_entropy(labelled, batch.y)

            with torch.no_grad():
                aligned = self.align(learner.memory, weak.softmax(dim=-1))
                pseudo_labels = self.smooth(learner.memory, aligned, weak_embeddings)
                classes = F.one_hot(batch.y, aligned.shape[1]).to(aligned.dtype)
                embedded = torch.cat([weak_embeddings, labelled_embeddings])
                self.remember(learner.memory, embedded, torch.cat([aligned, classes]))
                confident = (pseudo_labels.amax(dim=1) >= self.threshold).float()
                graph = self.graph(pseudo_labels)
            classified = (soft_cross_entropy(strong, pseudo_labels) * confident).mean()
            similarity = (first @ second.T / self.temperature).softmax(dim=1)
            contrast = -(graph * (similarity + 1e-7).log()).sum(dim=1).mean()
        terms = {
            "supervised": Term(supervised),
            "pseudo_label": Term(classified, self.weight(learner.progress)),
            "contrast": Term(contrast, self.contrast_weight * self.rise(learner.progress)),
        }
        return Losses(terms, {"selected": confident.mean()})

    def align(self, memory: dict[str, Tensor], predicted: Tensor) -> Tensor:
        """Distribution alignment: divide by the mean prediction over the latest batches, including this one."""
        memory["means"].index_copy_(0, memory["batches"] % self.batches, predicted.mean(dim=0, keepdim=True))
        memory["batches"] += 1
        mean = memory["means"].sum(dim=0) / memory["batches"].clamp(max=self.batches)
        return F.normalize(predicted / mean.clamp(min=1e-12), p=1, dim=1)

    def smooth(self, memory: dict[str, Tensor], aligned: Tensor, embeddings: Tensor) -> Tensor:
        """Pseudo-labels: the aligned predictions, averaged with those of their neighbours once the bank is full."""
        near = (embeddings @ memory["embeddings"].T / self.temperature).softmax(dim=1)
        smoothed = self.alpha * aligned + (1 - self.alpha) * near @ memory["probabilities"]
        return torch.where(memory["images"] >= self.bank, smoothed, aligned)

    def remember(self, memory: dict[str, Tensor], embeddings: Tensor, probabilities: Tensor) -> None:
        """Replace the oldest images in the bank by these."""
        embeddings, probabilities = embeddings[-self.bank :], probabilities[-self.bank :]
        places = (memory["images"] + torch.arange(len(embeddings), device=embeddings.device)) % self.bank
        memory["embeddings"].index_copy_(0, places, embeddings)
        memory["probabilities"].index_copy_(0, places, probabilities)
        memory["images"] += len(embeddings)

    def graph(self, pseudo_labels: Tensor) -> Tensor:
        """(U, U) similarities of the pseudo-labels; those below the threshold are 0, and rows sum to 1."""
        similarity = (pseudo_labels @ pseudo_labels.T).fill_diagonal_(1)
        return F.normalize(similarity * (similarity >= self.graph_threshold), p=1, dim=1)
