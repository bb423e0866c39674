"""What the averaged network is like while it trains: a look at valid, unlabelled and test images now and then."""

import numpy as np
from numpy.typing import NDArray
from torch import nn

from cotrain.data import Dataset, Source, Split
from cotrain.data.dataset import UNLABELLED, evenly
from cotrain.evaluate import head_logits, score
from cotrain.heads import heads_of
from cotrain.run import Run

ENOUGH_TO_WATCH = 1000


def looked_at(run: Run, dataset: Dataset, step: int) -> dict[str, NDArray[np.int64]]:
    """The parts to evaluate after this step. Nothing is chosen by the errors on test and unlabelled images."""
    settings, steps = run.config.run, run.config.optim.steps
    parts: dict[str, tuple[int, ...]] = {}
    if step == steps or step % settings.evaluate_every == 0:
        parts["valid"] = run.split.valid
        parts["unlabelled"] = watched(run.split, dataset)
    apart = max(1, steps // 10 // max(1, settings.test_evaluations))
    if step in range(steps, 0, -apart)[: settings.test_evaluations]:
        parts["test"] = run.split.test
    return {part: np.asarray(rows) for part, rows in parts.items() if rows}


def watched(split: Split, dataset: Dataset) -> tuple[int, ...]:
    """Some unlabelled images whose labels are known to the evaluation, and to nobody else."""
    rows = np.setdiff1d(split.unlabelled, split.labelled)
    known = rows[dataset.labels.numpy()[rows] != UNLABELLED]
    return tuple(evenly(known, ENOUGH_TO_WATCH).tolist())


def said_of(
    part: str, rows: NDArray[np.int64], net: nn.Module, source: Source, run: Run, dataset: Dataset
) -> dict[str, float]:
    """Errors of the averaged network; on unlabelled images also how its heads differ, and how good their votes are."""
    logits, labels = head_logits(net, source.images, rows, source.mean, source.std), dataset.labels[rows]
    said = {f"{part}_error": score(logits, labels, run.config.run.ensemble).error}
    if part == "unlabelled" and len(logits) > 1:
        heads = heads_of(logits, labels)
        said |= {"heads_disagree": heads.mean_disagreement, "vote_selected": heads.vote_selected}
        said |= {} if heads.vote_right is None else {"vote_right": heads.vote_right}
    return said
