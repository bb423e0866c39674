"""What holds for every method in the folder. (Two processes against one: tests/test_ranks.py, every method too.)"""

import copy
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from cotrain import Config, Dataset, from_arrays, open_data, recipe_named
from cotrain.augment import Policy, draw_plain, normalised
from cotrain.data import Split, draw_split
from cotrain.data.dataset import UNLABELLED
from cotrain.methods import METHODS
from cotrain.model import MultiHead
from cotrain.ops import batch_statistics, evaluating, heads_cross_entropy
from cotrain.runs.run import Run
from cotrain.training.loop import objective_of, refresh, source_of, take_step, train
from cotrain.training.state import State, begin, pool_of
from cotrain.types import Batch, Learner, Losses, Method
from tests.methods.parts import unlabelled

DOCS = Path(__file__).parent.parent.parent / "docs" / "methods"
CPU = torch.device("cpu")
STEPS = 30
LATE = 24  # a step of these at which every ramp has begun, and every first phase is over
SMALL = recipe_named("digits").changed(
    {
        "data.labels": 20,
        "optim.steps": STEPS,
        "optim.labelled": 8,
        "optim.unlabelled": 12,
        "model.head_init": "copied",
        "run.log_every": 5,
        "run.checkpoint_every": 18,
    }
)
FOR_THIRTY_STEPS = {
    "trinet": {"method.initial": 0.5, "method.rounds": 3, "method.passes": 3},
    "remixmatch": {"method.strong_views": 2},
}
ONLY_SELECTED = ("fixmatch", "fixmatch_cta", "pseudo_label", "uda")  # nothing else is in their unlabelled term
each_name = pytest.mark.parametrize("name", METHODS)
each_learning_from_unlabelled = pytest.mark.parametrize("name", [name for name in METHODS if name != "supervised"])


@cache
def few_digits() -> Dataset:
    """So few that a pass over them is 10 steps."""
    digits = open_data("digits")
    return from_arrays(digits.images[:120], digits.labels[:120], name="few digits")


def config_of(name: str) -> Config:
    return SMALL.changed({"method": name, **FOR_THIRTY_STEPS.get(name, {})})


def split_of(dataset: Dataset) -> Split:
    return draw_split(dataset, SMALL.data.model_copy(update={"test_share": 0.0}), seed=0)


class Bench:
    """A method at work: its state, and its loss at any step, without an optimiser."""

    def __init__(self, name: str, dataset: Dataset | None = None, split: Split | None = None) -> None:
        self.dataset = dataset or few_digits()
        self.config, self.split = config_of(name), split or split_of(self.dataset)
        self.method: Method = self.config.method
        self.state: State = begin(self.config, self.dataset, self.split, CPU)
        self.source = source_of(self.config, self.dataset, self.split, CPU)

    def sure(self, factor: float = 30.0) -> "Bench":
        """A network that is sure of its predictions, with heads that mostly agree; a factor of 0: it knows nothing."""
        noise = torch.Generator().manual_seed(0)
        for module in self.state.net.modules():
            if isinstance(module, nn.Linear):
                module.weight.data.add_(torch.randn(module.weight.shape, generator=noise), alpha=0.02).mul_(factor)
        self.state.average.net.load_state_dict(self.state.net.state_dict())
        return self

    def learner(self, step: int) -> Learner:
        state = self.state
        return Learner(state.net, state.average.net, step, STEPS, self.source.generator(step), state.memory)

    def batch(self, step: int) -> Batch:
        return self.source.batch(step, self.method.rates(self.state.memory))

    def refresh(self, step: int) -> None:
        pool, self.state.step = pool_of(self.dataset, self.split), step
        if step in self.method.refresh_steps(pool, STEPS, self.config.unlabelled):
            refresh(self.config, self.state, pool, self.source)

    def loss(self, step: int, batch: Batch | None = None) -> Losses:
        torch.manual_seed(step)  # of dropout, as the loop does
        return self.method.loss(self.learner(step), batch or self.batch(step))

    @torch.no_grad()
    def labelled_loss(self, net: MultiHead | None = None) -> float:
        """Cross-entropy of the labelled images as they are, without dropout."""
        net = net or self.state.net
        rows = np.asarray(self.split.labelled)
        images = normalised(
            few_digits().images, rows, draw_plain(len(rows)), Policy(), self.source.mean, self.source.std
        )
        with evaluating(net), batch_statistics(net):
            return heads_cross_entropy(net(images), few_digits().labels[rows]).mean().item()

    def late(self) -> "Bench":
        """As after many steps: memory is filled, and what happens once a pass has happened."""
        with torch.no_grad():
            for step in range(LATE):
                self.refresh(step)
                if self.state.memory:
                    keep = {name: tensor.clone() for name, tensor in self.state.net.state_dict().items()}
                    self.loss(step)
                    self.state.net.load_state_dict(keep)
        self.refresh(LATE)
        return self


@cache
def _sure_and_late(name: str) -> Bench:
    return Bench(name).sure().late()


def at_work(name: str) -> Bench:
    """A network that is sure, late in a run; each test has its own copy."""
    made = copy.copy(_sure_and_late(name))
    made.state = copy.deepcopy(made.state)
    return made


@each_name
def test_settings_are_frozen_have_defaults_and_say_what_they_mean(name: str) -> None:
    method = METHODS[name]()
    assert all(field.description for field in type(method).model_fields.values())
    with pytest.raises(ValidationError, match="frozen"):
        method.heads = 9
    with pytest.raises(ValidationError, match="extra"):
        METHODS[name](no_such_setting=1)


@each_name
def test_there_is_a_page_about_it(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text()
    assert f"(`{name}`)" in page
    assert f"cotrain/methods/{name}.py" in page


@each_name
def test_the_same_step_gives_the_same_finite_loss(name: str) -> None:
    first, second = (made.loss(LATE) for made in (at_work(name), Bench(name).sure().late()))
    for term in METHODS[name].terms:
        assert torch.isfinite(first[term])
        assert torch.equal(first[term], second[term])


@each_name
@pytest.mark.parametrize("step", [0, LATE])
def test_the_terms_are_those_it_names_and_add_up_to_the_total(name: str, step: int) -> None:
    method = METHODS[name]
    losses = (Bench(name) if step == 0 else at_work(name)).loss(step)
    assert tuple(losses.terms) == method.terms and method.terms[0] == "supervised"
    assert not losses.terms.keys() & losses.monitors.keys(), "nothing is logged twice"
    assert losses.logged.keys() == losses.terms.keys() | losses.monitors.keys()
    assert losses.terms["supervised"].weight == 1
    expected = sum(term.weight * term.value.double() for term in losses.terms.values())
    assert losses.total.item() == pytest.approx(expected.item(), rel=1e-6)
    if len(method.terms) == 2:
        assert losses.terms["unsupervised"].weight == config_of(name).method.weight(step / STEPS)


@each_learning_from_unlabelled
def test_the_unlabelled_terms_reach_the_student_and_nothing_else(name: str) -> None:
    bench = at_work(name)
    losses = bench.loss(LATE)
    unlabelled(losses).backward()
    assert all(losses[term].item() > 0 for term in bench.method.terms)
    assert all(parameter.grad is not None for parameter in bench.state.net.parameters())
    classifiers = [head[-1].fc.weight.grad for head in bench.state.net.heads]
    assert all(gradient.any() for gradient in classifiers)
    assert all(parameter.grad is None for parameter in bench.state.average.net.parameters())
    assert not any(tensor.requires_grad for tensor in bench.state.memory.values())


@each_learning_from_unlabelled
def test_other_pixels_of_the_unlabelled_images_give_another_loss(name: str) -> None:
    batch = at_work(name).batch(LATE)
    other = replace(batch, weak=batch.weak.flip(-1), strong=batch.strong.flip(-1))
    before, after = (at_work(name).loss(LATE, seen) for seen in (batch, other))
    for term in METHODS[name].terms[1:]:
        assert before[term].item() != after[term].item()


@each_name
def test_labels_of_unlabelled_images_are_nowhere(name: str) -> None:
    """The same images and split, and no label but those of the labelled images: everything is the same."""
    told = few_digits()
    split = split_of(told)
    labels = torch.full_like(told.labels, UNLABELLED)
    labels[list(split.labelled)] = told.labels[list(split.labelled)]
    untold = replace(told, labels=labels)
    first, second = (Bench(name, dataset, split).sure().late() for dataset in (told, untold))
    for field in fields(Batch):
        assert torch.equal(getattr(first.batch(LATE), field.name), getattr(second.batch(LATE), field.name))
    one, other = first.loss(LATE), second.loss(LATE)
    assert [term.value for term in one.terms.values()] == [term.value for term in other.terms.values()]
    assert all(torch.equal(first.state.memory[key], second.state.memory[key]) for key in first.state.memory)


@each_name
def test_a_network_that_knows_nothing_gives_finite_losses_and_gradients(name: str) -> None:
    bench = Bench(name).sure(0.0).late()
    losses = bench.loss(LATE)
    losses.total.backward()
    assert all(torch.isfinite(term.value) for term in losses.terms.values())
    gradients = [parameter.grad for parameter in bench.state.net.parameters() if parameter.grad is not None]
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    if "selected" in losses.monitors:
        assert losses.monitors["selected"] == 0
    if name in ONLY_SELECTED:
        assert losses["unsupervised"].item() == 0 and losses["unsupervised"].requires_grad


@pytest.mark.parametrize(("channels", "classes"), [(3, 2), (1, 100)])
@each_name
def test_any_number_of_channels_and_classes(name: str, channels: int, classes: int) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(120) % classes
    made = from_arrays(rng.integers(0, 256, (120, 8, 8, channels), np.uint8), labels)
    settings = SMALL.data.model_copy(update={"labels": max(classes, 20), "test_share": 0.0})
    bench = Bench(name, made, draw_split(made, settings, seed=0)).sure().late()
    losses = bench.loss(LATE)
    losses.total.backward()
    assert all(torch.isfinite(term.value) for term in losses.terms.values())
    assert bench.state.net(bench.batch(0).x).shape == (bench.method.heads, 8, classes)


@each_name
def test_thirty_steps_lower_its_loss_on_the_labelled_images(name: str) -> None:
    """The first steps of a run as long as those published: what rises with the steps has hardly begun."""
    bench = Bench(name)
    config, state = bench.config.changed({"optim.steps": 2**20}), bench.state
    objective = objective_of(config, state, CPU)
    before = bench.labelled_loss()
    for step in range(30):
        take_step(config, state, objective, bench.batch(step), bench.source.generator(step))
    assert bench.labelled_loss() < 0.9 * before


@each_name
def test_a_run_goes_on_from_a_checkpoint_to_the_same_bits(name: str, tmp_path: Path) -> None:
    dataset, config = few_digits(), config_of(name)
    run = Run.create(tmp_path / "run", config, split_of(dataset))
    state = train(run, dataset, CPU, Console(quiet=True), name)
    begun = dict(begin(config, dataset, run.split, CPU).net.named_parameters())
    assert all(not torch.equal(begun[key], own) for key, own in state.net.named_parameters() if own.ndim > 1)
    whole, last = load_file(run.model_path), load_file(run.checkpoints.newest())
    run.model_path.unlink()
    run.checkpoints.newest().unlink()
    assert run.checkpoints.newest().stem == "step-00000018"
    train(run, dataset, CPU, Console(quiet=True), name)
    again, last_again = load_file(run.model_path), load_file(run.checkpoints.newest())
    assert [key for key in whole if not torch.equal(whole[key], again[key])] == []
    assert [key for key in last if not torch.equal(last[key], last_again[key])] == []

    pool = pool_of(dataset, run.split)
    remembered = {f"memory.{key}": tensor for key, tensor in config.method.init(pool).items()}
    assert {key for key in last if key.startswith("memory.")} == set(remembered)
    assert not remembered or any(not torch.equal(last[key], remembered[key]) for key in remembered)
    refresh_steps = config.method.refresh_steps(pool, STEPS, config.unlabelled)
    assert bool(refresh_steps) == (METHODS[name].refresh is not Method.refresh)
    assert not refresh_steps or max(refresh_steps) >= 18, "a round begins after the checkpoint too"
