"""ReMixMatch recomputed by hand: alignment, mixing, the passes and what each of them leaves behind."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from cotrain.augment import PRESETS
from cotrain.augment.ctaugment import initial_rates
from cotrain.data import DataSettings, Drawing, Source, draw_split, open_data
from cotrain.methods.remixmatch import ReMixMatch, align, rotated
from cotrain.model import MultiHead, backbone
from cotrain.ops import beta
from cotrain.training.state import pool_of
from cotrain.types import Batch, Learner, Pool, Views
from tests.methods.parts import unlabelled

CLASSES, SIZE = 3, 4
NOTHING = torch.zeros(0, dtype=torch.int64)
POOL = Pool(NOTHING, NOTHING, NOTHING, 100, CLASSES)


class Small(nn.Module):
    """One layer, batch-norm over the batch, another layer with the method's four outputs beside the classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3 * SIZE * SIZE, 6)
        self.norm = nn.BatchNorm1d(6, momentum=1.0)
        self.last = nn.Linear(6, CLASSES)
        self.extra = nn.Linear(6, 4)
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor, *, extra: bool = False) -> Tensor:
        self.seen.append(images.detach())
        features = self.norm(self.first(images.flatten(1))).tanh()
        outputs = torch.cat([self.last(features), self.extra(features)], dim=1)
        return outputs[None] if extra else outputs[None, :, :CLASSES]

    def by_hand(self, images: Tensor, layer: str = "last") -> np.ndarray:
        """Probabilities in double precision, by the images' own statistics."""
        hidden = images.flatten(1).double() @ self.first.weight.double().T + self.first.bias.double()
        hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + self.norm.eps).sqrt()
        last = getattr(self, layer)
        return (hidden.tanh() @ last.weight.double().T + last.bias.double()).softmax(-1).detach().numpy()


def a_batch(labelled: int, unlabelled: int, strong: int, size: tuple[int, int] = (SIZE, SIZE)) -> Batch:
    rng = torch.Generator().manual_seed(0)
    return Batch(
        x=torch.randn(labelled, 3, *size, generator=rng),
        y=torch.arange(labelled) % 2,  # never class 2
        labelled_rows=torch.arange(labelled),
        weak=torch.randn(1, unlabelled, 3, *size, generator=rng),
        strong=torch.randn(strong, unlabelled, 3, *size, generator=rng),
        unlabelled_rows=torch.arange(unlabelled),
        x_strong=torch.randn(1, labelled, 3, *size, generator=rng),
        probe=torch.randn(labelled, 3, *size, generator=rng),
        probe_bins=torch.arange(labelled * 4).reshape(labelled, 2, 2),
    )


def learner(method: ReMixMatch, net: nn.Module, step: int = 3, steps: int = 10) -> Learner:
    teacher = copy.deepcopy(net).eval().requires_grad_(False)
    return Learner(net, teacher, step, steps, torch.Generator().manual_seed(5), method.init(POOL))


def history(memory: dict[str, Tensor]) -> None:
    """A past in which the network preferred class 0, and labels were of class 1."""
    memory["guesses"][:40] = torch.tensor([0.8, 0.1, 0.1])
    memory["labels"].copy_(torch.tensor([0.2, 0.5, 0.3]))


# (batch, row) of what goes through the network together; 6 labelled, 8 unlabelled, 4 batches: chunks of 1, 2, 1, 2.
TOGETHER = [
    [(0, 0), (1, 1), (1, 2), (2, 3), (3, 4), (3, 5)],
    [(1, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5), (1, 6), (1, 7)],
    [(2, 0), (2, 1), (2, 2), (0, 3), (2, 4), (2, 5), (2, 6), (2, 7)],
    [(3, 0), (3, 1), (3, 2), (3, 3), (0, 4), (0, 5), (3, 6), (3, 7)],
]


def entropy(target: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    return -(target * np.log(predicted)).sum(-1)


def turned_by_hand(images: Tensor) -> Tensor:
    pictures = images.permute(0, 2, 3, 1).numpy()
    turned = [np.rot90(picture, (0, 2, 1, 3)[row // 2]) for row, picture in enumerate(pictures)]  # quarters of 8
    return torch.from_numpy(np.stack(turned).copy()).permute(0, 3, 1, 2)


@pytest.mark.parametrize("step", [0, 1, 50])
def test_the_loss_is_the_one_computed_by_hand(step: int) -> None:
    method, net, batch = ReMixMatch(strong_views=2, unsupervised_ramp=0.2), Small(), a_batch(6, 8, 2)
    student = learner(method, net, step, 10 if step < 10 else 100)
    history(student.memory)

    predicted = net.by_hand(batch.weak[0])
    model = (40 * np.array([0.8, 0.1, 0.1]) + 88 / 3) / 128
    ratio = (1e-6 + np.array([0.2, 0.5, 0.3])) / (1e-6 + model)
    guess = (predicted * ratio / (predicted * ratio).sum(1, keepdims=True)) ** 2
    guess /= guess.sum(1, keepdims=True)
    images = torch.cat([batch.x_strong[0], batch.weak[0], *batch.strong]).double().numpy()
    targets = np.concatenate([np.eye(CLASSES)[batch.y.numpy()], guess, guess, guess])
    generator = torch.Generator().manual_seed(5)
    share = beta(0.75, (30,), generator).double().numpy()
    share, other = np.maximum(share, 1 - share), torch.randperm(30, generator=generator).numpy()
    mixed = share[:, None, None, None] * images + (1 - share)[:, None, None, None] * images[other]
    targets = share[:, None] * targets + (1 - share)[:, None] * targets[other]
    starts, found = [0, 6, 14, 22], np.empty((30, CLASSES))
    for rows in TOGETHER:
        places = [starts[number] + row for number, row in rows]
        found[places] = net.by_hand(torch.from_numpy(mixed[places]))
    crossed = entropy(targets, found)
    unmixed = entropy(guess, net.by_hand(batch.strong[0])).mean()
    turns = np.repeat([0, 2, 1, 3], 2)
    rotation = -np.log(net.by_hand(turned_by_hand(batch.strong[0]), "extra")[np.arange(8), turns]).mean()
    rise = {0: 0.0, 1: 0.5, 50: 1.0}[step]

    losses = method.loss(student, batch)
    assert losses["supervised"].item() == pytest.approx(crossed[:6].mean(), rel=1e-4)
    expected = rise * (1.5 * crossed[6:].mean() + 0.5 * unmixed) + 0.5 * rotation
    assert unlabelled(losses).item() == pytest.approx(expected, rel=1e-4)
    values = {"mixed": crossed[6:].mean(), "unmixed": unmixed, "rotation": rotation}
    assert {name: losses[name].item() for name in values} == pytest.approx(values, rel=1e-4)
    assert [term.weight for term in losses.terms.values()] == [1, 1.5 * rise, 0.5 * rise, 0.5]


def test_only_the_last_mixed_pass_changes_the_running_statistics() -> None:
    method, net, batch = ReMixMatch(strong_views=2), Small(), a_batch(6, 8, 2)
    student = learner(method, net)
    before = copy.deepcopy(student.teacher.state_dict())
    method.loss(student, batch)
    assert [len(images) for images in net.seen] == [8, 6, 8, 8, 8, 8, 8], "anchor, four mixed, s1, rotated"
    assert torch.equal(net.seen[0], batch.weak[0]) and torch.equal(net.seen[5], batch.strong[0])
    assert net.norm.num_batches_tracked == 1
    torch.testing.assert_close(net.norm.running_mean, net.first(net.seen[4].flatten(1)).mean(0).detach())
    assert len(student.teacher.seen) == 1 and torch.equal(student.teacher.seen[0], batch.probe)
    assert all(torch.equal(tensor, before[name]) for name, tensor in student.teacher.state_dict().items())


def test_memory_learns_of_every_step_in_place() -> None:
    method, net, batch = ReMixMatch(strong_views=1), Small(), a_batch(6, 8, 1)
    student = learner(method, net, step=130, steps=200)
    tensors = dict(student.memory)
    assert torch.equal(tensors["guesses"], torch.full((128, 3), 1 / 3))
    mean = net.by_hand(batch.weak[0]).mean(0)
    method.loss(student, batch)
    assert all(student.memory[name] is tensor for name, tensor in tensors.items())
    assert tensors["guesses"][2].tolist() == pytest.approx(mean.tolist(), rel=1e-5)
    assert (tensors["guesses"] == 1 / 3).all(dim=1).sum() == 127
    assert tensors["labels"].tolist() == pytest.approx([0.999 / 3 + 0.0005, 0.999 / 3 + 0.0005, 0.999 / 3])
    assert not torch.equal(tensors["cta_rates"], initial_rates())


@given(st.integers(2, 100), st.integers(0, 10**6))
def test_alignment_does_nothing_where_the_two_distributions_are_equal(classes: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    predicted, usual = (torch.randn(5, classes, generator=rng).mul(3).softmax(-1) for _ in range(2))
    torch.testing.assert_close(align(predicted, usual[0], usual[0]), predicted)
    torch.testing.assert_close(align(predicted, usual[0], usual[1]).sum(-1), torch.ones(5))


def test_alignment_favours_what_is_predicted_too_rarely() -> None:
    even = torch.full((1, 2), 0.5)
    assert align(even, torch.tensor([0.5, 0.5]), torch.tensor([0.8, 0.2]))[0].tolist() == pytest.approx(
        [0.2, 0.8], abs=1e-4
    )


@pytest.mark.parametrize("unlabelled", [8, 7, 5, 2])
def test_quarters_are_turned_by_0_180_90_and_270_degrees(unlabelled: int) -> None:
    images = torch.randn(unlabelled, 1, 5, 5)
    turned, turns = rotated(images)
    assert turned.shape == images.shape
    for image, result, turn in zip(images.numpy(), turned.numpy(), turns.tolist(), strict=True):
        assert np.array_equal(result[0], np.rot90(image[0], turn))
    order = [0, 2, 1, 3]
    assert turns.tolist() == sorted(turns.tolist(), key=order.index)
    if unlabelled == 8:
        assert turns.tolist() == [0, 0, 2, 2, 1, 1, 3, 3]


def test_images_that_are_not_square_are_turned_upside_down_only() -> None:
    images = torch.randn(8, 3, 4, 6)
    turned, turns = rotated(images)
    assert turns.tolist() == [0, 0, 2, 2, 0, 0, 2, 2]
    assert torch.equal(turned[2], images[2].flip(-1, -2)) and torch.equal(turned[4], images[4])


def gradients(net: Small, term: Tensor) -> dict[str, bool]:
    net.zero_grad()
    term.backward(retain_graph=True)
    return {name: bool(weight.grad is not None and weight.grad.any()) for name, weight in net.named_parameters()}


def test_gradients_reach_everything_but_the_guesses() -> None:
    method, net, batch = ReMixMatch(strong_views=2), Small(), a_batch(6, 8, 2)
    net.eval()
    assert not method.guess(learner(method, net), batch.weak[0], torch.eye(3)).requires_grad
    losses = method.loss(learner(method, net), batch)
    assert all(gradients(net, unlabelled(losses)).values())
    supervised = gradients(net, losses["supervised"])
    assert supervised["last.weight"] and supervised["first.weight"] and not supervised["extra.weight"]
    no_rotation = ReMixMatch(strong_views=2, rotation_weight=0).loss(learner(method, net), batch)
    assert not gradients(net, unlabelled(no_rotation))["extra.weight"]


def test_labelled_images_are_the_strong_ones() -> None:
    method, net, batch = ReMixMatch(strong_views=1), Small().eval(), a_batch(6, 8, 1)
    losses = [
        method.loss(learner(method, net), Batch(**{**vars(batch), name: getattr(batch, name) + 1}))["supervised"].item()
        for name in ("labelled_rows", "x", "x_strong")
    ]
    assert losses[0] == losses[1] != losses[2]


def test_views_and_outputs_follow_the_settings() -> None:
    method = ReMixMatch()
    assert method.views == Views(weak=1, strong=8, labelled_strong=1, ctaugment="plain", whole=True)
    assert ReMixMatch(strong_views=1).views.strong == 1
    assert method.extra(64).out_features == 4
    assert method.unlabelled_ratio == 1


def test_real_steps_resume_from_a_copy_of_memory() -> None:
    method, digits, cpu = ReMixMatch(strong_views=1), open_data("digits"), torch.device("cpu")
    split = draw_split(digits, DataSettings(labels=40), seed=0)
    drawing = Drawing(method.views, labelled=8, unlabelled=8, images=PRESETS["paper"])
    pool = pool_of(digits, split)
    source = Source(digits.kind.inputs(pool.unlabelled.numpy()), pool, drawing, cpu)
    torch.manual_seed(0)
    net = MultiHead.cut(backbone("wrn-10-1", channels=1, classes=10, extra=method.extra), 1).train()
    pool = Pool(NOTHING, NOTHING, NOTHING, len(digits.images), 10)
    memory, fresh, restored = method.init(pool), method.init(pool), method.init(pool)

    def loss(step: int, memory: dict[str, Tensor]) -> Tensor:
        student = Learner(net, copy.deepcopy(net).eval(), step, 10, source.generator(step), memory)
        losses = method.loss(student, source.batch(step, method.rates(memory)))
        return losses.total

    for step in range(4):
        assert torch.isfinite(loss(step, memory))
    for name, tensor in memory.items():
        restored[name].copy_(tensor)
    net.eval()
    uninterrupted, resumed, forgetful = (loss(4, some) for some in (memory, restored, fresh))
    assert torch.equal(uninterrupted, resumed)
    assert not torch.equal(uninterrupted, forgetful)
    assert all(torch.equal(memory[name], restored[name]) for name in memory)
