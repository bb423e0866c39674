"""What a finished run is worth: one look at its test images, and all that is said of them."""

from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np

from cotrain.calibrate import calibration, with_temperature
from cotrain.data import Dataset
from cotrain.data.dataset import evenly
from cotrain.evaluate import Outputs, read_outputs, score, temperatures, write_outputs
from cotrain.heads import heads_of, warnings_of
from cotrain.log import read_log
from cotrain.ops import all_agree
from cotrain.predict import load
from cotrain.run import Run
from cotrain.verdict import verdict

ENOUGH_FOR_AGREEMENT = 10_000


def evaluate(run: Run, dataset: Dataset, *, keep: bool = False) -> dict[str, Any]:
    """Errors and calibration of a run's model on its test images, and how often its heads agree on unlabelled ones.

    With `keep`, what it said of them is left in the run's folder.
    """
    run.check_data(dataset)
    model = load(run.folder, device=run.config.run.device)
    unlabelled = model.logits(dataset.images, evenly(np.asarray(run.split.unlabelled), ENOUGH_FOR_AGREEMENT))
    agreement = all_agree(unlabelled.argmax(dim=-1)).double().mean().item()
    parts = {
        part: Outputs(model.logits(dataset.images, np.asarray(rows)), dataset.labels[list(rows)], np.asarray(rows))
        for part, rows in (("test", run.split.test), ("valid", run.split.valid))
        if rows
    }
    if keep:
        write_outputs(run.scores_path, parts)
    test, rule = parts.get("test"), run.config.run.ensemble
    scores = score(test.logits, test.labels, rule) if test else None
    heads, log = test and heads_of(test.logits, test.labels), read_log(run.log_path)
    last_errors = [row["test_error"] for row in log if "test_error" in row]
    return {
        "test_error": scores and scores.error,
        "test_interval": scores and list(scores.interval),
        "median_test_error": median(last_errors) if last_errors else None,
        "ece": scores and scores.ece,
        "head_errors": scores and scores.head_errors,
        "calibration": test and calibrations(test, parts.get("valid"), rule),
        "heads": heads and asdict(heads),
        "warnings": list(warnings_of(heads, scores.error, log)) if heads and scores else [],
        "agreement": agreement,
        "test_images": len(run.split.test),
    }


def calibrations(test: Outputs, valid: Outputs | None, rule: str) -> dict[str, Any]:
    """Of the ensemble as it is, with the paper's temperature, and with one fitted on valid images; and of each head."""
    ensemble = {
        name: {
            "temperature": temperature,
            **asdict(calibration(with_temperature(test.logits, temperature, rule), test.labels)),
        }
        for name, temperature in temperatures(valid, rule).items()
    }
    heads = [asdict(calibration(head.double().softmax(dim=-1), test.labels)) for head in test.logits]
    return {"ensemble": ensemble, "heads": heads}


def verdict_of(run: Run) -> dict[str, Any] | None:
    """Against the labelled-only network, if there is one and there are test images."""
    alone = run.baseline_folder / run.scores_path.name
    ours, theirs = (read_outputs(path).get("test") if path.exists() else None for path in (run.scores_path, alone))
    return asdict(verdict(ours, theirs, run.config.run.ensemble)) if ours and theirs else None
