"""What the averaged network is like while it trains: a look at valid, unlabelled and test images now and then."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from cotrain.data import Dataset, Source
from cotrain.data.dataset import UNLABELLED, evenly
from cotrain.evaluation.head_stats import heads_of, mean_disagreement, vote_selected
from cotrain.evaluation.outputs import head_logits, score
from cotrain.runs.run import Run

ENOUGH_TO_WATCH = 1000


def looks(run: Run, dataset: Dataset, step: int, net: nn.Module, source: Source) -> Iterator[dict[str, float]]:
    """What is seen after this step, if it is one to look after.

    Unlabelled images whose labels the evaluation knows say how good heads and votes are. Where there are none, valid
    images do, and the others only say how much the heads differ.
    """
    parts = looked_at(run, dataset, step)
    known = "unlabelled" in parts and is_known(dataset.labels[parts["unlabelled"]])
    for part, rows in parts.items():
        logits = head_logits(net, source.images, rows, source.mean, source.std)
        judges = part == ("unlabelled" if known else "valid")
        yield said_of(part, logits, dataset.labels[rows], run.config.run.ensemble, judges=judges)


def looked_at(run: Run, dataset: Dataset, step: int) -> dict[str, NDArray[np.int64]]:
    """The parts to evaluate after this step. Nothing is chosen by the errors on test and unlabelled images."""
    settings, steps = run.config.run, run.config.optim.steps
    parts: dict[str, tuple[int, ...]] = {}
    if step == steps or step % settings.evaluate_every == 0:
        parts["valid"] = run.split.valid
        parts["unlabelled"] = watched(run, dataset)
    apart = max(1, steps // 10 // max(1, settings.test_evaluations))
    if step in range(steps, 0, -apart)[: settings.test_evaluations]:
        parts["test"] = run.split.test
    return {part: np.asarray(rows) for part, rows in parts.items() if rows}


def watched(run: Run, dataset: Dataset) -> tuple[int, ...]:
    """Some unlabelled images: of those whose labels are known to the evaluation, and to nobody else, if there are any.

    Otherwise of all, if there are several heads: one alone says nothing about images without labels.
    """
    rows = np.setdiff1d(run.split.unlabelled, run.split.labelled)
    known = rows[dataset.labels.numpy()[rows] != UNLABELLED]
    several = run.config.method.heads > 1
    return tuple(evenly(rows if several and not len(known) else known, ENOUGH_TO_WATCH).tolist())


def is_known(labels: Tensor) -> bool:
    return bool((labels != UNLABELLED).all())


def said_of(part: str, logits: Tensor, labels: Tensor, rule: str, *, judges: bool) -> dict[str, float]:
    """In percent: the error, how the heads differ on unlabelled images, and how good they are if these images judge."""
    said = {f"{part}_error": score(logits, labels, rule).error} if is_known(labels) else {}
    if len(logits) == 1:
        return said
    if part == "unlabelled":
        predicted = logits.argmax(dim=-1)
        selected = vote_selected(predicted, logits.shape[-1])
        said["heads_disagree"] = mean_disagreement(predicted)
        said |= {} if selected is None else {"vote_selected": selected}
    if judges:
        heads = heads_of(logits, labels)
        said |= {f"head_{number}_error": error for number, error in enumerate(heads.errors, start=1)}
        said |= {} if heads.vote_right is None else {"vote_right": heads.vote_right}
    return said
