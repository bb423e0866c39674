"""The vote against brute force, the small functions against scikit-learn and torch."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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
    interleave,
    js_divergence,
    kl_divergence,
    mix_pool,
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


@given(seed=st.integers(0, 10**6), alpha=st.sampled_from([0.1, 0.5, 0.75, 4.0]))
def test_everything_in_a_pool_is_mixed_with_something_in_it_and_stays_most_of_it(seed: int, alpha: float) -> None:
    n = 30
    targets = torch.rand(n, 4, generator=torch.Generator().manual_seed(seed)).softmax(dim=-1)
    images, mixed = mix_pool(
        torch.eye(n).reshape(n, 1, 1, n), targets, alpha, torch.Generator().manual_seed(seed)
    )  # an image says what is in it
    shares = images.reshape(n, n)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(n))
    assert (shares.diagonal() >= 0.5).all()
    assert ((shares > 0).sum(dim=1) <= 2).all()
    assert len({round(share, 6) for share in shares.diagonal().tolist()}) > n / 4, "a share for each"
    torch.testing.assert_close(mixed, shares @ targets)
    torch.testing.assert_close(mixed.sum(dim=1), torch.ones(n))


@pytest.mark.parametrize("sizes", [[64, 64, 64], [6, 9, 9], [9, 6, 6], [2, 2, 2, 2], [20, 30, 30, 30, 30], [5]])
def test_interleaving_exchanges_chunks_with_the_first_batch_and_is_undone_by_itself(sizes: list[int]) -> None:
    batches = [torch.arange(size)[:, None] + 1000 * number for number, size in enumerate(sizes)]
    mixed = interleave(batches)
    assert [len(batch) for batch in mixed] == sizes
    everything = torch.cat(mixed)
    assert torch.equal(everything.sort(dim=0).values, torch.cat(batches))
    assert torch.equal(everything[:, 0] % 1000, torch.cat(batches)[:, 0] % 1000), "rows keep their place"
    came_from = (mixed[0][: min(sizes), 0] // 1000).tolist()
    assert came_from == sorted(came_from)
    counts = [came_from.count(number) for number in range(len(sizes))]
    assert max(counts) - min(counts) <= 1
    for number, batch in enumerate(mixed[1:], 1):
        assert set((batch // 1000).flatten().tolist()) <= {0, number}
    assert all(map(torch.equal, interleave(mixed), batches))


def test_rows_that_cannot_be_cut_evenly_are_cut_almost_so() -> None:
    first, *_ = interleave([torch.full((64,), number) for number in range(3)])
    assert first.tolist() == [0] * 21 + [1] * 21 + [2] * 22
