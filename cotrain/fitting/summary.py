"""The result of a run whose training is finished: everything that is measured and recorded about it."""

import platform
from importlib.metadata import version

import numpy as np
import PIL
import torch

from cotrain.audit.duplicates import leaks
from cotrain.data import Dataset
from cotrain.device import pick_precision
from cotrain.fitting.baseline import Baselines
from cotrain.fitting.evaluate import evaluate, verdict_of
from cotrain.fitting.findings import findings
from cotrain.fitting.messages import seen_before
from cotrain.inference.model import METHOD, Model
from cotrain.runs.result import UNKNOWN, BaselineScores, CrossValidation, Result, TrainedOn, Training, Used, Verdict
from cotrain.runs.run import LABELLED_ONLY, LOGISTIC, Run
from cotrain.runs.scores import Outputs
from cotrain.training.experiment import Experiment
from cotrain.training.state import State


def result_of(
    run: Run,
    experiment: Experiment,
    state: State,
    model: Model,
    baselines: Baselines,
    checked: tuple[CrossValidation, Outputs] | None,
) -> Result:
    """Evaluate the finished model, and look at the data with it. `checked` is what cross-validation found, if any."""
    dataset, (cross_validation, held_out) = experiment.dataset, checked or (None, None)
    measured = evaluate(run, dataset, model=model, keep=True, held_out=held_out)
    validation = verdict_of(run, "valid") if baselines else None
    found = findings(run, experiment, model, held_out)
    seen = seen_before(run.config, dataset)
    return Result(
        test=measured.test,
        recalls=measured.recalls,
        temperature=measured.temperature,
        agreement=measured.agreement,
        baselines=scores_of(baselines),
        verdict=verdict_of(run) if baselines else None,
        validation=validation,
        cross_validation=cross_validation,
        used=better_model(cross_validation, validation, from_scratch=not experiment.kind.on_features),
        class_shares=found.class_shares,
        strangers=found.strangers,
        suspect_labels=found.suspect_labels,
        training=_training(run, experiment, state),
        data=_trained_on(run, dataset),
        warnings=[*measured.warnings, *found.warnings, *([seen] if seen is not None else [])],
        versions={**versions(), **{package["package"]: package["version"] for package in run.packages.values()}},
        command=run.command,
    )


def scores_of(baselines: Baselines) -> BaselineScores:
    known = {name: baseline.result for name, baseline in baselines.items()}
    labelled_only, logistic = (known.get(name, UNKNOWN) for name in (LABELLED_ONLY, LOGISTIC))
    return BaselineScores(
        labelled_only_error=labelled_only.test.error,
        labelled_only_seconds=labelled_only.training.seconds,
        logistic_regression_error=logistic.test.error,
        logistic_regression_seconds=logistic.training.seconds,
    )


def better_model(
    checked: CrossValidation | None, on_validation: Verdict | None = None, *, from_scratch: bool = False
) -> Used:
    """The model that `predict` uses: the method's, unless a baseline was better on held-out labels.

    These are the labels of cross-validation, or of the validation images. On pretrained features unlabelled images
    usually help, so a baseline must be clearly better. From scratch they often do harm, and fewer mistakes are enough.
    """
    if checked is None:
        if on_validation is None:
            return METHOD
        hurt = on_validation.word == "hurt" or (from_scratch and on_validation.difference > 0)
        return on_validation.against if hurt else METHOD
    against = checked.against
    if against is not None and against.word == "hurt" and against.baseline in (LABELLED_ONLY, LOGISTIC):
        return against.baseline
    return METHOD


def _training(run: Run, experiment: Experiment, state: State) -> Training:
    return Training(
        steps=state.step,
        seconds=round(state.seconds, 1),
        seed=run.config.run.seed,
        method=run.config.method.name,
        parameters=sum(parameter.numel() for parameter in state.net.parameters()),
        device=str(experiment.device),
        precision=str(pick_precision(run.config.run.precision, experiment.device)).removeprefix("torch."),
        ranks=experiment.ranks.size,
    )


def _trained_on(run: Run, dataset: Dataset) -> TrainedOn:
    labelled = dataset.labels[list(run.split.labelled)]
    return TrainedOn(
        source=dataset.source or dataset.name,
        split=run.split.hash,
        split_name=run.split.name,
        classes=len(dataset.classes),
        labels=len(run.split.labelled),
        labels_by_class=labelled.bincount(minlength=len(dataset.classes)).tolist(),
        unlabelled=len(run.split.unlabelled),
        leaks=len(leaks(dataset, run.split)),
    )


def versions() -> dict[str, str]:
    return {
        "cotrain": version("cotrain"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "numba": version("numba"),
    }
