"""Export a trained model as one ONNX graph, from uint8 pixels or features to calibrated probabilities of the ensemble.

H heads, n images of height h, width w and c channels, C classes.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cotrain.data.feature_table import FARTHEST, Features
from cotrain.evaluation.calibration import with_temperature
from cotrain.inference.model import Model, calibrated_on, load
from cotrain.ops import ensemble_probabilities, one_hot
from cotrain.runs.result import Result
from cotrain.runs.run import Run
from cotrain.storage.writing import write_whole
from cotrain.trunk.runtime import to_onnx
from cotrain.trunk.trunk import FromPixels
from cotrain.types import UserError

OPSET, IR_VERSION = 18, 10  # read by onnxruntime 1.18 (2024) and newer
OUTPUTS = ("probabilities", "labels", "heads_agree", "head_logits")
PACKAGES = ("onnx", "onnxruntime", "onnxscript")
TRIED = 8  # made-up images on which the graph is compared with `predict`
TOLERANCE = 1e-3  # of a probability: more than rounding, less than any mistake in the graph


class FromTable(nn.Module):
    """A network on features (n, columns): it standardises them, and makes one input of each category."""

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, model: Model) -> None:
        super().__init__()
        self.net, self.categories = net, Features(np.zeros((1, len(model.columns))), model.columns).one_hot
        self.register_buffer("mean", torch.tensor(model.mean))
        self.register_buffer("std", torch.tensor(model.std))

    def forward(self, features: Tensor) -> Tensor:
        distances = ((features - self.mean) / self.std).clamp(-FARTHEST, FARTHEST)
        return self.net(one_hot(distances, self.categories)[..., None, None])


class Deployed(nn.Module):
    """What `Model.predict` computes, as one network: uint8 images (n, h, w, c) -> the outputs named in OUTPUTS."""

    def __init__(self, net: nn.Module, temperature: float, rule: str) -> None:
        super().__init__()
        self.net, self.temperature, self.rule = net, temperature, rule

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        logits = self.net(images)  # (H, n, C)
        labels = ensemble_probabilities(logits, self.rule).argmax(dim=-1)  # (n,)
        probabilities = with_temperature(logits, self.temperature, self.rule)  # (n, C)
        agree = (logits.argmax(dim=-1) == labels).sum(dim=0)  # (n,)
        return probabilities, labels, agree, logits


@dataclass(frozen=True)
class Exported:
    """An ONNX file, what its metadata say, and how much its probabilities differ from those of `predict`."""

    path: Path
    metadata: Mapping[str, Any]
    difference: float  # the largest of a probability, on a few made-up images


def export(
    run: str | Path, path: str | Path, *, overwrite: bool = False, model: Any = None, trust_code: bool = False
) -> Exported:
    """Write the model of a finished run to one ONNX file: preprocessing, network, temperature and ensemble.

    The graph takes `images`, uint8 (n, h, w, c), or for a table `features`, float32 (n, columns). It returns what
    `Model.predict` does: `probabilities` (n, C), `labels` (n,) and `heads_agree` (n,), and also `head_logits`
    (H, n, C). An existing file is replaced only with `overwrite`. `model` and `trust_code` are as in `load`.
    """
    path = Path(path)
    _check_path(path, overwrite)
    opened = Run.open(Path(run))
    loaded = load(run, model=model, trust_code=trust_code)
    if (result := opened.result) is None:
        raise UserError(f"{run} is not finished: it has no result.json yet; resume with: {opened.resume_command}")
    _check_packages()
    metadata = describe(opened, result, loaded)
    content = with_metadata(graph_of(loaded), metadata)
    difference = compare(loaded, content)
    write_whole(path, content)
    return Exported(path, metadata, difference)


def _check_path(path: Path, overwrite: bool) -> None:
    if path.suffix != ".onnx":
        raise UserError(f"{path} must end in .onnx")
    if path.exists() and not overwrite:
        raise UserError(f"{path} already exists; choose another file, or add --overwrite (in Python, overwrite=True)")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")


def _check_packages() -> None:
    missing = []
    for name in PACKAGES:
        try:
            import_module(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise UserError(f"export needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def deployed(model: Model) -> Deployed:
    """The model with everything around it, on the CPU."""
    heads = deepcopy(model.net).cpu()
    if model.columns:
        return Deployed(FromTable(heads, model), model.temperature, model.config.run.ensemble).eval()
    net = FromPixels(heads, model.mean, model.std) if model.trunk is None else nn.Sequential(model.trunk.net, heads)
    return Deployed(net, model.temperature, model.config.run.ensemble).eval()


def graph_of(model: Model) -> bytes:
    """The ONNX graph, for any number of images."""
    import onnx

    name = model.config.model.backbone
    given = "features" if model.columns else "images"
    try:
        content = to_onnx(deployed(model), torch.from_numpy(tried(model, 2)), *OUTPUTS, opset=OPSET, given=given)
    except torch.onnx.OnnxExporterError as error:
        raise UserError(f"torch cannot export {name} to ONNX: {_first_line(error)}") from error
    (entry,) = onnx.load_from_string(content).graph.input
    if not entry.type.tensor_type.shape.dim[0].dim_param:
        raise UserError(
            f"{name} can be exported only for a fixed number of images: in its forward, write x.shape[0] "
            "instead of len(x), and convert no size to int"
        )
    return content


def _first_line(error: Exception) -> str:
    """Of the innermost cause: torch wraps it in long instructions for its own developers."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return next(iter(str(cause).strip().splitlines()), type(cause).__name__)


def with_metadata(content: bytes, metadata: Mapping[str, Any]) -> bytes:
    """The graph with these facts, each as JSON, and without torch's notes, which hold paths of this machine."""
    import onnx

    graph = onnx.load_from_string(content)
    graph.ir_version = IR_VERSION
    graph.producer_name, graph.producer_version = "cotrain", version("cotrain")
    parts = (graph.graph, *graph.graph.node, *graph.graph.input, *graph.graph.output, *graph.graph.value_info)
    for part in (*parts, *graph.graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    onnx.helper.set_model_props(graph, {key: json.dumps(value) for key, value in metadata.items()})
    onnx.checker.check_model(graph)
    return graph.SerializeToString()


def describe(run: Run, result: Result, model: Model) -> dict[str, Any]:
    """What a user of the file should know about the model."""
    config, temperature, fitted_on = model.config, result.temperature.value, calibrated_on(run, result.temperature)
    return {
        "classes": list(model.classes),
        **_input(model),
        "temperature": model.temperature,
        "probabilities": meaning(config.run.ensemble, len(model.net.heads), temperature, fitted_on),
        "method": config.method.name,
        "backbone": config.model.backbone,
        "heads": len(model.net.heads),
        "ensemble": config.run.ensemble,
        "test_error": result.test.error,
        "test_interval": result.test.interval and list(result.test.interval),
        "test_images": result.test.images,
        "labels": len(run.split.labelled),
        "unlabelled": len(run.split.unlabelled),
        "seed": config.run.seed,
        "cotrain": version("cotrain"),
    }


def _input(model: Model) -> dict[str, Any]:
    """Of a table: its columns in order; a category is given by its number in the list, and -1 if it is not in it."""
    if model.columns:
        return {"columns": [asdict(column) for column in model.columns]}
    return {"image_size": [*model.size, model.channels], "resize": "Pillow, bicubic"}


def tried(model: Model, number: int) -> NDArray:
    """Made-up images, or rows of a table: numbers around the mean, and every category in turn."""
    rng = np.random.default_rng(0)
    if not model.columns:
        return rng.integers(0, 256, (number, *model.size, model.channels), dtype=np.uint8)
    rows = rng.normal(model.mean, model.std, (number, len(model.columns)))
    for place, column in enumerate(model.columns):
        if column.categories is not None:
            rows[:, place] = np.arange(-1, number - 1) % (len(column.categories) + 1) - 1
    return rows.astype(np.float32)


def meaning(rule: str, heads: int, temperature: float | None, fitted_on: str) -> str:
    """What the probabilities are, and whether they are calibrated."""
    if heads == 1:
        source = "softmax of the logits"
    elif rule == "logits":
        source = f"softmax of the sum of the logits of {heads} heads"
    else:
        source = f"mean of the probabilities of {heads} heads"
    if temperature is None:
        return f"{source}; not calibrated"
    return f"{source}; calibrated: logits divided by {temperature:.6g}, fitted on {fitted_on}"


def compare(model: Model, content: bytes) -> float:
    """The largest difference between a probability of the graph and of `predict`, on made-up inputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    images = tried(model, TRIED)
    (probabilities,) = session.run(["probabilities"], {session.get_inputs()[0].name: images})
    difference = float(abs(probabilities - model.predict(images).probabilities).max())
    if not difference <= TOLERANCE:
        raise UserError(f"the exported graph differs from predict by {difference:.2g} in a probability; not written")
    return difference
