"""What `fit` prints before training: the data, the network and the estimated time."""

import re
from collections.abc import Iterator

from cotrain.audit.duplicates import leaks
from cotrain.config import Config
from cotrain.data import Dataset, Split
from cotrain.fitting.baseline import baseline_config, has_baseline
from cotrain.fitting.crossvalidation import is_cross_validated
from cotrain.model.named import is_pretrained
from cotrain.progress import clock
from cotrain.runs.run import Run
from cotrain.training.experiment import Experiment
from cotrain.training.step import synchronised
from cotrain.training.timing import pace
from cotrain.types import Method

WORDNET = re.compile(r"n\d{8}")  # names of ImageNet's classes
PATIENCE = 0.6  # seconds of trial steps: on a busy machine a single step is a poor estimate


def heading(run: Run, experiment: Experiment) -> Iterator[str]:
    config, split, dataset = run.config, run.split, experiment.given
    device, ranks, baseline = experiment.device, experiment.ranks, has_baseline(config, split, dataset.kind)
    height, width, _ = dataset.shape
    if dataset.kind.table is not None:
        yield f"{dataset.name}: {dataset.layout}; {len(dataset.classes)} classes; {dataset.kind.kept}"
    if dataset.paths:
        size = f"{height}x{width}" if config.data.size else f"{height}x{width} (--size)"
        yield f"{dataset.name}: {dataset.layout}; {len(dataset.classes)} classes; images as {size}, {dataset.kind.kept}"
    yield from warnings_about(dataset, split, config)
    pretrained = is_pretrained(config.model.backbone)
    if config.wants_baseline and not pretrained and not baseline:
        yield f"no labelled-only baseline is trained, because there are no test {dataset.unit.many} to compare it on"
    counts = f"{len(split.labelled):,} labelled, {len(split.unlabelled):,} unlabelled and {len(split.test):,} test"
    yield f"{counts} {dataset.unit.many}; {network(config)}, on {device} -> {run.folder}"
    yield from why_network(config, dataset)
    if config.run.warm_start and baseline:
        yield f"{config.method.name} starts from the labelled-only baseline (run.warm_start=false: random weights)"
    if ranks.size > 1:
        scope = "across processes" if synchronised(config, device, ranks) else "within each process"
        yield (
            f"{ranks.size} processes, each with {config.optim.labelled // ranks.size} labelled and "
            f"{config.unlabelled // ranks.size} unlabelled {dataset.unit.many} per step; batch-norm {scope}"
        )


def why_network(config: Config, dataset: Dataset) -> Iterator[str]:
    """What a pretrained network is, and what it means for the images."""
    if not is_pretrained(config.model.backbone):
        return
    height, width, channels = dataset.shape
    kind = "colour images" if channels == 3 else "photographs"
    how = {"tuned": "its last stages learn too", "learned": "all of it learns"}.get(
        config.model.trunk, "it stays as it is, and the heads learn from its features"
    )
    yield (
        f"{config.model.backbone} is pretrained on ImageNet, the choice for {kind} of {height}x{width}; {how} "
        "(--model.backbone wrn-10-1 trains a small network from scratch)"
    )


def is_estimated(config: Config, dataset: Dataset) -> bool:
    """Whether the error without test images will be estimated by cross-validation."""
    frozen = has_frozen_trunk(config) or dataset.kind.on_features
    return frozen and config.run.baseline and config.run.repeats > 0


def has_frozen_trunk(config: Config) -> bool:
    return is_pretrained(config.model.backbone) and config.model.trunk != "learned"


def seen_before(config: Config, dataset: Dataset) -> str | None:
    """A warning if the pretrained network was trained on images like these, so that its error means nothing."""
    seen = is_pretrained(config.model.backbone) and all(WORDNET.fullmatch(name) for name in dataset.classes)
    if not seen:
        return None
    return (
        f"{config.model.backbone} was trained on ImageNet, and these classes are ImageNet's: the error on these images "
        "says nothing about other images"
    )


def warnings_about(dataset: Dataset, split: Split, config: Config) -> Iterator[str]:
    """What a user should know about the data before believing a result."""
    unit = dataset.unit
    yield from dataset.notes
    if (warning := seen_before(config, dataset)) is not None:
        yield warning
    if dataset.missing:
        yield f"left out {len(dataset.missing):,} rows whose files do not exist; the first is {dataset.missing[0]}"
    if dataset.unreadable:
        path, why = next(iter(dataset.unreadable.items()))
        more = f", and {len(dataset.unreadable) - 1:,} more" if len(dataset.unreadable) > 1 else ""
        yield f"left out as unreadable: {path} ({why}){more}"
    if not split.test:
        yield f"there are no test {unit.many}, provided or set aside" + (
            f": the error is estimated by cross-validation over the labelled {unit.many}"
            if is_estimated(config, dataset)
            else ", so the test error will be unknown"
        )
    elif not len(dataset.test):
        yield (
            f"no test {unit.many} were provided, so {len(split.test):,} labelled {unit.many} are set aside for "
            "testing (data.test_share=0 trains on all)"
        )
    if split.valid and not len(dataset.valid):
        yield (
            f"{len(split.valid):,} labelled {unit.many} are set aside for validation, to notice if the unlabelled "
            "ones do harm (data.valid_share=0 trains on all)"
        )
    if (config.robust.trust_labels < 1 or config.robust.class_shares == "estimate") and not has_frozen_trunk(config):
        yield "robust.trust_labels and class_shares=estimate need a frozen pretrained network; they have no effect here"
    if leaked := len(leaks(dataset, split)):
        yield (
            f"{leaked:,} of {len(split.test):,} test {unit.many} are also training {unit.many}, so the error "
            "is too optimistic"
        )


def estimate(run: Run, experiment: Experiment) -> str:
    """The total training time, estimated from a few trial steps."""
    methods = {run.config.method.name: experiment}
    if has_baseline(run.config, run.split, experiment.kind):
        methods = {"baseline": experiment.with_config(baseline_config(run.config)), **methods}
    seconds = {name: pace(one, PATIENCE).seconds(one.config, one.pool) for name, one in methods.items()}
    same = len(seconds) == 1 or run.config.baseline_steps == run.config.optim.steps
    steps = f"all {run.config.optim.steps:,} steps" if same else "training"
    if is_cross_validated(run.config, experiment.kind):
        folds = run.config.run.folds * run.config.run.repeats
        seconds[f"{folds} folds of cross-validation"] = folds * sum(seconds.values())
        steps = "training"
    parts = " and ".join(f"{clock(each)} for {name}" for name, each in seconds.items())
    return f"about {clock(sum(seconds.values()))} for {steps}: {parts}"


def title_of(method: Method) -> str:
    return f"{method.name}, {_parts(method)}" if method.heads > 1 else method.name


def network(config: Config) -> str:
    """The backbone and its heads, as text."""
    parts = f", {_parts(config.method)}" if config.method.heads > 1 else ""
    return f"{config.model.backbone}{parts}"


def _parts(method: Method) -> str:
    return f"{method.heads} {'models' if method.share == 'none' else 'heads'}"
