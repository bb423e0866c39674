"""Multi-Head Co-Training whose vote also hears the neighbours: our variant for features that mean something already.

The labels spread over a graph that joins similar images. When a head votes on an image, its prediction is averaged with
what reached the image over the graph. The first graph compares the trunk's features; later ones, what the heads have
learned to see. docs/methods/mhct_graph.md.
"""

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cotrain.graph import aligned, neighbour_graph, propagate
from cotrain.methods.mhct import MultiHeadCoTraining
from cotrain.ops import evaluating, heads_cross_entropy
from cotrain.types import Batch, Learner, Look, Losses, Pool, Term


class GraphCoTraining(MultiHeadCoTraining):
    graph_weight: float = Field(
        0.5, ge=0, le=1, description="weight of the neighbours' labels in each head's vote; the head has the rest"
    )
    neighbours: int = Field(10, ge=1, description="neighbours of each image in the graph")
    reach: float = Field(
        0.9, gt=0, lt=1, description="alpha, how far labels spread: the share that each image takes from its neighbours"
    )
    rounds: int = Field(3, ge=1, description="how often the graph is made, evenly over training")

    def extra(self, features: int) -> nn.Module:
        return nn.Identity()

    def init(self, pool: Pool) -> dict[str, Tensor]:
        return {"spread": torch.zeros(pool.images, pool.classes)}

    def refresh_steps(self, pool: Pool, steps: int, unlabelled: int) -> set[int]:
        return {steps * number // self.rounds for number in range(self.rounds)}

    def refresh(self, learner: Learner, pool: Pool, look: Look) -> None:
        """Spread the labels over the graph of all training images. Given labels stay; rows without any stay zero."""
        rows = torch.cat([pool.labelled, pool.unlabelled]).unique()
        first = learner.step == 0
        features = trunk_features(look, rows) if first else hidden_features(look, rows, pool.classes, learner)
        graph = neighbour_graph(features, self.neighbours, keep=first)
        seeds = torch.zeros(len(rows), pool.classes, dtype=torch.float64)
        seeds[torch.searchsorted(rows, pool.labelled), pool.labels] = 1
        reached = propagate(graph, seeds.numpy(), self.reach)
        spread = torch.from_numpy(reached if pool.shares is None else aligned(reached, pool.shares.numpy()))
        spread = torch.where(seeds.any(dim=1, keepdim=True), seeds, spread)
        learner.memory["spread"][rows] = spread.to(learner.memory["spread"])

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        labelled, weak, strong = self.predict(learner.net, batch)
        spread = learner.memory["spread"][batch.unlabelled_rows]
        pseudo_labels, selected = self.pseudo_label(self.with_neighbours(weak, spread))
        supervised = heads_cross_entropy(labelled, batch.y).mean(dim=1).sum()
        unsupervised = self.unsupervised(strong, pseudo_labels, selected, len(batch.unlabelled_rows))
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms, {"agreement": selected.float().mean()})

    def with_neighbours(self, weak: Tensor, spread: Tensor) -> Tensor:
        """Logits (M, U, C) of each head's prediction averaged with the graph's; (U, C) zeros leave it alone."""
        reached = spread.any(dim=1, keepdim=True)
        share = torch.where(reached, self.graph_weight, 0.0)
        return torch.lerp(weak.float().softmax(dim=-1), spread.expand_as(weak), share).clamp(min=1e-12).log()


def trunk_features(look: Look, rows: Tensor) -> Tensor:
    """(n, D) features of the trunk, standardised."""
    features = look.features(rows).float()
    return (features - features.mean(dim=0)) / features.std(dim=0).clamp(min=1e-4)


def hidden_features(look: Look, rows: Tensor, classes: int, learner: Learner) -> Tensor:
    """(n, M D) what the last layer of each head sees, side by side; every head counts the same."""
    with evaluating(learner.net):
        hidden = look(rows)[:, :, classes:].float()
    return torch.cat([*F.normalize(hidden, dim=-1)], dim=-1)
