"""The vote against brute force, the small functions against scikit-learn and torch."""

import math
from collections import Counter

import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.special import rel_entr
from sklearn.metrics import accuracy_score, log_loss

from cotrain.ops import (
    all_agree,
    confident,
    ensemble_probabilities,
    error_percent,
    full_precision,
    heads_cross_entropy,
    js_divergence,
    kl_divergence,
    vote_of_others,
)


@pytest.mark.parametrize("heads", range(3, 8))
def test_the_vote_equals_counting_by_hand(heads: int) -> None:
    predicted = torch.randint(4, (heads, 500), generator=torch.Generator().manual_seed(heads))
    winner, count = vote_of_others(predicted, 4)
    for example in range(500):
        for head in range(heads):
            others = [predicted[other, example].item() for other in range(heads) if other != head]
            votes = Counter(others)
            most = max(votes.values())
            assert count[head, example] == most
            assert winner[head, example] == min(label for label, number in votes.items() if number == most)


def test_confidence_equal_to_the_threshold_is_enough() -> None:
    logits = torch.tensor([[[0.0, 0.0], [0.0, -1.0]]])
    winner, selected = confident(logits, 0.5)
    assert winner.tolist() == [[0, 0]]
    assert selected.tolist() == [[True, True]]
    assert confident(logits, 0.51)[1].tolist() == [[False, True]]


def test_heads_cross_entropy_is_scikit_learns_log_loss_of_each_head() -> None:
    logits = torch.randn(3, 20, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20) % 5
    ours = heads_cross_entropy(logits, labels)
    assert ours.shape == (3, 20)
    for head in range(3):
        expected = log_loss(labels, logits[head].double().softmax(-1), labels=range(5))
        assert ours[head].mean().item() == pytest.approx(expected, rel=1e-5)


def test_ensembles_add_probabilities_or_logits() -> None:
    logits = torch.tensor([[[0.0, 10.0, 0.0]], [[3.0, 0.0, 0.0]], [[3.0, 0.0, 0.0]]])
    assert ensemble_probabilities(logits, "logits").argmax().item() == 1
    assert ensemble_probabilities(logits, "probabilities").argmax().item() == 0
    for rule in ("logits", "probabilities"):
        assert ensemble_probabilities(logits, rule).sum().item() == pytest.approx(1)
    with pytest.raises(ValueError, match="probabilities or logits"):
        ensemble_probabilities(logits, "votes")


def test_error_percent_is_one_minus_scikit_learns_accuracy() -> None:
    predicted, labels = torch.tensor([0, 1, 2, 2, 1, 0, 1]), torch.tensor([0, 1, 2, 1, 1, 2, 2])
    assert error_percent(predicted, labels) == pytest.approx(100 * (1 - accuracy_score(labels, predicted)))


def test_all_agree_only_where_every_head_says_the_same() -> None:
    assert all_agree(torch.tensor([[1, 1, 2], [1, 2, 2], [1, 1, 2]])).tolist() == [True, False, True]


def test_kl_divergence_is_scipys() -> None:
    logits, others = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0)).double()
    expected = rel_entr(logits.softmax(-1).numpy(), others.softmax(-1).numpy()).sum(-1)
    assert kl_divergence(logits, others).tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_kl_divergence_has_finite_gradients_where_a_probability_is_zero() -> None:
    logits, others = torch.tensor([[400.0, 0.0, -400.0]]), torch.tensor([[-400.0, 0.0, 400.0]])
    gradients = torch.func.grad(lambda pair: kl_divergence(*pair).sum())((logits, others))
    assert kl_divergence(logits, others).item() == pytest.approx(800)
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_js_divergence_is_scipys_and_has_finite_gradients_where_a_probability_is_zero() -> None:
    logits = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0)).double()
    expected = jensenshannon(*logits.softmax(-1).numpy(), axis=1) ** 2
    assert js_divergence(logits).tolist() == pytest.approx(expected.tolist(), rel=1e-4)
    apart = torch.tensor([[[400.0, 0.0, -400.0]], [[-400.0, 0.0, 400.0]]])
    assert js_divergence(apart).item() == pytest.approx(math.log(2))
    assert torch.func.grad(lambda both: js_divergence(both).sum())(apart).isfinite().all()


def test_full_precision_is_so_inside_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.is_autocast_enabled("cpu")
        with full_precision(torch.zeros(1)):
            assert not torch.is_autocast_enabled("cpu")
