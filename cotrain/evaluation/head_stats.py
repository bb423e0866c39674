"""How much the heads differ and what it gains, from logits (H, n, C) and labels (n,) of held-out images."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from cotrain.ops import error_percent, majority_of_others
from cotrain.runs.log import SELECTED
from cotrain.runs.scores import PARTS
from cotrain.types import Unit

ALIKE = 0.5  # percent of images: heads that disagree on fewer have collapsed
WRONG = 5.0  # percent: with a lower error, agreement is what one hopes for
LONG = 0.5  # fraction of the training
VOTERS = 3  # heads: with fewer, the other heads cannot be a majority of all heads


@dataclass(frozen=True)
class Heads:
    """How the heads differ; all rates are percentages."""

    errors: list[float]  # of each head
    disagreement: list[list[float]]  # (H, H) of each pair
    mean_disagreement: float  # over all pairs; 0 for a single head
    by_agreement: dict[int, tuple[int, float]]  # heads that predict the majority class -> images, error of that class
    vote_selected: float | None  # (image, head) pairs to which the other heads' vote gives a label; None below 3 heads
    vote_right: float | None  # of these labels, how many are right; None if there are none


def heads_of(logits: Tensor, labels: Tensor) -> Heads:
    predicted, classes = logits.argmax(dim=-1), logits.shape[-1]  # (H, n)
    votes = torch.nn.functional.one_hot(predicted, classes).sum(dim=0)  # (n, C)
    count, winner = votes.max(dim=-1)
    groups = {number: count == number for number in sorted(set(count.tolist()))}
    right = votes_are_right(predicted, labels, classes)
    return Heads(
        errors=[error_percent(head, labels) for head in predicted],
        disagreement=disagreement(predicted).tolist(),
        mean_disagreement=mean_disagreement(predicted),
        by_agreement={
            number: (int(chosen.sum()), error_percent(winner[chosen], labels[chosen]))
            for number, chosen in groups.items()
        },
        vote_selected=vote_selected(predicted, classes),
        vote_right=100 * right.double().mean().item() if len(right) else None,
    )


def disagreement(predicted: Tensor) -> Tensor:
    """(H, n) predicted classes -> (H, H) percent of images on which two heads differ."""
    return 100 * (predicted[:, None] != predicted[None]).double().mean(dim=-1)


def mean_disagreement(predicted: Tensor) -> float:
    """Over all pairs of heads, in percent; 0 for a single head."""
    apart = disagreement(predicted)
    pairs = [apart[one, other].item() for one, other in combinations(range(len(predicted)), 2)]
    return sum(pairs) / len(pairs) if pairs else 0.0


def vote_selected(predicted: Tensor, classes: int) -> float | None:
    """(H, n) predicted classes -> percent of (head, image) pairs to which a majority of the other heads gives a label.

    None below three heads, where there is no vote.
    """
    if len(predicted) < VOTERS:
        return None
    _, selected = majority_of_others(predicted, classes)
    return 100 * selected.double().mean().item()


def votes_are_right(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """For each label that a majority of the other heads gives, whether it is correct."""
    if len(predicted) < VOTERS:
        return torch.zeros(0, dtype=torch.bool)
    given, selected = majority_of_others(predicted, classes)
    return (given == labels)[selected]


def warnings_of_heads(evaluated: Tensor, unlabelled: Tensor, error: float, part: str, unit: Unit) -> Iterator[str]:
    """Warn if the heads are too similar to learn from each other.

    `evaluated` and `unlabelled` are the heads' predicted classes (H, n); `part`, `error` (percent) and `unit` describe
    what was evaluated.
    """
    apart, apart_unlabelled = mean_disagreement(evaluated), mean_disagreement(unlabelled)
    if len(evaluated) > 1 and max(apart, apart_unlabelled) < ALIKE and error > WRONG:
        tested = f"{PARTS[part]} {unit.many}"
        yield (
            f"the heads have become too similar to learn from each other: they disagree on {apart:.2f} % of the "
            f"{tested} and on {apart_unlabelled:.2f} % of the unlabelled {unit.many}, but the error on the {tested} "
            f"is {error:.1f} %"
        )


def warnings_of_log(log: Sequence[Mapping[str, Any]], unit: Unit) -> Iterator[str]:
    """Warn if pseudo-labels were rarely selected."""
    for name in SELECTED:
        shares = [row[name] for row in log if name in row]
        none = sum(share < 0.001 for share in shares)
        if shares and none > LONG * len(shares):
            share = f"{100 * none / len(shares):.0f} % of the training"
            effect = f"no pseudo-label was selected and the unlabelled {unit.many} had no effect"
            yield f"for {share}, {effect}; train longer"
