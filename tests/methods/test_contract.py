"""What holds for every method in the folder."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from cotrain.augment import PRESETS
from cotrain.data import DataSettings, Source, draw_split, open_data
from cotrain.methods import METHODS
from cotrain.model import MultiHead, wrn
from cotrain.types import Batch, Learner, Method, Pool

DOCS = Path(__file__).parent.parent.parent / "docs" / "methods"
each_method = pytest.mark.parametrize("method", [kind() for kind in METHODS.values()], ids=METHODS)


def source(method: Method) -> Source:
    digits = open_data("digits")
    split = draw_split(digits, DataSettings(labels=40), seed=0)
    return Source(
        digits, split, PRESETS["paper"], method.views, labelled=16, unlabelled=24, seed=0, device=torch.device("cpu")
    )


def learner(method: Method, seed: int = 0) -> Learner:
    torch.manual_seed(seed)
    net = MultiHead.cut(wrn(10, 1, channels=1, classes=10), method.heads).train()
    nothing = torch.zeros(0, dtype=torch.int64)
    return Learner(
        net, net, 5, 10, torch.Generator().manual_seed(0), method.init(Pool(nothing, nothing, nothing, 1797, 10))
    )


@each_method
def test_settings_are_frozen_have_defaults_and_say_what_they_mean(method: Method) -> None:
    assert all(field.description for field in type(method).model_fields.values())
    with pytest.raises(ValidationError, match="frozen"):
        method.heads = 9


@each_method
def test_there_is_a_page_about_it(method: Method) -> None:
    assert f"(`{method.name}`)" in (DOCS / f"{method.name}.md").read_text()


@each_method
def test_the_same_step_gives_the_same_finite_loss(method: Method) -> None:
    first, second = (method.loss(learner(method), source(method).batch(3)) for _ in range(2))
    assert torch.isfinite(first.supervised) and torch.isfinite(first.unsupervised)
    assert torch.equal(first.supervised, second.supervised)
    assert torch.equal(first.unsupervised, second.unsupervised)


@each_method
def test_the_unlabelled_term_reaches_the_student_if_there_is_one(method: Method) -> None:
    student, batch = learner(method), source(method).batch(0)
    losses = method.loss(student, batch)
    uses_unlabelled = method.views.weak + method.views.strong > 0
    assert losses.unsupervised.requires_grad == uses_unlabelled
    if uses_unlabelled:
        losses.unsupervised.backward()
        assert all(parameter.grad is not None for parameter in student.net.parameters())
        other = method.loss(learner(method), Batch(**{**vars(batch), "strong": batch.strong.flip(-1)}))
        assert other.unsupervised.item() != losses.unsupervised.item()


@each_method
def test_it_lowers_its_supervised_loss_on_digits(method: Method) -> None:
    student, batches = learner(method), source(method)
    optimizer = torch.optim.SGD(student.net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    history = []
    for step in range(30):
        losses = method.loss(student, batches.batch(step))
        optimizer.zero_grad()
        (losses.supervised + losses.unsupervised).backward()
        optimizer.step()
        history.append(losses.supervised.item())
    assert sum(history[-5:]) < 0.7 * sum(history[:5])
