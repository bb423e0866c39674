"""How the heads differ, and what that is worth: logits (H, n, C) and labels (n,) of images that were not trained on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from cotrain.ops import error_percent, majority_of_others
from cotrain.runs.log import SELECTED

ALIKE = 0.5  # percent: heads that disagree on less than this say the same
WRONG = 5.0  # percent: an error that is not near zero
LONG = 0.5  # of the steps
VOTERS = 3  # heads: of fewer, the others are never more than half of all


@dataclass(frozen=True)
class Heads:
    """Everything in percent."""

    errors: list[float]  # of each head
    disagreement: list[list[float]]  # (H, H) of each pair
    mean_disagreement: float  # over all pairs; 0 for a single head
    by_agreement: dict[int, tuple[int, float]]  # heads that say the most frequent class -> images, error of that class
    vote_selected: float | None  # of images and heads, how many the others' vote gives a label; none: two cannot vote
    vote_right: float | None  # of those, how many are right; none: there are none


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
    """Of images and heads (H, n), how many percent the majority of the others gives a label, if there can be one."""
    if len(predicted) < VOTERS:
        return None
    _, selected = majority_of_others(predicted, classes)
    return 100 * selected.double().mean().item()


def votes_are_right(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Of every label that a majority of other heads gives, whether it is the image's."""
    if len(predicted) < VOTERS:
        return torch.zeros(0, dtype=torch.bool)
    given, selected = majority_of_others(predicted, classes)
    return (given == labels)[selected]


def warnings_of_heads(judged: Tensor, unlabelled: Tensor, error: float, part: str) -> Iterator[str]:
    """That they are too alike to learn from each other, by the classes (H, n) of judged and of unlabelled images."""
    apart, apart_unlabelled = mean_disagreement(judged), mean_disagreement(unlabelled)
    if len(judged) > 1 and max(apart, apart_unlabelled) < ALIKE and error > WRONG:
        yield (
            f"the heads have become alike: they disagree on {apart:.2f} % of the {part} images and on "
            f"{apart_unlabelled:.2f} % of the unlabelled ones, while {error:.1f} % of the {part} images are wrong; so "
            "they teach each other nothing new"
        )


def warnings_of_log(log: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """That too few pseudo-labels were selected."""
    for name in SELECTED:
        shares = [row[name] for row in log if name in row]
        none = sum(share < 0.001 for share in shares)
        if shares and none > LONG * len(shares):
            share = f"{100 * none / len(shares):.0f} % of the training"
            yield f"in {share} no pseudo-label was selected, and the unlabelled images taught nothing; train longer"
