"""What a user would do without unlabelled images, to compare with: the same network on the labelled images only, and,
on the features of a frozen trunk, logistic regression."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from cotrain.config import TABLE_BACKBONE, Config, ModelSettings
from cotrain.data import Split
from cotrain.data.kinds import Kind
from cotrain.fitting.evaluate import evaluate
from cotrain.inference.model import model_trained
from cotrain.methods.supervised import Supervised
from cotrain.model import MultiHead
from cotrain.model.pretrained import Standardise
from cotrain.model.trust import is_import_path
from cotrain.networks import build_network
from cotrain.runs.result import BaselineName, Result, Training
from cotrain.runs.run import LABELLED_ONLY, LOGISTIC, Run
from cotrain.training.experiment import Experiment
from cotrain.training.logistic import fit_logistic
from cotrain.training.loop import train
from cotrain.training.state import measure_features, write_model

Baselines = dict[BaselineName, "Baseline"]


def has_baseline(config: Config, split: Split, kind: Kind) -> bool:
    """False if nothing needs it: no comparison on held-out labelled images, and no warm start.

    On features it is cheap and always there.
    """
    held_out = bool(split.test or split.valid)
    return config.wants_baseline and (held_out or kind.on_features or config.run.warm_start)


def baseline_config(config: Config) -> Config:
    method = config.method
    model = config.model.model_copy(update={"share": method.share or config.model.share})
    optim = config.optim.model_copy(update={"steps": config.baseline_steps})
    return config.model_copy(update={"method": Supervised(heads=method.heads), "model": model, "optim": optim})


def logistic_config(config: Config) -> Config:
    """One linear head of cotrain's; of a network of the user's own, only tables get here."""
    model, linear = config.model, {"hidden": None, "dropout": 0.0}
    if is_import_path(model.backbone):
        model = ModelSettings(backbone=TABLE_BACKBONE)
    return config.model_copy(update={"method": Supervised(heads=1), "model": model.model_copy(update=linear)})


def uses_logistic(experiment: Experiment) -> bool:
    """Only the rows of a table and the pooled features of a frozen trunk are vectors.

    The features of the user's own trunk go to the heads that come with it.
    """
    config, kind = experiment.config, experiment.kind
    heads_are_ours = kind.table is not None or not is_import_path(config.model.backbone)
    return config.wants_baseline and kind.are_vectors and heads_are_ours


def logistic_net(experiment: Experiment) -> MultiHead:
    """Logistic regression as a network with one linear head."""
    dataset, split, inputs = experiment.dataset, experiment.split, experiment.inputs
    chosen = logistic_config(experiment.config)
    net = build_network(chosen, len(dataset.classes), dataset.shape[-1]).eval().requires_grad_(False)
    measure_features(net, inputs, np.asarray(split.unlabelled), torch.device("cpu"))
    (scale,) = (module for module in net.modules() if isinstance(module, Standardise))
    rows = np.asarray(split.labelled)
    features = scale(inputs.plain(rows, torch.device("cpu")).flatten(1)).numpy()
    fit_logistic(net, features, dataset.labels[rows].numpy(), chosen.run.seed)
    return net


@dataclass(frozen=True)
class Baseline:
    """A finished baseline. One that an earlier process trained has no network here."""

    run: Run
    result: Result
    net: MultiHead | None

    @property
    def weights(self) -> Mapping[str, Tensor]:
        if self.net is None:
            return self.run.read_model()[0]
        return {name: tensor.cpu() for name, tensor in self.net.state_dict().items()}


def fit_baselines(run: Run, experiment: Experiment, console: Console) -> Baselines:
    """Train the baselines in folders of their own inside the run."""

    def labelled_only(baseline: Run) -> tuple[MultiHead | None, float]:
        state = train(baseline, experiment.with_config(baseline.config), console, "baseline")
        return state.average.net, state.seconds

    def logistic(baseline: Run) -> tuple[MultiHead | None, float]:
        nets: list[MultiHead] = []

        def fit() -> float:
            began = time.monotonic()
            nets.append(logistic_net(experiment))
            write_model(nets[0], baseline, experiment.given, experiment.inputs)
            return time.monotonic() - began

        seconds = experiment.ranks.from_first(fit)
        return (nets[0] if nets else None), seconds

    found: Baselines = {}
    found[LABELLED_ONLY] = _fitted(run, LABELLED_ONLY, baseline_config(run.config), labelled_only, experiment)
    if uses_logistic(experiment):
        found[LOGISTIC] = _fitted(run, LOGISTIC, logistic_config(run.config), logistic, experiment)
    return found


def _fitted(
    run: Run,
    name: BaselineName,
    config: Config,
    fit: Callable[[Run], tuple[MultiHead | None, float]],
    experiment: Experiment,
) -> Baseline:
    ranks, folder = experiment.ranks, run.folder / name

    def finish(baseline: Run, net: MultiHead | None, seconds: float) -> Result:
        assert net is not None  # this is the first rank
        model = model_trained(net, baseline.config, experiment.dataset, experiment.inputs, experiment.trunk)
        training = Training(steps=config.optim.steps, seconds=round(seconds, 1))
        found = evaluate(baseline, experiment.dataset, model=model, keep=True)
        result = found.model_copy(update={"training": training})
        baseline.finish(result)
        return result

    baseline = ranks.from_first(lambda: _opened(folder, config, run)).with_network_of(run.config)
    result, net = ranks.from_first(lambda: baseline.result), None
    if result is None:
        net, seconds = fit(baseline)
        result = ranks.from_first(lambda: finish(baseline, net, seconds))
    return Baseline(baseline, result, net)


def _opened(folder: Path, config: Config, run: Run) -> Run:
    started = (folder / "config.json").exists()
    baseline = Run.open(folder) if started else Run.create(folder, config, run.split, run.command)
    return baseline.resumed(config, run.split)
