"""Heads by brute force, and the warnings they deserve."""

from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cotrain.evaluation.head_stats import heads_of, warnings_of_heads, warnings_of_log
from cotrain.types import Unit


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5])
def test_heads_are_counted_as_by_hand(heads: int) -> None:
    rng = torch.Generator().manual_seed(heads)
    logits = torch.randn(heads, 60, 4, generator=rng)
    labels = torch.randint(4, (60,), generator=rng)
    logits += 1.5 * F.one_hot(labels, 4)
    said, truth = logits.argmax(-1).numpy(), labels.numpy()
    found = heads_of(logits, labels)
    assert found.errors == pytest.approx([100 * (head != truth).mean() for head in said])
    for one in range(heads):
        for other in range(heads):
            assert found.disagreement[one][other] == pytest.approx(100 * (said[one] != said[other]).mean())
    pairs = [100 * (said[a] != said[b]).mean() for a in range(heads) for b in range(a)]
    assert found.mean_disagreement == pytest.approx(np.mean(pairs) if pairs else 0)
    counts: dict[int, list[bool]] = {}
    right, chosen = 0, 0
    for image in range(60):
        votes = np.bincount(said[:, image], minlength=4)
        counts.setdefault(int(votes.max()), []).append(votes.argmax() != truth[image])
        for head in range(heads):
            others = [said[other, image] for other in range(heads) if other != head]
            more_than_half = [{*some} for some in combinations(others, heads // 2 + 1)]
            if any(len(some) == 1 for some in more_than_half):
                chosen += 1
                right += {truth[image]} in more_than_half
    assert found.by_agreement == {
        number: (len(wrong), pytest.approx(100 * np.mean(wrong))) for number, wrong in sorted(counts.items())
    }
    assert (chosen > 0) == (heads > 2)
    assert found.vote_selected == (pytest.approx(100 * chosen / (60 * heads)) if chosen else None)
    assert found.vote_right == (pytest.approx(100 * right / chosen) if chosen else None)


def test_heads_that_are_alike_and_wrong_give_a_warning() -> None:
    logits = torch.randn(1, 50, 3, generator=torch.Generator().manual_seed(0))
    single = logits.argmax(dim=-1)
    alike, apart = single.repeat(3, 1), torch.stack([single[0], single[0], (single[0] + 1) % 3])
    (line,) = warnings_of_heads(alike, alike[:, :20], 60.0, "valid", Unit.IMAGE)
    assert "the heads have become too similar to learn from each other: they disagree on 0.00 % of the valid" in line
    assert "of the validation images and on 0.00 % of the unlabelled images" in line
    assert "but the error on the validation images is 60.0 %" in line
    assert not list(warnings_of_heads(alike, alike, 1.0, "test", Unit.IMAGE))
    assert not list(
        warnings_of_heads(alike, apart, 60.0, "test", Unit.IMAGE)
    )  # on the images they learn from, they still differ
    assert not list(warnings_of_heads(apart, alike, 60.0, "test", Unit.IMAGE))
    assert not list(warnings_of_heads(single, single, 60.0, "test", Unit.IMAGE))


def test_nothing_selected_for_long_gives_a_warning() -> None:
    seldom = [{"step": step, "selected": 0.0 if step < 60 else 0.5} for step in range(100)]
    (line,) = warnings_of_log(seldom, Unit.IMAGE)
    assert "for 60 % of the training, no pseudo-label was selected" in line
    assert not list(warnings_of_log(seldom[30:], Unit.IMAGE))
    assert not list(warnings_of_log([{"step": 1, "supervised": 2.0}], Unit.IMAGE))
