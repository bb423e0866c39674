"""Smeared labels, the schedule as a table, labelling and its filter by brute force, and which head moves the trunk."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cotrain.methods.trinet import TriNet
from cotrain.model import MultiHead
from cotrain.model.families.wrn import wrn
from cotrain.ops import batch_norms, batch_statistics, evaluating
from cotrain.types import Batch, Learner, Pool, Views

IMAGES, CLASSES = 60, 3
LABELLED = torch.tensor([50, 8, 21, 9])
POOL = Pool(LABELLED, torch.tensor([0, 1, 2, 1]), torch.arange(40), IMAGES, CLASSES)
STEPS = 400
METHOD = TriNet(initial=0.25, rounds=30)  # rounds of ten steps


def learner(method: TriNet = METHOD, step: int = 110, dropout: bool = False) -> Learner:
    torch.manual_seed(0)
    stages = wrn(10, 1, channels=3, classes=CLASSES)
    net = MultiHead.cut(stages, 3, dropout=method.dropout if dropout else None).train()
    return Learner(net, net, step, STEPS, torch.Generator().manual_seed(1), method.init(POOL))


def a_batch() -> Batch:
    rng = torch.Generator().manual_seed(0)
    return Batch(
        x=torch.randn(4, 3, 8, 8, generator=rng),
        y=torch.tensor([1, 0, 1, 2]),
        labelled_rows=torch.tensor([8, 50, 9, 21]),
        weak=torch.randn(1, 6, 3, 8, 8, generator=rng),
        strong=torch.zeros(0, 6, 3, 8, 8),
        unlabelled_rows=torch.tensor([3, 29, 11, 10, 31, 5]),
    )


def with_labels(of: Learner) -> Learner:
    of.memory["labels"][:, a_batch().unlabelled_rows] = torch.tensor(
        [[0, -1, 2, -1, 1, 1], [-1, -1, -1, -1, -1, -1], [2, 0, -1, -1, -1, -1]]
    )
    return of


def test_rounds_are_equally_long_after_the_beginning() -> None:
    rounds = [METHOD.round(step, STEPS) for step in range(STEPS)]
    assert rounds == [0] * 100 + [number for number in range(1, 31) for _ in range(10)]
    assert METHOD.refresh_steps(POOL, STEPS, 6) == [0, *range(100, 400, 10)]
    assert TriNet(initial=0).refresh_steps(POOL, STEPS, 6)[0] == 0
    few = [TriNet(initial=0.25).round(step, 20) for step in range(20)]
    assert few[:5] == [0] * 5 and few[5:] == list(range(1, 31, 2)), "fewer steps than rounds leave some out"


FROM_THE_FIRST = [0.70, 0.95, 0.95, None, 0.65, 0.90, 0.90, None, 0.60, 0.85, 0.85, None, 0.55, 0.80, 0.80, None]
FROM_THE_SIXTH = [0.70, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95, None, 0.65, 0.90, 0.90, None, 0.60, 0.85, 0.85, None]


@pytest.mark.parametrize(
    ("images", "table", "last"),
    [(40, FROM_THE_FIRST, 0.60), (2000, FROM_THE_FIRST, 0.60), (50_000, FROM_THE_SIXTH, 0.65)],
)
def test_the_threshold_follows_the_table(images: int, table: list[float | None], last: float) -> None:
    """None is a round of smearing; they begin once all images are asked, 2000 in the first round."""
    assert METHOD.smears(0, images)
    for number, sigma in enumerate(table, start=1):
        assert METHOD.smears(number, images) == (sigma is None)
        if sigma is not None:
            assert METHOD.sigma(number, images) == pytest.approx(sigma)
    assert METHOD.sigma(30, images) == pytest.approx(last)
    assert METHOD.sigma(29, images) == pytest.approx(last - 0.25)
    assert TriNet(threshold=0.1).sigma(1, images) == 0


def test_smeared_labels_are_the_truth_with_noise_of_each_heads_own() -> None:
    METHOD.refresh(first := learner(step=0), POOL, lambda rows: torch.zeros(0))
    student, batch = replace(first, step=99), a_batch()
    student.net.eval()
    noise = student.memory["noise"]
    assert noise.shape == (3, 4, CLASSES)
    assert (noise >= 0).all() and (noise > 0).any() and (noise == 0).any()
    assert not torch.equal(noise[0], noise[1]) and not torch.equal(noise[1], noise[2])
    many = METHOD.noise((3, 1000, 10), torch.Generator().manual_seed(0))
    assert many.square().mean().item() == pytest.approx(0.05**2 / 2, rel=0.05)

    losses = METHOD.loss(student, batch)
    losses["supervised"].backward()
    gradients = [weight.grad.clone() for weight in student.net.parameters()]

    student.net.zero_grad()
    logp = student.net(batch.x).log_softmax(-1)
    expected = torch.zeros(())
    for head in range(3):
        for image, row in enumerate([8, 50, 9, 21]):
            target = F.one_hot(batch.y[image], CLASSES) + noise[head, LABELLED.tolist().index(row)]
            target = target / target.sum()
            assert target.argmax() == batch.y[image]
            expected = expected - target @ logp[head, image] / 4
    expected.backward()
    assert losses["supervised"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert losses["unsupervised"].item() == 0
    for ours, weight in zip(gradients, student.net.parameters(), strict=True):  # of the trunk too, from all heads
        torch.testing.assert_close(ours, weight.grad, rtol=1e-3, atol=1e-5)


def test_the_loss_of_a_round_is_the_mean_over_what_each_head_was_taught() -> None:
    student, batch = with_labels(learner()), a_batch()
    student.net.eval()
    losses = METHOD.loss(student, batch)
    labelled, unlabelled = student.net(batch.x).detach(), student.net(batch.weak[0]).detach()
    supervised = sum(F.cross_entropy(labelled[head], batch.y).item() for head in range(3))
    taught = {0: {0: 0, 2: 2, 4: 1, 5: 1}, 2: {0: 2, 1: 0}}
    unsupervised = 0.0
    for head, labels in taught.items():
        terms = [-unlabelled[head, image].log_softmax(-1)[label].item() for image, label in labels.items()]
        unsupervised += sum(terms) / len(terms)
    assert losses["supervised"].item() == pytest.approx(supervised, rel=1e-5)
    assert losses["unsupervised"].item() == pytest.approx(unsupervised, rel=1e-5)
    assert losses.monitors["labelled"].item() == pytest.approx(6 / 18)


def test_in_a_round_only_the_first_head_moves_the_trunk() -> None:
    def gradients(labels: Tensor) -> tuple[list[Tensor | None], list[list[Tensor | None]]]:
        student = learner()
        student.net.eval()
        student.memory["labels"][:, a_batch().unlabelled_rows] = labels
        METHOD.loss(student, a_batch())["unsupervised"].backward()
        net = student.net
        return (
            [weight.grad for weight in net.trunk.parameters()],
            [[weight.grad for weight in head.parameters()] for head in net.heads],
        )

    for head in range(3):
        labels = torch.full((3, 6), -1)
        labels[head, :4] = torch.tensor([0, 1, 2, 1])
        trunk, heads = gradients(labels)
        assert all(gradient.any() for gradient in trunk) == (head == 0)
        assert any(gradient.any() for gradient in trunk) == (head == 0)
        assert [all(gradient.any() for gradient in of_head) for of_head in heads] == [h == head for h in range(3)]


def test_nothing_taught_is_a_zero_that_can_be_differentiated() -> None:
    student = learner()
    losses = METHOD.loss(student, a_batch())
    losses["unsupervised"].backward()
    assert losses["unsupervised"].item() == 0
    assert all(weight.grad is not None and not weight.grad.any() for weight in student.net.parameters())
    assert {int(layer.num_batches_tracked) for layer in batch_norms(student.net)} == {1}


def test_pixels_of_taught_images_matter() -> None:
    batch = a_batch()
    losses = METHOD.loss(with_labels(learner()), batch)
    changed = METHOD.loss(with_labels(learner()), replace(batch, weak=batch.weak.flip(-1)))
    assert changed["unsupervised"].item() != losses["unsupervised"].item()


def test_labels_come_from_the_other_two_where_they_agree_are_sure_and_stay_with_it() -> None:
    """Against loops, with a network whose logits are prepared: a plain pass, then nine with dropout."""
    rng = torch.Generator().manual_seed(5)
    plain = 2.5 * torch.randn(3, IMAGES, CLASSES, generator=rng)
    dropped = [plain + 2.5 * torch.randn(3, IMAGES, CLASSES, generator=rng) for _ in range(9)]
    student = learner(step=100, dropout=True)
    student.memory["labels"].fill_(7)
    answers, asked = iter([plain, *dropped]), []

    def look(rows: Tensor) -> Tensor:
        live = [module.training for module in student.net.modules() if isinstance(module, nn.Dropout)]
        assert set(live) == {bool(asked)}, "dropout lives in all but the first"
        assert not any(layer.training for layer in batch_norms(student.net))
        assert all(layer.running_mean is None for layer in batch_norms(student.net)), "the batch's own statistics"
        asked.append(sorted(rows.tolist()))
        return next(answers)[:, rows]

    METHOD.refresh(student, POOL, look)
    assert asked == [list(range(40))] * 10
    assert student.net.training
    assert all(layer.running_mean is not None for layer in batch_norms(student.net))

    sigma, counts = 0.70, {"agree": 0, "sure": 0, "kept": 0}
    for head in range(3):
        one, other = (number for number in range(3) if number != head)
        for row in range(IMAGES):
            expected = -1
            p, q = plain[one, row].softmax(-1), plain[other, row].softmax(-1)
            if row < 40 and p.argmax() == q.argmax():
                counts["agree"] += 1
                if (p.max() + q.max()) / 2 >= sigma:
                    counts["sure"] += 1
                    said = [(d[one, row].softmax(-1) + d[other, row].softmax(-1)).argmax() for d in dropped]
                    if sum(int(label != p.argmax()) for label in said) <= 3:
                        counts["kept"] += 1
                        expected = int(p.argmax())
            assert student.memory["labels"][head, row] == expected
    assert 0 < counts["kept"] < counts["sure"] < counts["agree"] < 120


def test_a_pass_in_eval_mode_can_use_the_batchs_own_statistics() -> None:
    net, images = learner(dropout=True).net, torch.randn(9, 3, 8, 8)
    plain = learner().net  # the same weights without dropout, in training
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with torch.no_grad(), evaluating(net), batch_statistics(net):
        assert torch.allclose(net(images), plain(images), atol=1e-5)
    assert net.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    with torch.no_grad(), evaluating(net):
        assert not torch.allclose(net(images), plain(images), atol=1e-2)


def test_a_round_asks_a_random_pool_that_doubles() -> None:
    pool = replace(POOL, unlabelled=torch.arange(5000), images=5000)
    for step, size in ((100, 2000), (110, 4000), (120, 5000)):
        student = replace(learner(step=step), memory=METHOD.init(pool))
        asked: list[Tensor] = []

        def look(rows: Tensor, asked: list[Tensor] = asked) -> Tensor:
            asked.append(rows)
            return torch.tensor([9.0, 0, 0]).expand(3, len(rows), 3)

        METHOD.refresh(student, pool, look)
        assert len(asked[0].unique()) == size
        assert (student.memory["labels"][:, asked[0]] == 0).all()
        assert (student.memory["labels"] == 0).sum() == 3 * size
    assert not torch.equal(asked[0].sort().values, asked[0])


def test_a_round_of_smearing_draws_new_noise_and_takes_all_labels_away() -> None:
    student = with_labels(learner(step=130))
    before = student.memory["noise"].clone()

    def look(rows: Tensor) -> Tensor:
        raise AssertionError("nothing is labelled in this round")

    METHOD.refresh(student, POOL, look)
    assert (student.memory["labels"] == -1).all()
    assert not torch.equal(student.memory["noise"], before)
    again = learner(step=130)
    METHOD.refresh(again, POOL, look)
    assert torch.equal(again.memory["noise"], student.memory["noise"])
    seen: list[int] = []
    student.net.register_forward_pre_hook(lambda _, arguments: seen.append(len(arguments[0])))
    METHOD.loss(student, a_batch())
    assert seen == [4], "labelled images only"


def test_heads_differ_by_dropout_and_views_are_weak() -> None:
    method = TriNet()
    assert method.views == Views(weak=1)
    net = learner(dropout=True).net
    shares = [{module.p for module in head.modules() if isinstance(module, nn.Dropout)} for head in net.heads]
    assert shares == [{0.3}, {0.4}, {0.5}]
    assert {module.p for module in net.trunk.modules() if isinstance(module, nn.Dropout)} <= {0.0}
