"""The labelled-only baseline: the same network, trained without the unlabelled images."""

from typing import Any

import torch
from rich.console import Console

from cotrain.config import Config
from cotrain.data import Dataset
from cotrain.evaluation.evaluate import evaluate
from cotrain.methods.supervised import Supervised
from cotrain.runs.run import Run
from cotrain.training.distributed import Ranks
from cotrain.training.loop import train
from cotrain.training.state import State


def wants_baseline(config: Config) -> bool:
    """False for a method that uses no unlabelled images: it would be compared with itself."""
    return config.run.baseline and config.method.views.any_unlabelled


def has_baseline(run: Run) -> bool:
    """False without held-out labelled images, which the comparison needs."""
    return wants_baseline(run.config) and bool(run.split.test or run.split.valid)


def baseline_config(config: Config) -> Config:
    method = config.method
    model = config.model.model_copy(update={"share": method.share or config.model.share})
    return config.model_copy(update={"method": Supervised(heads=method.heads), "model": model})


def fit_baseline(
    run: Run, dataset: Dataset, device: torch.device, ranks: Ranks, console: Console
) -> dict[str, float | None]:
    """Train the same network for as many steps on the labelled images only. Returns its test error and seconds."""
    config, folder = baseline_config(run.config), run.baseline_folder

    def open_or_create() -> Run:
        started = (folder / "config.json").exists()
        baseline = Run.open(folder) if started else Run.create(folder, config, run.split, run.command)
        baseline.check_same(config, run.split)
        return baseline

    def finish(state: State) -> dict[str, Any]:
        seconds = round(state.seconds, 1)
        result = {**evaluate(baseline, dataset, keep=True), "steps": state.step, "seconds": seconds}
        baseline.finish(result)
        return result

    baseline = ranks.from_first(open_or_create).with_network(run.config.model.own)
    result = ranks.from_first(lambda: baseline.result)
    if result is None:
        state = train(baseline, dataset, device, console, "baseline", ranks)
        result = ranks.from_first(lambda: finish(state))
    return {"error": result["test_error"], "seconds": result.get("seconds")}
