"""The same network trained with the labelled images alone, which a run is measured by."""

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


def wants_yardstick(config: Config) -> bool:
    """A method that uses no unlabelled images would be compared with itself."""
    return config.run.baseline and config.method.views.any_unlabelled


def has_yardstick(run: Run) -> bool:
    """Only labelled images that are not trained on could tell how long it is."""
    return wants_yardstick(run.config) and bool(run.split.test or run.split.valid)


def yardstick_config(config: Config) -> Config:
    method = config.method
    model = config.model.model_copy(update={"share": method.share or config.model.share})
    return config.model_copy(update={"method": Supervised(heads=method.heads), "model": model})


def labelled_only(
    run: Run, dataset: Dataset, device: torch.device, ranks: Ranks, console: Console
) -> dict[str, float | None]:
    """Error and seconds of the same network and steps with the labelled images alone."""
    config, folder = yardstick_config(run.config), run.baseline_folder

    def taken_up() -> Run:
        begun = (folder / "config.json").exists()
        yardstick = Run.open(folder) if begun else Run.create(folder, config, run.split, run.command)
        yardstick.check_same(config, run.split)
        return yardstick

    def judge(state: State) -> dict[str, Any]:
        seconds = round(state.seconds, 1)
        result = {**evaluate(yardstick, dataset, keep=True), "steps": state.step, "seconds": seconds}
        yardstick.finish(result)
        return result

    yardstick = ranks.from_first(taken_up).with_network(run.config.model.own)
    result = ranks.from_first(lambda: yardstick.result)
    if result is None:
        state = train(yardstick, dataset, device, console, "labelled only", ranks)
        result = ranks.from_first(lambda: judge(state))
    return {"error": result["test_error"], "seconds": result.get("seconds")}
