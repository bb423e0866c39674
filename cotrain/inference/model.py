"""Predict the classes of new images with a trained model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.audit.outliers import Belonging, read_belonging, smallest_rate
from cotrain.config import Config
from cotrain.data import Dataset, Images
from cotrain.data.columns import coded
from cotrain.data.feature_table import Column, Features
from cotrain.data.inputs import BankInputs, FeatureInputs, ImageInputs, Inputs, Remembering, images_at_once
from cotrain.data.workers import Workers, worker_count
from cotrain.device import pick_device
from cotrain.evaluation.calibration import ENOUGH_WRONG, predicted_and_confidence, with_temperature
from cotrain.evaluation.outputs import head_logits
from cotrain.evaluation.selective import Threshold, images_needed, threshold_for
from cotrain.inference.prediction_table import Row, rows_of
from cotrain.inference.streaming import check_channels, files_at_once, predict_in_batches
from cotrain.model import MultiHead
from cotrain.model.build import load_weights
from cotrain.model.own import own_network
from cotrain.networks import build_network, build_trunk
from cotrain.ops import ensemble_probabilities
from cotrain.runs.result import UNKNOWN, Temperature
from cotrain.runs.run import Run
from cotrain.runs.scores import HELD_OUT
from cotrain.trunk.on_demand import IMAGES_AT_ONCE, TrunkInputs, on_all_cores
from cotrain.trunk.runtime import Compute, compiled
from cotrain.trunk.trunk import Trunk
from cotrain.types import Unit, UserError

NO_FEATURES = np.empty((0, 0), np.float32)
BETTER: Final = "better"  # which model of a run: the better one by cross-validation, or the method's
METHOD: Final = "method"


@dataclass(frozen=True)
class Predictions:
    """One row per image."""

    labels: NDArray[np.int64]  # (n,) the ensemble's class
    classes: tuple[str, ...]  # class names, indexed by label
    probabilities: NDArray[np.float64]  # (n, C) the ensemble's, calibrated if the run had validation images
    heads_agree: NDArray[np.int64]  # (n,) number of heads that predict this class
    belongs: NDArray[np.float64] | None = None  # (n,) p-value that it belongs to any class, if the run knows

    @cached_property
    def names(self) -> list[str]:
        return [self.classes[label] for label in self.labels]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Model:
    """The averaged network of a run, with the image format and normalisation that it expects."""

    net: MultiHead
    config: Config
    classes: tuple[str, ...]
    size: tuple[int, int]  # height, width
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    temperature: float = 1.0  # fitted on validation images, if the run had any
    trunk: Trunk | None = None  # frozen: from images to the features that `net` takes
    columns: tuple[Column, ...] = ()  # of the tables that the model takes; empty: it takes images
    belonging: Belonging | None = None  # whether an image belongs to any class; older runs do not know

    def logits_of(self, dataset: Dataset, rows: NDArray[np.int64]) -> Tensor:
        """(H, n, C) logits for these rows of a dataset, from its bank of features if it has one."""
        kind = dataset.kind
        if self.trunk is not None and kind.bank is not None:
            return head_logits(self.net, BankInputs(kind.bank), rows)
        if kind.table is not None:
            return self.logits_of_features(kind.table, rows)
        return self.logits(kind.pixels, rows)

    def logits_of_features(self, features: Features, rows: NDArray[np.int64]) -> Tensor:
        """(H, n, C) logits for these rows of a table with the columns that the model was trained on."""
        if features.columns != self.columns:
            raise UserError(f"the model takes {_named(self.columns)}, not {_named(features.columns)}")
        return head_logits(self.net, FeatureInputs(features, self.mean, self.std), rows)

    def logits(self, images: Images, rows: NDArray[np.int64]) -> Tensor:
        """(H, n, C) logits for these rows of uint8 images (N, h, w, c)."""
        return self._outputs(images, rows)[0]

    def _outputs(self, images: Images, rows: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.float32]]:
        """The logits, and the (n, D) features that the trunk computed on the way; without one, there are none."""
        wanted = (*self.size, self.channels)
        if tuple(images.shape[1:]) != wanted:
            raise UserError(
                f"the model takes uint8 images of shape (n, {', '.join(map(str, wanted))}), not {tuple(images.shape)}"
            )
        if len(rows) == 0:
            raise UserError("there are no images to predict")
        inputs = Remembering(self._inputs(images), keep=self.trunk is not None)
        return head_logits(self.net, inputs, rows), inputs.features

    def _inputs(self, images: Images) -> Inputs:
        if self.trunk is None:
            return ImageInputs(images, self.mean, self.std)
        return TrunkInputs(images, self._features)

    @cached_property
    def _features(self) -> Compute:
        assert self.trunk is not None
        return on_all_cores(compiled(self.trunk, self.config.run.runtime))

    @property
    def images_at_once(self) -> int:
        return IMAGES_AT_ONCE if self.trunk is not None else images_at_once(*self.size)

    def predict(self, images: Any) -> Predictions:
        """Predict uint8 images (n, h, w) or (n, h, w, c) of the size that the model was trained on.

        A model of a table takes numbers (n, columns) in the order of `columns`, with the codes of categories, or a
        DataFrame.
        """
        if not self.columns:
            return self._predictions(*self._outputs_of_images(images))
        features = coded(images, self.columns)
        features.check_finite("the table")
        return self.predict_features(features, np.arange(len(features)))

    def predict_features(self, features: Features, rows: NDArray[np.int64]) -> Predictions:
        """Predict these rows of a table."""
        return self._predictions(self.logits_of_features(features, rows), NO_FEATURES)

    def _outputs_of_images(self, images: NDArray[np.uint8] | Tensor) -> tuple[Tensor, NDArray[np.float32]]:
        pixels = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images))
        if pixels.ndim == 3:
            pixels = pixels[..., None]
        if pixels.dtype != torch.uint8:
            raise UserError(f"the model takes uint8 images of shape (n, h, w, c), not {pixels.dtype}")
        return self._outputs(pixels, np.arange(len(pixels)))

    def _predictions(self, logits: Tensor, features: NDArray[np.float32]) -> Predictions:
        rule = self.config.run.ensemble
        labels = ensemble_probabilities(logits, rule).argmax(dim=-1)
        probabilities = with_temperature(logits, self.temperature, rule)
        agree = (logits.argmax(dim=-1) == labels).sum(dim=0)
        belongs = self.belonging.p_values(features, logits) if self.belonging is not None else None
        return Predictions(labels.numpy(), self.classes, probabilities.numpy(), agree.numpy(), belongs)

    def predict_files(self, paths: Sequence[str | Path], *, workers: int | None = None) -> Iterator[Row]:
        """Yield one row per file, in order. The row of an unreadable file has an `error`.

        `workers` processes decode the files ahead; by default one per core, and none for a few files.
        """
        check_channels(self)
        names, batch = [str(path) for path in paths], files_at_once(self)
        with Workers(worker_count(len(names)) if workers is None else workers) as pool:
            for start, predicted in enumerate(predict_in_batches(self, names, pool, batch)):
                yield from rows_of(names[start * batch : (start + 1) * batch], predicted, self.classes, None)


def load(
    run: str | Path, *, device: str = "cpu", model: Any = None, use: str = BETTER, trust_code: bool = False
) -> Model:
    """Load the model of a finished run from its folder.

    A run is data: loading one runs no code that its files name, and downloads nothing. A network of your own is passed
    as in `fit`, by `model`; or `trust_code` allows the run to import it by the name in its settings. If a baseline was
    better than the method on held-out labels, that baseline is loaded, unless `use` is "method". A baseline's name,
    "labelled_only" or "logistic_regression", loads that one.
    """
    opened = Run.open(Path(run))
    if model is not None:
        opened = opened.with_network(own_network(model))
    elif trust_code:
        opened = opened.trusting_code()
    return better_model_of(opened, use, device)


def better_model_of(run: Run, use: str = BETTER, device: str | None = "cpu") -> Model:
    """The model of a run that is open already: the method's or a baseline's."""
    chosen = used_folder(run, use)
    if chosen == run.folder:
        return model_of(run, device)
    baseline = model_of(Run.open(chosen).with_network_of(run.config), device)
    return replace(baseline, belonging=read_belonging(run.belonging_path))


def model_trained(net: MultiHead, config: Config, dataset: Dataset, inputs: Inputs, trunk: Trunk | None) -> Model:
    """The model of a network that was trained on these inputs of a dataset; `trunk` computes them from pixels."""
    facts, (height, width, channels) = inputs.facts, dataset.shape
    return Model(
        net.channels_last().eval().requires_grad_(False),
        config,
        dataset.classes,
        (height, width),
        channels,
        tuple(facts.get("mean", ())),
        tuple(facts.get("std", ())),
        trunk=trunk,
        columns=dataset.kind.columns,
    )


def model_of(run: Run, device: str | None = None, trunk: Trunk | None = None) -> Model:
    """The model of a finished run that is open already, by default on the device that the run was trained on.

    `trunk` is the run's own, if it is built already.
    """
    path, config = run.model_path, run.config
    if not path.exists():
        raise UserError(f"{run.folder} is not finished: it has no {path.name} yet; resume with: {run.resume_command}")
    tensors, facts = run.read_model()
    net = build_network(config, len(facts.classes), facts.channels)
    load_weights(net, tensors, path)
    net = net.to(pick_device(device or config.run.device)).channels_last().eval().requires_grad_(False)
    height, width = facts.size
    trunk = trunk or build_trunk(config, len(facts.classes), (height, width, facts.channels))
    if trunk is None and not facts.mean:
        raise UserError(f"{path} is damaged: it does not say how pixels are normalised")
    if trunk is not None and facts.trunk not in (None, trunk.weights):
        raise UserError(
            f"{trunk.name} has other weights than when {run.folder} was trained; restore those weights, or train again"
        )
    return Model(
        net,
        config,
        tuple(facts.classes),
        (height, width),
        facts.channels,
        tuple(facts.mean),
        tuple(facts.std),
        (run.result or UNKNOWN).temperature.value or 1.0,
        trunk,
        tuple(Column(each.name, None if each.categories is None else tuple(each.categories)) for each in facts.columns),
        read_belonging(run.belonging_path),
    )


def _named(columns: Sequence[Column]) -> str:
    """Columns in words, for an error."""
    names = ", ".join(column.name for column in columns[:5])
    return f"{len(columns)} columns ({names}{', ...' if len(columns) > 5 else ''})" if columns else "images"


def used_folder(run: Run, use: str) -> Path:
    """The folder of the model to use: the run's own, or that of one of its baselines."""
    if use == BETTER:
        use = (run.result or UNKNOWN).used
    folders: dict[str, Path] = {METHOD: run.folder, **run.baselines}
    if use not in folders:
        raise UserError(f"{run.folder} has no model {use!r}; it has: {', '.join(folders)}")
    return folders[use]


def how_calibrated(run: Path) -> str:
    """One line that says whether and how the model's probabilities are calibrated."""
    opened = Run.open(run)
    known = (opened.result or UNKNOWN).temperature
    if known.value is None and opened.split.valid:
        return f"probabilities are not calibrated: {run / 'result.json'} has no temperature"
    if known.value is None:
        return (
            f"probabilities are not calibrated: the run has no validation {opened.config.unit.many} to fit a "
            "temperature on; train with data.valid_share=0.2 to hold some out"
        )
    fitted = f"probabilities are calibrated: temperature {known.value:.3g}, fitted on {calibrated_on(opened, known)}"
    if known.fitted_on is None or (wrong := known.fitted_on.wrong) is None:
        return fitted
    limited = f" (fewer than {ENOUGH_WRONG}, so it is kept at 1 or above)" if wrong < ENOUGH_WRONG else ""
    return f"{fitted}, {wrong} of them wrong{limited}"


def calibrated_on(run: Run, temperature: Temperature) -> str:
    """How many images or rows the temperature was fitted on, and which."""
    held_out = temperature.held_out_images
    return f"{len(run.split.valid) if held_out is None else held_out:,} {_kind(temperature, run.config.unit)}"


def kind_of_held_out(run: Run) -> str:
    return _kind((run.result or UNKNOWN).temperature, run.config.unit)


def _kind(temperature: Temperature, unit: Unit) -> str:
    return f"{'validation' if temperature.held_out_images is None else 'held-out labelled'} {unit.many}"


def promised_threshold(run: Path, model: Model, target: float) -> Threshold:
    """The lowest probability threshold whose error is at most `target`, chosen on the run's held-out labels."""
    opened = Run.open(run)
    outputs = opened.outputs(len(model.classes))
    valid = outputs.get("valid", outputs.get(HELD_OUT))
    if valid is None:
        raise UserError(
            f"--target-error needs validation {opened.config.unit.many}, but {run} has none: train with "
            "data.valid_share=0.2, or use --defer-below"
        )
    rule = model.config.run.ensemble
    labels, probabilities = predicted_and_confidence(valid.logits, rule, model.temperature)
    threshold = threshold_for(probabilities.numpy(), (labels == valid.labels).numpy(), target)
    if threshold is None:
        needed = f"about {images_needed(target):,}" if target > 0 else "infinitely many"
        raise UserError(
            f"{len(labels)} {kind_of_held_out(opened)} cannot guarantee an error of at most {100 * target:g} % "
            f"at any threshold: that takes {needed} without a mistake; raise --target-error or data.valid_share, or "
            "use --defer-below"
        )
    return threshold


def possible_rate(run: Path, model: Model, rate: float) -> float:
    """The rate, if the run can tell which images belong to no class at it."""
    unit = model.config.unit
    if model.belonging is None:
        raise UserError(f"--unknown-below: {run} cannot tell which {unit.many} belong to no class; train it again")
    labels = len(model.belonging.held_out)
    if rate <= smallest_rate(labels):
        raise UserError(
            f"--unknown-below {rate:g}: {labels} labelled {unit.many} allow no rate of false alarms below "
            f"{smallest_rate(labels):.2g}; choose a higher one, or label more {unit.many}"
        )
    return rate
