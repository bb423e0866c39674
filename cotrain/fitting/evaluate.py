"""The final evaluation of a finished run, on its test images."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np
from torch import Tensor

from cotrain.data import Dataset
from cotrain.data.kinds import evenly
from cotrain.evaluation.calibration import fitted_on
from cotrain.evaluation.head_stats import warnings_of_heads, warnings_of_log
from cotrain.evaluation.results import Results
from cotrain.evaluation.verdict import verdict
from cotrain.inference.model import Model, model_of
from cotrain.ops import all_agree
from cotrain.runs.log import read_log
from cotrain.runs.result import (
    BaselineName,
    FittedOn,
    HeadDifferences,
    OnTest,
    Recall,
    Recalls,
    Result,
    Temperature,
    Verdict,
)
from cotrain.runs.run import LABELLED_ONLY, LOGISTIC, SCORES, Run
from cotrain.runs.scores import HELD_OUT, Outputs, read_outputs, write_outputs
from cotrain.types import Unit

AGREEMENT_IMAGES = 10_000  # unlabelled images, at most


def evaluate(
    run: Run, dataset: Dataset, *, model: Model | None = None, keep: bool = False, held_out: Outputs | None = None
) -> Result:
    """Errors and calibration on the test images, and how often the heads agree on unlabelled images.

    A temperature is fitted on the validation images, or on `held_out` labelled images from cross-validation. `keep`
    stores the outputs for all of them in the run's folder. `model` is the run's own, if it is known already.
    """
    run.check_data(dataset)
    model = model or model_of(run)
    unlabelled = model.logits_of(dataset, evenly(np.asarray(run.split.unlabelled), AGREEMENT_IMAGES))
    predicted = unlabelled.argmax(dim=-1)
    parts = {
        part: Outputs(model.logits_of(dataset, np.asarray(rows)), dataset.labels[list(rows)], np.asarray(rows))
        for part, rows in (("test", run.split.test), ("valid", run.split.valid))
        if rows
    }
    if keep:
        write_outputs(run.scores_path, parts | ({HELD_OUT: held_out} if held_out else {}))
    test, valid, rule = parts.get("test"), parts.get("valid", held_out), run.config.run.ensemble
    temperature, log = fitted_on(valid, rule), read_log(run.log_path)
    results = Results(test, rule, temperature) if test else None
    last_errors = [row["test_error"] for row in log if "test_error" in row]
    return Result(
        test=tested(results, median(last_errors) if last_errors else None),
        recalls=recalls(results or (Results(held_out, rule) if held_out else None), dataset.classes),
        temperature=Temperature(value=temperature, fitted_on=_counted(valid, rule, valid is held_out)),
        warnings=[*collapse(parts, predicted, rule, dataset.unit), *warnings_of_log(log, dataset.unit)],
        agreement=all_agree(predicted).double().mean().item(),
    )


def tested(results: Results | None, median_error: float | None) -> OnTest:
    if results is None:
        return OnTest(
            error=None,
            interval=None,
            median_error=None,
            images=0,
            ece=None,
            aurc=None,
            head_errors=None,
            calibration=None,
            heads=None,
        )
    return OnTest(
        error=results.error,
        interval=results.interval,
        median_error=median_error,
        images=results.images,
        ece=results.ece,
        aurc=results.aurc,
        head_errors=results.heads.errors,
        calibration=results.calibration,
        heads=HeadDifferences(**asdict(results.heads)),
    )


def _counted(outputs: Outputs | None, rule: str, held_out: bool) -> FittedOn | None:
    if outputs is None:
        return None
    images, wrong = len(outputs.rows), Results(outputs, rule).wrong
    return FittedOn(held_out_images=images, wrong=wrong) if held_out else FittedOn(valid_images=images, wrong=wrong)


def recalls(results: Results | None, classes: Sequence[str]) -> Recalls:
    """The balanced error, and the recall of each class that has images, in percent with a 95 % confidence interval."""
    if results is None:
        return Recalls(balanced_error=None, by_class=None)
    found = results.by_class
    rows = zip(
        classes, found.images.tolist(), found.recall.tolist(), found.low.tolist(), found.high.tolist(), strict=True
    )
    by_class = [
        Recall(name=name, images=images, recall=recall, low=low, high=high)
        for name, images, recall, low, high in rows
        if images
    ]
    return Recalls(balanced_error=found.balanced_error, by_class=by_class)


def collapse(parts: Mapping[str, Outputs], unlabelled: Tensor, rule: str, unit: Unit) -> Iterator[str]:
    """Warn if the heads have become too similar, judged on test images, or on validation images if there are none."""
    for part, outputs in [*parts.items()][:1]:
        error = Results(outputs, rule).error
        yield from warnings_of_heads(outputs.logits.argmax(dim=-1), unlabelled, error, part, unit)


def verdict_of(run: Run, part: str = "test") -> Verdict | None:
    """The comparison with the better baseline, if there is one and there are such images."""
    ours, rule = _outputs(run.folder, part), run.config.run.ensemble
    if ours is None:
        return None
    names: tuple[BaselineName, ...] = (LABELLED_ONLY, LOGISTIC)
    found = {name: _outputs(run.baselines[name], part) for name in names if name in run.baselines}
    verdicts = [verdict(ours, each, rule, name) for name, each in found.items() if each is not None]
    return min(verdicts, key=lambda one: one.labelled_only, default=None)


def _outputs(folder: Path, part: str) -> Outputs | None:
    path = folder / SCORES
    return read_outputs(path).get(part) if path.exists() else None
