"""What a user would do without unlabelled images, to compare with: the same network on the labelled images only, and,
on the features of a frozen trunk, logistic regression."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from cotrain.config import Config
from cotrain.data import Dataset, Split
from cotrain.fitting.evaluate import evaluate
from cotrain.methods.supervised import Supervised
from cotrain.model import MultiHead
from cotrain.model.pretrained import Standardise
from cotrain.networks import build_network
from cotrain.runs.run import LABELLED_ONLY, LOGISTIC, Run
from cotrain.training.distributed import Ranks
from cotrain.training.logistic import fit_logistic
from cotrain.training.loop import train
from cotrain.training.state import inputs_of, measure_features, write_model

Baselines = dict[str, dict[str, float | None]]  # name -> test error and seconds


def has_baseline(run: Run, dataset: Dataset) -> bool:
    """False if nothing needs it: no comparison on held-out labelled images, and no warm start.

    On features it is cheap and always there.
    """
    held_out = bool(run.split.test or run.split.valid)
    return run.config.wants_baseline and (held_out or dataset.has_features or run.config.run.warm_start)


def baseline_config(config: Config) -> Config:
    method = config.method
    model = config.model.model_copy(update={"share": method.share or config.model.share})
    optim = config.optim.model_copy(update={"steps": config.baseline_steps})
    return config.model_copy(update={"method": Supervised(heads=method.heads), "model": model, "optim": optim})


def logistic_config(config: Config) -> Config:
    model = config.model.model_copy(update={"hidden": None, "dropout": 0.0})
    return config.model_copy(update={"method": Supervised(heads=1), "model": model})


def uses_logistic(config: Config, dataset: Dataset) -> bool:
    """Only the rows of a table and the pooled features of a frozen trunk are vectors."""
    vectors = dataset.features is not None or (dataset.bank is not None and dataset.bank.shape[1:] == (1, 1))
    return config.wants_baseline and vectors


def logistic_net(config: Config, dataset: Dataset, split: Split) -> MultiHead:
    """Logistic regression as a network with one linear head."""
    chosen, inputs = logistic_config(config), inputs_of(config, dataset, split)
    net = build_network(chosen, len(dataset.classes), dataset.shape[-1]).eval().requires_grad_(False)
    measure_features(net, inputs, np.asarray(split.unlabelled), torch.device("cpu"))
    (scale,) = (module for module in net.modules() if isinstance(module, Standardise))
    rows = np.asarray(split.labelled)
    features = scale(inputs.plain(rows, torch.device("cpu")).flatten(1)).numpy()
    fit_logistic(net, features, dataset.labels[rows].numpy(), config.run.seed)
    return net


def fit_baselines(run: Run, dataset: Dataset, device: torch.device, ranks: Ranks, console: Console) -> Baselines:
    """Train the baselines in folders of their own inside the run. Returns their test errors and seconds."""

    def labelled_only(baseline: Run) -> float:
        return train(baseline, dataset, device, console, "baseline", ranks).seconds

    def logistic(baseline: Run) -> float:
        def fit() -> float:
            began = time.monotonic()
            net = logistic_net(run.config, dataset, run.split)
            write_model(net, baseline, dataset, inputs_of(run.config, dataset, run.split))
            return time.monotonic() - began

        return ranks.from_first(fit)

    found = {LABELLED_ONLY: _fitted(run, LABELLED_ONLY, baseline_config(run.config), labelled_only, dataset, ranks)}
    if uses_logistic(run.config, dataset):
        found[LOGISTIC] = _fitted(run, LOGISTIC, logistic_config(run.config), logistic, dataset, ranks)
    return found


def _fitted(
    run: Run, name: str, config: Config, fit: Callable[[Run], float], dataset: Dataset, ranks: Ranks
) -> dict[str, float | None]:
    folder = run.folder / name

    def finish(baseline: Run, seconds: float) -> dict[str, Any]:
        result = {**evaluate(baseline, dataset, keep=True), "steps": config.optim.steps, "seconds": round(seconds, 1)}
        baseline.finish(result)
        return result

    baseline = ranks.from_first(lambda: _opened(folder, config, run)).with_network_of(run.config)
    result = ranks.from_first(lambda: baseline.result)
    if result is None:
        seconds = fit(baseline)
        result = ranks.from_first(lambda: finish(baseline, seconds))
    return {"error": result["test_error"], "seconds": result.get("seconds")}


def _opened(folder: Path, config: Config, run: Run) -> Run:
    started = (folder / "config.json").exists()
    baseline = Run.open(folder) if started else Run.create(folder, config, run.split, run.command)
    return baseline.resumed(config, run.split)
