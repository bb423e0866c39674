"""The loss written out in loops, the table of soft labels from pass to pass, and what batch-norm sees."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from cotrain.methods.pseudo_label_arazo import ArazoPseudoLabel
from cotrain.model import MultiHead
from cotrain.model.families.wrn import wrn
from cotrain.ops import batch_norms, mixed_cross_entropy
from cotrain.types import Batch, Learner, Pool
from tests.methods.parts import unlabelled

IMAGES, CLASSES = 20, 3
POOL = Pool(torch.tensor([4, 7]), torch.tensor([2, 0]), torch.arange(12), IMAGES, CLASSES)


def learner(method: ArazoPseudoLabel, step: int = 50) -> Learner:
    torch.manual_seed(0)
    net = MultiHead.cut(wrn(10, 1, channels=3, classes=CLASSES), 1).train()
    return Learner(net, net, step, 100, torch.Generator().manual_seed(1), method.init(POOL))


def a_batch() -> Batch:
    rng = torch.Generator().manual_seed(0)
    return Batch(
        x=torch.randn(4, 3, 8, 8, generator=rng),
        y=torch.tensor([2, 0, 2, 1]),
        labelled_rows=torch.tensor([4, 7, 4, 13]),
        weak=torch.randn(1, 6, 3, 8, 8, generator=rng),
        strong=torch.zeros(0, 6, 3, 8, 8),
        unlabelled_rows=torch.tensor([3, 9, 1, 0, 11, 5]),
    )


def with_labels(of: Learner) -> Learner:
    of.memory["labels"].copy_(torch.rand(IMAGES, CLASSES, generator=torch.Generator().manual_seed(2)).softmax(-1))
    return of


def seen_by(of: Learner) -> list[Tensor]:
    """The images of every pass that updates nothing, and of the one that is trained on, in order."""
    passes: list[Tensor] = []
    of.net.register_forward_pre_hook(lambda _, arguments: passes.append(arguments[0].detach().clone()))
    return passes


def test_the_loss_is_the_papers_written_out() -> None:
    method, batch = ArazoPseudoLabel(), a_batch()
    student = with_labels(learner(method))
    student.net.eval()
    passes = seen_by(student)
    labels = student.memory["labels"].numpy().astype(np.float64)
    losses = method.loss(student, batch)

    images = torch.cat([batch.x, batch.weak[0]])
    plain, mixed = passes
    assert torch.equal(plain, images)
    targets = np.concatenate([np.eye(CLASSES)[batch.y], labels[batch.unlabelled_rows]])
    logits = student.net(mixed)[0].detach().double()
    p = logits.softmax(-1).numpy()

    replayed = torch.Generator().manual_seed(1)
    order = torch.randperm(10, generator=replayed)
    both = (mixed - images[order]).flatten(), (images - images[order]).flatten()
    lam = float((both[0] @ both[1]) / (both[1] @ both[1]))
    assert torch.allclose(mixed, lam * images + (1 - lam) * images[order], atol=1e-5)
    assert 0 < lam < 1

    labelled = others = 0.0
    for row in range(10):
        for image, weight in ((row, lam), (int(order[row]), 1 - lam)):
            cost = -weight * sum(targets[image, c] * math.log(p[row, c]) for c in range(CLASSES)) / 10
            labelled, others = (labelled + cost, others) if image < 4 else (labelled, others + cost)
    prior = -sum(math.log(p[:, c].mean()) for c in range(CLASSES)) / CLASSES
    entropy = -(p * np.log(p)).sum(1).mean()
    assert losses["supervised"].item() == pytest.approx(labelled, rel=1e-4)
    assert unlabelled(losses).item() == pytest.approx(others + 0.8 * prior + 0.4 * entropy, rel=1e-4)
    assert losses["pseudo_label"].item() == pytest.approx(others, rel=1e-4)
    assert losses["prior"].item() == pytest.approx(prior, rel=1e-4)
    assert losses["entropy"].item() == pytest.approx(entropy, rel=1e-4)


def test_both_parts_of_a_mixed_cross_entropy_add_up_to_mixups() -> None:
    rng = torch.Generator().manual_seed(0)
    logits, order, share = torch.randn(9, 4, generator=rng), torch.randperm(9, generator=rng), torch.tensor([0.3])
    targets = torch.rand(9, 4, generator=rng).softmax(-1)
    mixed = 0.3 * targets + 0.7 * targets[order]
    expected = torch.nn.functional.cross_entropy(logits, mixed)
    assert mixed_cross_entropy(logits, targets, order, share).mean().item() == pytest.approx(expected.item(), rel=1e-5)


def test_it_records_what_it_says_of_the_plain_images_and_uses_none_of_it_yet() -> None:
    method, batch = ArazoPseudoLabel(), a_batch()
    student, twin = with_labels(learner(method)), learner(method)
    labels = student.memory["labels"].clone()
    passes = seen_by(student)
    method.loss(student, batch)
    assert torch.equal(student.memory["labels"], labels)
    said = twin.net(passes[0])[0, 4:].softmax(-1)
    recorded = student.memory["recorded"]
    assert torch.allclose(recorded[batch.unlabelled_rows], said, atol=1e-6)
    rest = [row for row in range(IMAGES) if row not in batch.unlabelled_rows]
    assert torch.equal(recorded[rest], torch.full((len(rest), CLASSES), 1 / 3))
    assert not recorded.requires_grad


def test_only_the_mixed_pass_updates_batchnorm() -> None:
    method = ArazoPseudoLabel()
    student, twin = learner(method), learner(method)
    passes = seen_by(student)
    method.loss(student, a_batch())
    twin.net(passes[1])
    for ours, theirs in zip(batch_norms(student.net), batch_norms(twin.net), strict=True):
        assert torch.equal(ours.running_mean, theirs.running_mean)
        assert torch.equal(ours.running_var, theirs.running_var)
        assert ours.num_batches_tracked == 1


def test_the_unlabelled_term_reaches_every_weight_and_pixels_of_both_kinds_matter() -> None:
    method, batch = ArazoPseudoLabel(), a_batch()
    student = with_labels(learner(method))
    losses = method.loss(student, batch)
    unlabelled(losses).backward()
    assert all(weight.grad.any() for weight in student.net.parameters())
    changed = replace(batch, weak=batch.weak.flip(-1))
    assert unlabelled(method.loss(with_labels(learner(method)), changed)).item() != unlabelled(losses).item()


def test_the_warm_up_sees_labelled_images_only_and_records_nothing() -> None:
    method = ArazoPseudoLabel(warmup=0.1)
    assert (method.first(100), method.first(99), ArazoPseudoLabel().first(219_200)) == (10, 10, 400)
    student = learner(method, step=9)
    passes = seen_by(student)
    method.loss(student, a_batch())
    assert [len(images) for images in passes] == [4]
    assert torch.equal(student.memory["recorded"], method.init(POOL)["recorded"])
    method.loss(replace(student, step=10), a_batch())
    assert [len(images) for images in passes] == [4, 10, 10]


@pytest.mark.parametrize("unlabelled", [1, 5, 12, 30])
def test_labels_are_replaced_where_a_pass_begins(unlabelled: int) -> None:
    """12 unlabelled images: pass n begins with the first step whose first image is one of its."""
    method = ArazoPseudoLabel(warmup=0.1)
    due = method.refresh_steps(POOL, 40, unlabelled)
    owners = [image // 12 for step in range(40) for image in range(step * unlabelled, (step + 1) * unlabelled)]
    firsts = [owners[step * unlabelled] for step in range(40)]
    assert due == [4] + [step for step in range(5, 40) if firsts[step] != firsts[step - 1]]


def test_labelled_images_keep_the_truth_and_the_others_get_what_was_recorded() -> None:
    method = ArazoPseudoLabel(warmup=0.1)
    student = learner(method, step=10)
    asked: list[Tensor] = []

    def look(rows: Tensor) -> Tensor:
        asked.append(rows)
        assert not student.net.training
        return torch.stack([rows * 0.1, rows * 0.2, rows * 0.0], dim=-1)[None]

    method.refresh(student, POOL, look)
    assert student.net.training
    labels = student.memory["labels"]
    for row in range(IMAGES):
        said = torch.tensor([row * 0.1, row * 0.2, 0.0]).softmax(-1)
        known = {4: torch.tensor([0.0, 0, 1]), 7: torch.tensor([1.0, 0, 0])}
        expected = known.get(row, said if row < 12 else torch.full((3,), 1 / 3))
        assert torch.allclose(labels[row], expected)

    student.memory["recorded"][:12] = torch.tensor([0.5, 0.25, 0.25])
    method.refresh(replace(student, step=15), POOL, look)
    assert len(asked) == 1, "later labels were recorded in training"
    assert torch.equal(labels[3], torch.tensor([0.5, 0.25, 0.25]))
    assert torch.equal(labels[4], torch.tensor([0.0, 0, 1]))
