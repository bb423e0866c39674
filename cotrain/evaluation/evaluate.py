"""What a finished run is worth: one look at its test images, and all that is said of them."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np
from torch import Tensor

from cotrain.data import Dataset
from cotrain.data.dataset import evenly
from cotrain.evaluation.calibration import calibrated, confidence_and_right, count_wrong, fitted_on, temperatures
from cotrain.evaluation.head_stats import heads_of, warnings_of_heads, warnings_of_log
from cotrain.evaluation.outputs import score
from cotrain.evaluation.predict import load
from cotrain.evaluation.selective import risk_coverage
from cotrain.evaluation.verdict import verdict
from cotrain.ops import all_agree, ensemble_probabilities
from cotrain.runs.log import read_log
from cotrain.runs.run import Run
from cotrain.runs.scores import Outputs, read_outputs, write_outputs

ENOUGH_FOR_AGREEMENT = 10_000


def evaluate(run: Run, dataset: Dataset, *, keep: bool = False) -> dict[str, Any]:
    """Errors and calibration of a run's model on its test images, and how often its heads agree on unlabelled ones.

    A temperature is fitted where there are valid images, with test images or without. With `keep`, what the model said
    of both is left in the run's folder.
    """
    run.check_data(dataset)
    model = load(run.folder, device=run.config.run.device, model=run.config.model.own)
    unlabelled = model.logits(dataset.images, evenly(np.asarray(run.split.unlabelled), ENOUGH_FOR_AGREEMENT))
    predicted = unlabelled.argmax(dim=-1)
    parts = {
        part: Outputs(model.logits(dataset.images, np.asarray(rows)), dataset.labels[list(rows)], np.asarray(rows))
        for part, rows in (("test", run.split.test), ("valid", run.split.valid))
        if rows
    }
    if keep:
        write_outputs(run.scores_path, parts)
    test, valid, rule = parts.get("test"), parts.get("valid"), run.config.run.ensemble
    scores = score(test.logits, test.labels, rule) if test else None
    temperature, log = fitted_on(valid, rule), read_log(run.log_path)
    last_errors = [row["test_error"] for row in log if "test_error" in row]
    return {
        "test_error": scores and scores.error,
        "test_interval": scores and list(scores.interval),
        "median_test_error": median(last_errors) if last_errors else None,
        "ece": scores and scores.ece,
        "aurc": test and area_under_risk(test, rule),
        "head_errors": scores and scores.head_errors,
        "temperature": temperature,
        "temperature_fitted_on": valid and {"valid_images": len(valid.rows), "wrong": wrong_of(valid, rule)},
        "calibration": test and calibrations(test, temperatures(temperature), rule),
        "heads": test and asdict(heads_of(test.logits, test.labels)),
        "warnings": [*collapse(parts, predicted, rule), *warnings_of_log(log)],
        "agreement": all_agree(predicted).double().mean().item(),
        "test_images": len(run.split.test),
    }


def wrong_of(outputs: Outputs, rule: str) -> int:
    return count_wrong(outputs.logits, outputs.labels, rule)


def area_under_risk(test: Outputs, rule: str) -> float:
    """AURC of the ensemble as it is, in percent."""
    probabilities = ensemble_probabilities(test.logits, rule)
    return 100 * risk_coverage(*confidence_and_right(probabilities, test.labels)).area


def collapse(parts: Mapping[str, Outputs], unlabelled: Tensor, rule: str) -> Iterator[str]:
    """Whether the heads have become alike, as test images tell, or valid ones where there are none."""
    for part, judged in [*parts.items()][:1]:
        error = 100 * wrong_of(judged, rule) / len(judged.rows)
        yield from warnings_of_heads(judged.logits.argmax(dim=-1), unlabelled, error, part)


def calibrations(test: Outputs, used: Mapping[str, float], rule: str) -> dict[str, Any]:
    """Of the ensemble and of each head, by the kinds of the temperatures that their logits are divided by."""

    def with_each(outputs: Outputs) -> dict[str, dict[str, float]]:
        return {
            one.kind: {"temperature": one.temperature, **asdict(one.numbers)} for one in calibrated(outputs, rule, used)
        }

    return {"ensemble": with_each(test), "heads": [with_each(head) for head in test.of_each_head]}


def verdict_of(run: Run) -> dict[str, Any] | None:
    """Against the labelled-only network, if there is one and there are test images."""
    paths = (run.scores_path, run.baseline_folder / run.scores_path.name)
    ours, theirs = (read_outputs(path).get("test") if path.exists() else None for path in paths)
    return asdict(verdict(ours, theirs, run.config.run.ensemble)) if ours and theirs else None
