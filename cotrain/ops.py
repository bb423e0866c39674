"""Shared mathematics: small pure functions over logits."""

import torch.nn.functional as F
from torch import Tensor


def vote_of_others(predicted: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """For each head, the most frequent class among the other heads' predictions, and how many of them chose it.

    (H, n) predicted classes -> (H, n) classes and (H, n) counts. Ties go to the lowest class.
    """
    chosen = F.one_hot(predicted, classes)  # (H, n, C)
    others = chosen.sum(dim=0) - chosen  # (H, n, C)
    count, winner = others.max(dim=-1)
    return winner, count


def confident(logits: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """The most probable class, and whether its probability reaches the threshold."""
    probability, winner = logits.softmax(dim=-1).max(dim=-1)
    return winner, probability >= threshold


def heads_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every head on every example: (H, n, C) and (n,) or (H, n) -> (H, n)."""
    targets = targets.expand(logits.shape[:2])
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


def ensemble_probabilities(logits: Tensor, rule: str) -> Tensor:
    """Add the heads' predictions: the mean of their probabilities, or the softmax of the sum of their logits."""
    if rule == "probabilities":
        return logits.double().softmax(dim=-1).mean(dim=0)
    if rule == "logits":
        return logits.double().sum(dim=0).softmax(dim=-1)
    raise ValueError(f"unknown ensemble rule {rule!r}: probabilities or logits")


def error_percent(predicted: Tensor, labels: Tensor) -> float:
    return 100.0 * (predicted != labels).double().mean().item()


def all_agree(predicted: Tensor) -> Tensor:
    """(H, n) predicted classes -> (n,) whether every head says the same."""
    return (predicted == predicted[0]).all(dim=0)
