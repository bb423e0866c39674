"""The loss written out in loops, and labels that spread as a dense solve says."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from cotrain import graph
from cotrain.methods.laplacenet import LaplaceNet
from cotrain.model import MultiHead
from cotrain.model.families.wrn import wrn
from cotrain.ops import batch_norms, evaluating
from cotrain.types import Batch, Learner, Pool, Views

IMAGES, CLASSES = 90, 3
TRAINED_ON = torch.arange(5, 85)  # the others are test images
LABELLED = torch.tensor([50, 8, 21, 9, 70, 33])
POOL = Pool(LABELLED, LABELLED % 3, TRAINED_ON, IMAGES, CLASSES)


def learner(method: LaplaceNet, step: int = 50) -> Learner:
    torch.manual_seed(0)
    net = MultiHead.cut(wrn(10, 1, channels=3, classes=CLASSES, extra=method.extra), 1).train()
    return Learner(net, net, step, 100, torch.Generator().manual_seed(1), method.init(POOL))


def a_batch(views: int = 2) -> Batch:
    rng = torch.Generator().manual_seed(0)
    return Batch(
        x=torch.zeros(4, 3, 8, 8),
        y=torch.tensor([2, 0, 2, 1]),
        labelled_rows=torch.tensor([8, 9, 8, 70]),
        weak=torch.zeros(0, 6, 3, 8, 8),
        strong=torch.randn(views, 6, 3, 8, 8, generator=rng),
        unlabelled_rows=torch.tensor([13, 29, 11, 10, 61, 5]),
        x_strong=torch.randn(views, 4, 3, 8, 8, generator=rng),
    )


def seen_by(of: Learner) -> list[Tensor]:
    passes: list[Tensor] = []
    of.net.register_forward_pre_hook(lambda _, arguments: passes.append(arguments[0].detach().clone()))
    return passes


def test_the_loss_is_the_papers_written_out() -> None:
    method, batch = LaplaceNet(views_each=2), a_batch()
    student = learner(method)
    student.net.eval()
    labels = student.memory["labels"]
    labels[batch.unlabelled_rows] = torch.tensor([0, 2, 1, 1, -1, 0])
    passes = seen_by(student)
    losses = method.loss(student, batch)
    assert len(passes) == 2

    order = torch.randperm(10, generator=torch.Generator().manual_seed(1)).tolist()
    uniform = np.full(3, 1 / 3)
    targets = [np.eye(3)[label] if label >= 0 else uniform for label in [2, 0, 2, 1, 0, 2, 1, 1, -1, 0]]
    labelled = others = 0.0
    shares = []
    for view, mixed in enumerate(list(passes)):
        images = torch.cat([batch.x_strong[view], batch.strong[view]])
        change, whole = (mixed - images[order]).flatten(), (images - images[order]).flatten()
        lam = float((change @ whole) / (whole @ whole))
        shares.append(lam)
        assert torch.allclose(mixed, lam * images + (1 - lam) * images[order], atol=1e-5)
        logp = student.net(mixed)[0].detach().double().log_softmax(-1).numpy()
        for row in range(10):
            for image, weight in ((row, lam), (order[row], 1 - lam)):
                cost = -weight * float(targets[image] @ logp[row]) / 10 / 2
                labelled, others = (labelled + cost, others) if image < 4 else (labelled, others + cost)
    assert shares[0] == pytest.approx(shares[1], rel=1e-4), "one share for all views"
    assert 0 < shares[0] < 1
    assert losses["supervised"].item() == pytest.approx(labelled, rel=1e-4)
    assert losses["unsupervised"].item() == pytest.approx(others, rel=1e-4)


def test_at_first_only_labelled_images_are_seen() -> None:
    method, batch = LaplaceNet(views_each=2, supervised_share=0.1), a_batch()
    student = learner(method, step=9)
    passes = seen_by(student)
    losses = method.loss(student, batch)
    assert [len(images) for images in passes] == [4, 4]
    assert losses["unsupervised"].item() == 0
    logits = torch.stack([student.net(images)[0] for images in list(passes)])
    order = torch.randperm(4, generator=torch.Generator().manual_seed(1))
    images = batch.x_strong[0]
    lam = ((passes[0] - images[order]) / (images - images[order]))[order != torch.arange(4)].median().item()
    mixed = lam * torch.eye(3)[batch.y] + (1 - lam) * torch.eye(3)[batch.y][order]
    expected = -(mixed * logits.log_softmax(-1)).sum(-1).mean()
    assert losses["supervised"].item() == pytest.approx(expected.item(), rel=1e-3)
    method.loss(replace(student, step=10), batch)
    assert [len(images) for images in passes[-2:]] == [10, 10]


def test_unlabelled_views_teach_every_weight_and_each_view_updates_batchnorm() -> None:
    method, batch = LaplaceNet(views_each=2), a_batch()
    student = learner(method)
    losses = method.loss(student, batch)
    losses["unsupervised"].backward()
    assert all(weight.grad.any() for weight in student.net.parameters())
    assert {int(layer.num_batches_tracked) for layer in batch_norms(student.net)} == {2}
    changed = replace(batch, strong=batch.strong.flip(-1))
    assert method.loss(learner(method), changed)["unsupervised"].item() != losses["unsupervised"].item()


def test_views_and_features_are_those_it_asks_for() -> None:
    method = LaplaceNet()
    assert method.views == Views(
        weak=0, strong=3, labelled_strong=3, labelled_operations=1, every_pass=True, whole=True
    )
    net, images = learner(method).net, torch.randn(4, 3, 8, 8)
    pooled: list[Tensor] = []
    net.heads[0][-1].fc.register_forward_pre_hook(lambda _, arguments: pooled.append(arguments[0]))
    with evaluating(net):
        outputs = net(images, extra=True)[0]
        assert torch.equal(outputs[:, 3:], pooled[0])
        assert torch.equal(outputs[:, :3], net(images)[0])


def spread_out() -> Tensor:
    """Features of all images: three directions and much noise. Lengths differ, and must not matter."""
    rng = torch.Generator().manual_seed(3)
    centres = torch.eye(3, 5)[torch.arange(IMAGES) % 3]
    return (centres + 0.35 * torch.randn(IMAGES, 5, generator=rng)) * torch.linspace(0.5, 3, IMAGES)[:, None]


@pytest.mark.parametrize("k", [4, 50])
def test_labels_spread_as_a_dense_solve_says(k: int) -> None:
    method, features = LaplaceNet(neighbours=k), spread_out()
    student = learner(method)

    def look(rows: Tensor) -> Tensor:
        assert not student.net.training
        return torch.cat([torch.full((len(rows), CLASSES), 99.0), features[rows]], dim=1)[None]

    method.refresh(student, POOL, look)
    labels = student.memory["labels"]
    assert student.net.training
    assert labels[LABELLED].tolist() == POOL.labels.tolist()
    assert (labels[:5] == -1).all() and (labels[85:] == -1).all(), "test images are no part of it"

    unit = torch.nn.functional.normalize(features[TRAINED_ON], dim=1).double().numpy()
    cosine = unit @ unit.T - 2 * np.eye(80)
    directed = np.where(cosine >= np.sort(cosine, axis=1)[:, [-k]], np.maximum(cosine, 0), 0)
    weights = np.maximum(directed, directed.T)
    degree = weights.sum(1)
    seeds = np.zeros((80, 3))
    seeds[LABELLED - 5, LABELLED % 3] = 1
    solved = np.linalg.solve(np.eye(80) - 0.99 * weights / np.sqrt(np.outer(degree, degree)), seeds)
    p = np.delete(solved, LABELLED - 5, axis=0)
    shares = seeds.sum(0) / 6
    for _ in range(100):
        counts = np.bincount(p.argmax(1), minlength=3) / len(p)
        p = p * np.clip(shares / (counts + 1e-7), 0.99, 1.01)
        p /= p.sum(1, keepdims=True)
    ours = np.delete(labels[TRAINED_ON].numpy(), LABELLED - 5)
    assert (ours == p.argmax(1)).mean() > 0.97, "but for the tolerance of conjugate gradients"
    assert (ours == np.delete(TRAINED_ON.numpy(), LABELLED - 5) % 3).mean() > 0.8


def test_an_image_that_no_label_reaches_has_none_and_the_next_pass_may_give_it_one() -> None:
    method, features = LaplaceNet(neighbours=2), torch.eye(3, 5)[torch.arange(IMAGES) % 3] + 0.0
    features[[11, 12, 13]] = torch.eye(5)[4]
    student = learner(method)
    method.refresh(student, POOL, lambda rows: torch.cat([torch.zeros(len(rows), 3), features[rows]], dim=1)[None])
    labels = student.memory["labels"]
    assert labels[[11, 12, 13]].tolist() == [-1, -1, -1]
    losses = method.loss(student, replace(a_batch(), unlabelled_rows=torch.tensor([11, 12, 13, 11, 12, 13])))
    assert math.isfinite(losses["unsupervised"].item())
    method.refresh(student, POOL, lambda rows: torch.cat([torch.zeros(len(rows), 3), spread_out()[rows]], dim=1)[None])
    assert (labels[[11, 12, 13]] >= 0).all()


def test_images_that_no_label_reaches_do_not_move_the_others() -> None:
    method, features, beyond = LaplaceNet(neighbours=4), spread_out(), torch.arange(71, 85)
    features[:, 4] = 0
    features[beyond] = torch.eye(5)[4]
    found = []
    for unlabelled in (POOL.unlabelled, POOL.unlabelled[~torch.isin(POOL.unlabelled, beyond)]):
        student, pool = learner(method), replace(POOL, unlabelled=unlabelled)
        method.refresh(student, pool, lambda rows: torch.cat([torch.zeros(len(rows), 3), features[rows]], dim=1)[None])
        found.append(student.memory["labels"])
    assert torch.equal(*found)
    assert (found[0][beyond] == -1).all()
    assert (found[0][5:71] >= 0).all() and len(found[0][5:71].unique()) == 3


@pytest.mark.parametrize("unlabelled", [7, 80, 200])
def test_the_graph_is_made_when_the_second_phase_and_every_pass_in_it_begins(unlabelled: int) -> None:
    method = LaplaceNet(supervised_share=0.1)
    due = method.refresh_steps(POOL, 40, unlabelled)
    firsts = [step * unlabelled // 80 for step in range(40)]
    assert due == [4] + [step for step in range(5, 40) if firsts[step] != firsts[step - 1]]


def test_two_classes_one_channel_and_everything_labelled() -> None:
    method, rows = LaplaceNet(), torch.arange(6)
    torch.manual_seed(0)
    net = MultiHead.cut(wrn(10, 1, channels=1, classes=2, extra=method.extra), 1)
    pool = Pool(rows, rows % 2, rows, 6, 2)
    student = Learner(net, net, 50, 100, torch.Generator(), method.init(pool))
    images = torch.randn(6, 1, 8, 8)

    def look(rows: Tensor) -> Tensor:
        with torch.no_grad():
            return net(images[rows], extra=True)

    method.refresh(student, pool, look)
    assert student.memory["labels"].tolist() == [0, 1, 0, 1, 0, 1]


def test_of_many_images_a_sample_makes_the_graph_and_all_get_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "LARGEST", 79)
    monkeypatch.setattr(graph, "NODES", 40)
    method, features, student = LaplaceNet(neighbours=4), spread_out(), learner(LaplaceNet(neighbours=4))
    method.refresh(student, POOL, lambda rows: torch.cat([torch.zeros(len(rows), 3), features[rows]], dim=1)[None])
    labels = student.memory["labels"]
    assert (labels[TRAINED_ON] >= 0).all() and (labels[:5] == -1).all() and (labels[85:] == -1).all()
    assert labels[LABELLED].tolist() == POOL.labels.tolist()
    assert (labels[TRAINED_ON] == TRAINED_ON % 3).double().mean() > 0.8
