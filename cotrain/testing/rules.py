"""The rules that every method must keep, one function each. A broken rule raises an AssertionError with the reason."""

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn

from cotrain.config import Config
from cotrain.data import Split, from_arrays
from cotrain.data.dataset import UNLABELLED
from cotrain.runs.run import Run
from cotrain.testing.trial import CPU, LATE, SAVED, STEPS, Subject, Trial, few_digits, known, split_of
from cotrain.training.experiment import Experiment
from cotrain.training.loop import train
from cotrain.training.state import pool_of
from cotrain.types import Batch, Losses, Method

LEARNING = 30  # steps in which the loss must fall


def require(holds: object, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def settings_are_frozen_and_described(subject: Subject) -> None:
    """Settings have defaults and descriptions and cannot be changed; unknown settings are refused."""
    method = subject.method()
    undescribed = [name for name, field in subject.method.model_fields.items() if not field.description]
    require(not undescribed, f"settings without a description: {', '.join(undescribed)}")
    try:
        setattr(method, "heads", 9)  # noqa: B010
    except ValidationError:
        pass
    else:
        raise AssertionError("its settings can be changed; leave model_config frozen")
    try:
        subject.method.model_validate({"no_such_setting": 1})
    except ValidationError:
        return
    raise AssertionError("it accepts a setting that does not exist; leave model_config at extra='forbid'")


def losses_are_repeatable(subject: Subject) -> None:
    """The same step gives the same finite loss."""
    first, second = (trial.loss(LATE) for trial in (subject.at_work(), Trial(subject.config).confident().late()))
    for term in first.terms:
        one, other = first[term], second[term]
        require(torch.isfinite(one), f"the {term} loss is {one.item()}")
        require(
            torch.equal(one, other),
            f"the {term} loss is {one.item()} and then {other.item()}; draw only from learner.generator",
        )


def terms_are_named_and_add_up(subject: Subject) -> None:
    """Every step has the terms that the method declares, `supervised` first; their weighted sum is the total."""
    for step, trial in ((0, Trial(subject.config)), (LATE, subject.at_work())):
        losses = trial.loss(step)
        named = subject.method.terms
        require(
            named[:1] == ("supervised",), f"the first term must be supervised, but the terms are {', '.join(named)}"
        )
        require(
            tuple(losses.terms) == named,
            f"step {step} has the terms {', '.join(losses.terms)}; the method declares {named}",
        )
        twice = sorted(losses.terms.keys() & losses.monitors.keys())
        require(not twice, f"{', '.join(twice)} is both a term and a monitor; terms are logged already")
        require(losses.terms["supervised"].weight == 1, "the supervised term has a weight other than 1")
        total = sum(term.weight * term.value.item() for term in losses.terms.values())
        close = not math.isfinite(total) or abs(losses.total.item() - total) <= 1e-5 * max(1.0, abs(total))
        require(close, f"the total is {losses.total.item()}, but the weighted terms add up to {total}")


def unlabelled_gradient_reaches_the_student_only(subject: Subject) -> None:
    """The unlabelled terms are positive, and their gradient reaches all of the network and nothing else."""
    if not subject.learns_from_unlabelled:
        return
    trial = subject.at_work()
    losses = trial.loss(LATE)
    for term in subject.unlabelled_terms:
        require(losses[term].item() > 0, f"the {term} loss is 0 for a confident network whose heads mostly agree")
        require(losses[term].requires_grad, f"the {term} loss has no gradient")
    torch.stack([losses[term] for term in subject.unlabelled_terms]).sum().backward()
    net = trial.state.net
    missing = [name for name, parameter in net.named_parameters() if parameter.grad is None]
    require(not missing, f"the gradient of the unlabelled terms does not reach {', '.join(missing[:3])}")
    for number, head in enumerate(net.heads):
        weights = [layer.weight.grad for layer in head.modules() if isinstance(layer, nn.Linear)]
        require(any(grad is not None and grad.any() for grad in weights), f"head {number} gets a gradient of 0")
    teacher = trial.state.average.net.parameters()
    require(all(parameter.grad is None for parameter in teacher), "the teacher gets a gradient")
    kept = [name for name, tensor in trial.state.memory.items() if tensor.requires_grad]
    require(not kept, f"memory keeps a gradient: {', '.join(kept)}; detach tensors before storing them")


def unlabelled_pixels_matter(subject: Subject) -> None:
    """Different pixels in the unlabelled images give different unlabelled terms."""
    if not subject.learns_from_unlabelled:
        return
    trial, other = subject.at_work(), subject.at_work()
    batch = trial.batch(LATE)
    flipped = replace(batch, weak=batch.weak.flip(-1), strong=batch.strong.flip(-1))
    before, after = trial.loss(LATE, batch), other.loss(LATE, flipped)
    for term in subject.unlabelled_terms:
        value = before[term].item()
        require(value != after[term].item(), f"flipping all unlabelled images leaves the {term} loss at {value}")


def labels_of_unlabelled_images_are_not_used(subject: Subject) -> None:
    """Losses and memory do not depend on the labels of the unlabelled images."""
    known_labels = few_digits()
    split = split_of(known_labels, subject.config)
    labels = torch.full_like(known_labels.labels, UNLABELLED)
    labels[list(split.labelled)] = known_labels.labels[list(split.labelled)]
    first = subject.at_work()
    second = Trial(subject.config, replace(known_labels, labels=labels), split).confident().late()
    for field in fields(Batch):
        one, other = (getattr(trial.batch(LATE), field.name) for trial in (first, second))
        require(torch.equal(one, other), f"Batch.{field.name} depends on the labels of unlabelled images")
    one, other = first.loss(LATE), second.loss(LATE)
    for term in one.terms:
        same = torch.equal(one[term], other[term])
        require(same, f"the {term} loss depends on the labels of unlabelled images")
    leaked = [name for name, kept in first.state.memory.items() if not torch.equal(kept, second.state.memory[name])]
    require(not leaked, f"memory depends on the labels of unlabelled images: {', '.join(leaked)}")


def an_ignorant_network_gives_finite_losses(subject: Subject) -> None:
    """A network that predicts all classes equally gives finite losses and gradients, and selects no pseudo-label."""
    trial = Trial(subject.config).confident(0.0).late()
    losses = trial.loss(LATE)
    check_finite(trial, losses)
    if "selected" in losses.monitors:
        require(
            losses.monitors["selected"] == 0, "it selects pseudo-labels of a network that predicts all classes equally"
        )


def any_channels_and_classes(subject: Subject) -> None:
    """The method works with any number of channels and classes."""
    for channels, classes in ((3, 2), (1, 100)):
        labels = np.arange(120) % classes
        pixels = np.random.default_rng(0).integers(0, 256, (120, 8, 8, channels), np.uint8)
        dataset = from_arrays(pixels, labels)
        config = subject.config.model_copy(
            update={"data": subject.config.data.model_copy(update={"labels": max(classes, 20)})}
        )
        trial = Trial(config, dataset).confident().late()
        check_finite(trial, trial.loss(LATE))
        shape = tuple(trial.state.net(trial.batch(0).x).shape)
        expected = (trial.method.heads, 8, classes)
        require(shape == expected, f"logits are {shape}, not {expected}, for {channels} channels and {classes} classes")


def it_learns(subject: Subject) -> None:
    """Thirty steps lower the loss on the labelled images.

    They are the first steps of a run of the published length, so ramps have hardly begun. The learning rate is low:
    with a higher one the loss jumps up and down, differently on every CPU.
    """
    trial = Trial(subject.config)
    optim = subject.config.optim.model_copy(update={"steps": 2**20, "lr": 0.05})
    training = replace(trial.training, config=subject.config.model_copy(update={"optim": optim}))
    before = trial.labelled_loss()
    for step in range(LEARNING):
        training.update(trial.batch(step))
    after = trial.labelled_loss()
    require(
        after < 0.9 * before,
        f"the loss on the labelled images was {before:.3f} and is {after:.3f} after {LEARNING} steps",
    )


def a_resumed_run_ends_with_the_same_bits(subject: Subject) -> None:
    """A run resumed from a checkpoint ends with exactly the same weights and memory."""
    dataset, config = few_digits(), subject.config
    with tempfile.TemporaryDirectory() as folder, known(subject.method):
        run = Run.create(Path(folder) / "run", config, split_of(dataset, config))
        experiment = Experiment(config, dataset, run.split, CPU)
        state = train(run, experiment, Console(quiet=True), config.method.name)
        begun = dict(experiment.start().state.net.named_parameters())
        idle = [key for key, own in state.net.named_parameters() if own.ndim > 1 and torch.equal(begun[key], own)]
        require(not idle, f"training does not change {', '.join(idle[:3])}")
        whole, last = load_file(run.model_path), load_file(_newest(run))
        run.model_path.unlink()
        _newest(run).unlink()
        train(run, Experiment(config, dataset, run.split, CPU), Console(quiet=True), config.method.name)
        again, last_again = load_file(run.model_path), load_file(_newest(run))
    changed = [key for key in whole if not torch.equal(whole[key], again[key])]
    changed += [key for key in last if not torch.equal(last[key], last_again[key])]
    require(
        not changed,
        f"after resuming, {', '.join(changed[:3])} differ; keep what later steps need in memory, not in the object, "
        "and draw only from learner.generator",
    )
    _check_memory(config, last, run.split)


def _newest(run: Run) -> Path:
    newest = run.checkpoints.newest()
    assert newest is not None
    return newest


def _check_memory(config: Config, saved: Mapping[str, Tensor], split: Split) -> None:
    pool = pool_of(few_digits(), split)
    initial = {f"memory.{key}": tensor for key, tensor in config.method.init(pool).items()}
    require(
        {key for key in saved if key.startswith("memory.")} == set(initial),
        "memory does not have the keys that `init` returns",
    )
    used = not initial or any(not torch.equal(saved[key], initial[key]) for key in initial)
    require(used, "nothing in the memory that `init` returns is ever changed")
    refresh_steps = config.method.refresh_steps(pool, STEPS, config.unlabelled)
    defined = type(config.method).refresh is not Method.refresh
    require(defined == bool(refresh_steps), "`refresh` and `refresh_steps` go together: define both, or neither")
    late = not refresh_steps or max(refresh_steps) >= SAVED
    require(late, f"`refresh` is never called in steps {SAVED} to {STEPS}; pass settings with which it is")


def check_finite(trial: Trial, losses: Losses) -> None:
    for name, term in losses.terms.items():
        require(torch.isfinite(term.value), f"the {name} loss is {term.value.item()}")
    losses.total.backward()
    gradients = {name: parameter.grad for name, parameter in trial.state.net.named_parameters()}
    wrong = [name for name, own in gradients.items() if own is not None and not torch.isfinite(own).all()]
    require(not wrong, f"the gradient of {', '.join(wrong[:3])} is NaN or infinite")


RULES: tuple[Callable[[Subject], None], ...] = (
    settings_are_frozen_and_described,
    terms_are_named_and_add_up,
    losses_are_repeatable,
    unlabelled_gradient_reaches_the_student_only,
    unlabelled_pixels_matter,
    labels_of_unlabelled_images_are_not_used,
    an_ignorant_network_gives_finite_losses,
    any_channels_and_classes,
    it_learns,
    a_resumed_run_ends_with_the_same_bits,
)
