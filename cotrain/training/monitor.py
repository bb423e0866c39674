"""Evaluate the averaged network during training, on validation, unlabelled and test images."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from cotrain.data import BatchSource, Dataset
from cotrain.data.dataset import UNLABELLED
from cotrain.data.kinds import evenly
from cotrain.evaluation.head_stats import heads_of, mean_disagreement, vote_selected
from cotrain.evaluation.outputs import head_logits, score
from cotrain.runs.run import Run

WATCHED = 1000  # unlabelled images, at most


def evaluations(
    run: Run, dataset: Dataset, step: int, net: nn.Module, source: BatchSource
) -> Iterator[dict[str, float]]:
    """The measurements due after this step, if any.

    The quality of heads and votes is measured on unlabelled images if their labels are known to the evaluation, and on
    validation images otherwise. Unlabelled images without known labels show only how much the heads disagree.
    """
    parts = parts_to_evaluate(run, dataset, step)
    known = "unlabelled" in parts and is_known(dataset.labels[parts["unlabelled"]])
    for part, rows in parts.items():
        logits = head_logits(net, source.inputs, rows)
        score_heads = part == ("unlabelled" if known else "valid")
        yield measured(part, logits, dataset.labels[rows], run.config.run.ensemble, score_heads=score_heads)


def parts_to_evaluate(run: Run, dataset: Dataset, step: int) -> dict[str, NDArray[np.int64]]:
    """The parts to evaluate after this step. Errors on test and unlabelled images never influence training."""
    settings, steps = run.config.run, run.config.optim.steps
    parts: dict[str, tuple[int, ...]] = {}
    if step == steps or step % settings.evaluate_every == 0:
        parts["valid"] = run.split.valid
        parts["unlabelled"] = watched(run, dataset)
    interval = max(1, steps // 10 // max(1, settings.test_evaluations))
    if step in range(steps, 0, -interval)[: settings.test_evaluations]:
        parts["test"] = run.split.test
    return {part: np.asarray(rows) for part, rows in parts.items() if rows}


def watched(run: Run, dataset: Dataset) -> tuple[int, ...]:
    """Some of the unlabelled images whose labels are known, to the evaluation only.

    If there are none, some of all unlabelled images, provided there are several heads: without labels, one head leaves
    nothing to measure.
    """
    rows = np.setdiff1d(run.split.unlabelled, run.split.labelled)
    known = rows[dataset.labels.numpy()[rows] != UNLABELLED]
    several = run.config.method.heads > 1
    return tuple(evenly(rows if several and not len(known) else known, WATCHED).tolist())


def is_known(labels: Tensor) -> bool:
    return bool((labels != UNLABELLED).all())


def measured(part: str, logits: Tensor, labels: Tensor, rule: str, *, score_heads: bool) -> dict[str, float]:
    """In percent: the error, the disagreement of the heads on unlabelled images, and the errors of heads and votes."""
    values = {f"{part}_error": score(logits, labels, rule).error} if is_known(labels) else {}
    if len(logits) == 1:
        return values
    if part == "unlabelled":
        predicted = logits.argmax(dim=-1)
        selected = vote_selected(predicted, logits.shape[-1])
        values["heads_disagree"] = mean_disagreement(predicted)
        values |= {} if selected is None else {"vote_selected": selected}
    if score_heads:
        heads = heads_of(logits, labels)
        values |= {f"head_{number}_error": error for number, error in enumerate(heads.errors, start=1)}
        values |= {} if heads.vote_right is None else {"vote_right": heads.vote_right}
    return values
