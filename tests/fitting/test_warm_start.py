"""A network from scratch that starts from the weights of the labelled-only baseline."""

import shutil
import statistics
from pathlib import Path

import pytest
import torch

import cotrain
from cotrain import Dataset
from cotrain.fitting.messages import heading
from cotrain.runs.run import Run
from cotrain.training.experiment import Experiment

ONE_STEP = {
    "optim.steps": 1,
    "optim.labelled": 8,
    "optim.unlabelled": 16,
    "optim.lr": 0.05,
    "optim.ema": 0.0,
    "run.report": False,
    "run.baseline_factor": 50,
    "run.warm_start": True,
}


def fitted(data: Dataset, out: Path, **changes: object) -> Run:
    cotrain.fit(data, out=out, config=cotrain.recipe_named("digits"), settings=ONE_STEP | changes)
    return Run.open(out)


def distance(run: Run) -> float:
    """The mean distance of the method's kernels to the baseline's, relative to their size."""
    ours, baseline = (each.read_model()[0] for each in (run, Run.open(run.baseline_folder)))
    kernels = {name: tensor for name, tensor in baseline.items() if tensor.dim() == 4}
    return statistics.mean(float((ours[name] - kernel).norm() / kernel.norm()) for name, kernel in kernels.items())


@pytest.mark.parametrize("method", ["mhct", "comatch"])  # the second has more outputs than the baseline
def test_one_step_from_the_baseline_is_close_to_it(toy: Dataset, tmp_path: Path, method: str) -> None:
    near, far = (
        distance(fitted(toy, tmp_path / str(warm), **{"method": method, "run.warm_start": warm}))
        for warm in (True, False)
    )
    assert near < far / 2


def test_a_baseline_is_trained_for_it_even_without_held_out_images(toy: Dataset, tmp_path: Path) -> None:
    data = cotrain.from_arrays(toy.images[toy.train].numpy(), toy.labels[toy.train].numpy())
    run = fitted(data, tmp_path / "run", **{"data.test_share": 0.0})
    assert not run.split.test and run.baseline_folder.exists()


def test_it_is_said_and_without_a_baseline_the_weights_are_random(toy: Dataset, tmp_path: Path) -> None:
    runs = [fitted(toy, tmp_path / str(baseline), **{"run.baseline": baseline}) for baseline in (True, False)]
    experiments = [Experiment(run.config, toy, run.split, torch.device("cpu")) for run in runs]
    said, also_said = (" ".join(heading(*each)) for each in zip(runs, experiments, strict=True))
    line = "mhct starts from the labelled-only baseline"
    assert line in said and line not in also_said
    assert not runs[1].baseline_folder.exists()


def test_a_resumed_run_has_the_same_bits(toy: Dataset, tmp_path: Path) -> None:
    run = fitted(toy, tmp_path / "run")
    whole = run.model_path.read_bytes()
    for path in (run.folder / "result.json", run.model_path):
        path.unlink()
    shutil.rmtree(run.folder / "checkpoint")  # as if it had been stopped after the baseline
    cotrain.fit(toy, out=run.folder, resume=True)
    assert run.model_path.read_bytes() == whole
