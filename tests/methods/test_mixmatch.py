"""MixMatch recomputed by hand: guesses, mixing, which rows share a pass, which pass batch-norm remembers."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cotrain.methods.mixmatch import MixMatch
from cotrain.ops import beta
from cotrain.types import Batch, Learner, Views

CLASSES, SIZE = 3, 4


class Small(nn.Module):
    """One layer, batch-norm over the batch, another layer."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(channels * SIZE * SIZE, 6)
        self.norm = nn.BatchNorm1d(6, momentum=1.0)
        self.last = nn.Linear(6, CLASSES)
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(images.detach())
        return self.last(self.norm(self.first(images.flatten(1))).tanh())[None]

    def by_hand(self, images: Tensor) -> Tensor:
        """Probabilities in double precision, by the images' own statistics."""
        hidden = images.flatten(1).double() @ self.first.weight.double().T + self.first.bias.double()
        hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + self.norm.eps).sqrt()
        return (hidden.tanh() @ self.last.weight.double().T + self.last.bias.double()).softmax(-1).detach()


def a_batch(labelled: int, unlabelled: int, seed: int = 0) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    return Batch(
        x=torch.randn(labelled, 3, SIZE, SIZE, generator=rng),
        y=torch.arange(labelled) % CLASSES,
        labelled_rows=torch.arange(labelled),
        weak=torch.randn(2, unlabelled, 3, SIZE, SIZE, generator=rng),
        strong=torch.zeros(0),
        unlabelled_rows=torch.arange(unlabelled),
    )


def learner(net: nn.Module, seed: int = 5) -> Learner:
    return Learner(net, net, 3, 10, torch.Generator().manual_seed(seed), {})


def draws(pool: int, alpha: float, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    generator = torch.Generator().manual_seed(seed)
    share = beta(alpha, (pool,), generator).double().numpy()
    return np.maximum(share, 1 - share), torch.randperm(pool, generator=generator).numpy()


def mixed_by_hand(net: Small, batch: Batch, alpha: float) -> tuple[Tensor, np.ndarray]:
    mean = (net.by_hand(batch.weak[0]) + net.by_hand(batch.weak[1])).numpy() / 2
    guess = mean**2 / (mean**2).sum(1, keepdims=True)
    targets = np.concatenate([np.eye(CLASSES)[batch.y.numpy()], guess, guess])
    images = torch.cat([batch.x, batch.weak[0], batch.weak[1]]).double().numpy()
    share, other = draws(len(images), alpha)
    mixed, labels = np.empty_like(images), np.empty_like(targets)
    for row in range(len(images)):
        mixed[row] = share[row] * images[row] + (1 - share[row]) * images[other[row]]
        labels[row] = share[row] * targets[row] + (1 - share[row]) * targets[other[row]]
    return torch.from_numpy(mixed), labels


# (batch, row) of everything that goes through the network together; 6 labelled and 9 unlabelled: three chunks of two.
TOGETHER = [
    [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5)],
    [(1, 0), (1, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6), (1, 7), (1, 8)],
    [(2, 0), (2, 1), (2, 2), (2, 3), (0, 4), (0, 5), (2, 6), (2, 7), (2, 8)],
]


@pytest.mark.parametrize("alpha", [0.5, 0.75])
def test_the_loss_is_the_one_computed_by_hand(alpha: float) -> None:
    net, batch = Small(), a_batch(6, 9)
    mixed, targets = mixed_by_hand(net, batch, alpha)
    parts = mixed.split([6, 9, 9])
    predicted: dict[tuple[int, int], np.ndarray] = {}
    for rows in TOGETHER:
        together = torch.stack([parts[number][row] for number, row in rows])
        predicted.update(zip(rows, net.by_hand(together).numpy(), strict=True))
    supervised = sum(-(targets[row] * np.log(predicted[0, row])).sum() for row in range(6)) / 6
    squares = [
        ((targets[6 + 9 * (view - 1) + row] - predicted[view, row]) ** 2).mean() for view in (1, 2) for row in range(9)
    ]
    losses = MixMatch(alpha=alpha).loss(learner(net), batch)
    assert losses["supervised"].item() == pytest.approx(supervised, rel=1e-4)
    assert losses["unsupervised"].item() == pytest.approx(np.mean(squares), rel=1e-4)


def test_the_five_passes_see_what_they_should_and_the_first_mixed_one_is_remembered() -> None:
    net, batch = Small(), a_batch(6, 9)
    mixed, _ = mixed_by_hand(net, batch, 0.5)
    MixMatch().loss(learner(net), batch)
    first, second, *passes = net.seen
    assert torch.equal(first, batch.weak[0]) and torch.equal(second, batch.weak[1])
    parts = mixed.split([6, 9, 9])
    for seen, rows in zip(passes, TOGETHER, strict=True):
        torch.testing.assert_close(
            seen.double(), torch.stack([parts[number][row] for number, row in rows]), atol=1e-5, rtol=0
        )
    assert net.norm.num_batches_tracked == 1
    torch.testing.assert_close(net.norm.running_mean, net.first(passes[0].flatten(1)).mean(0).detach())


@pytest.mark.parametrize(("labelled", "unlabelled"), [(2, 2), (1, 4), (8, 3), (64, 64)])
def test_any_batches_will_do(labelled: int, unlabelled: int) -> None:
    net = Small().eval()
    losses = MixMatch().loss(learner(net), a_batch(labelled, unlabelled))
    assert [len(images) for images in net.seen] == [unlabelled, unlabelled, labelled, unlabelled, unlabelled]
    assert torch.isfinite(losses["supervised"]) and torch.isfinite(losses["unsupervised"])
    if labelled == unlabelled == 64:
        assert losses["supervised"].item() > 0.5


def test_guesses_have_no_gradient_and_every_weight_has_one() -> None:
    net, batch = Small().eval(), a_batch(6, 9)
    guess = MixMatch().guess(learner(net), batch.weak)
    assert not guess.requires_grad
    torch.testing.assert_close(guess.sum(dim=1), torch.ones(9))
    method = MixMatch()
    for term in ("supervised", "unsupervised"):
        net.zero_grad()
        method.loss(learner(net), batch)[term].backward()
        assert all(weight.grad.any() for name, weight in net.named_parameters() if name != "norm.bias")


def test_unlabelled_images_are_mixed_into_labelled_ones() -> None:
    net, batch = Small().eval(), a_batch(6, 9)
    other = Batch(**{**vars(batch), "weak": batch.weak + 1})
    one, two = (MixMatch().loss(learner(net), some) for some in (batch, other))
    assert one["supervised"] != two["supervised"]
    assert one["unsupervised"] != two["unsupervised"]


def test_settings_and_rise() -> None:
    method = MixMatch()
    assert method.views == Views(weak=2, whole=True)
    assert (method.unlabelled_ratio, method.alpha, method.temperature) == (1, 0.5, 0.5)
    assert [method.weight(share) for share in (0, 1 / 128, 1 / 64, 1)] == [0, 50, 100, 100]
    assert math.isclose(method.unsupervised_ramp, 16384 / 2**20)
