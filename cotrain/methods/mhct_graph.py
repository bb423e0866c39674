"""Multi-Head Co-Training whose vote also hears the neighbours: our variant for features that mean something already.

The labels spread over a graph that joins similar images. When a head votes on an image, its prediction is averaged with
what reached the image over the graph. The first graph compares the trunk's features, standardised; later ones, what the
heads have learned to see. docs/methods/mhct_graph.md.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cotrain.graph import aligned, attached, divided, neighbour_graph, propagate
from cotrain.methods.mhct import MultiHeadCoTraining
from cotrain.ops import evaluating, heads_cross_entropy
from cotrain.types import Batch, Learner, Look, Losses, Pool, Term

See = Callable[[Tensor], Tensor]  # rows -> (n, D) features
DENSE = 1 << 25  # images x classes whose spread is stored completely
KEPT = 16  # classes of each image that are stored otherwise


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
        """What reached each image, by class. Of very many images and classes, the KEPT likeliest classes of each."""
        if pool.images * pool.classes <= DENSE or pool.classes <= KEPT:
            return {"spread": torch.zeros(pool.images, pool.classes)}
        kept = (pool.images, KEPT)
        return {"spread": torch.zeros(kept), "classes": torch.zeros(kept, dtype=torch.int32)}

    def refresh_steps(self, pool: Pool, steps: int, unlabelled: int) -> set[int]:
        return {steps * number // self.rounds for number in range(self.rounds)}

    def refresh(self, learner: Learner, pool: Pool, look: Look) -> None:
        """Spread the labels over the graph of the training images. Given labels stay; rows without any stay zero.

        A label of less weight spreads less, and leaves the rest of its image to the neighbours.

        If there are too many images for one graph, only those that training will use take part, and a sample of them
        makes the graph.
        """
        rows = torch.cat([pool.labelled, pool.unlabelled]).unique()
        nodes, others = divided(rows, pool.labelled, look.upcoming, learner.generator)
        first = learner.step == 0
        see = look.features if first else hidden_features(look, pool.classes, learner)
        features = see(nodes)
        if first:
            features, see = standardised(features, see)
        graph = look.graph(features, self.neighbours) if first else neighbour_graph(features, self.neighbours)
        weights = torch.ones(len(pool.labels)) if pool.weights is None else pool.weights
        given = weights.double()[:, None] * F.one_hot(pool.labels, pool.classes)
        seeds = torch.zeros(len(nodes), pool.classes, dtype=torch.float64)
        there = torch.isin(pool.labelled, nodes)
        seeds[torch.searchsorted(nodes, pool.labelled[there])] = given[there]
        reached = propagate(graph, seeds.numpy(), self.reach)
        spread = torch.from_numpy(reached if pool.shares is None else aligned(reached, pool.shares.numpy()))
        own = seeds.clamp(max=1)
        spread = (own + (1 - own.sum(dim=1, keepdim=True)) * spread).float()
        keep(learner.memory, nodes, spread)
        for some, heard in attached(others, see, features, spread, self.neighbours):
            keep(learner.memory, some, heard)
        if not there.all():
            keep(learner.memory, pool.labelled, given.clamp(max=1).float())

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        labelled, weak, strong = self.predict(learner.net, batch)
        spread = kept(learner.memory, batch.unlabelled_rows, weak.shape[-1])
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


def keep(memory: dict[str, Tensor], rows: Tensor, spread: Tensor) -> None:
    """Store what reached these images."""
    if "classes" in memory:
        spread, classes = spread.topk(KEPT, dim=1)
        memory["classes"][rows] = classes.to(memory["classes"])
    memory["spread"][rows] = spread.to(memory["spread"])


def kept(memory: dict[str, Tensor], rows: Tensor, classes: int) -> Tensor:
    """(n, C) what reached these images."""
    spread = memory["spread"][rows]
    if "classes" not in memory:
        return spread
    return spread.new_zeros(len(rows), classes).scatter_(1, memory["classes"][rows].long(), spread)


def standardised(features: Tensor, see: See) -> tuple[Tensor, See]:
    """The features with mean 0 and standard deviation 1, and what sees other images on the same scale."""
    mean, std = features.mean(dim=0), features.std(dim=0).clamp(min=1e-4)
    return (features - mean) / std, lambda rows: (see(rows) - mean) / std


def hidden_features(look: Look, classes: int, learner: Learner) -> See:
    """From rows to (n, M D) what the last layer of each head sees, side by side; every head counts the same."""

    def see(rows: Tensor) -> Tensor:
        with evaluating(learner.net):
            hidden = look(rows)[:, :, classes:].float()
        return torch.cat([*F.normalize(hidden, dim=-1)], dim=-1)

    return see
