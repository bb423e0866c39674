"""Run a frozen trunk on uint8 images, with onnxruntime if it is installed, otherwise with torch."""

import io
import logging
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cotrain.storage.location import home
from cotrain.storage.rows import keep, kept
from cotrain.trunk.trunk import Trunk
from cotrain.types import UserError

Compute = Callable[[NDArray[np.uint8]], NDArray[np.float32]]  # (n, h, w, c) -> (n, C, h', w')
Kind = Literal["auto", "onnxruntime", "torch"]


def has_onnxruntime() -> bool:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError:
        return False
    return bool(onnx and onnxruntime)


def compiled(trunk: Trunk, kind: Kind = "auto", threads: int = 1) -> Compute:
    """The trunk as a function that several threads may call at once, each call using `threads` threads."""
    if kind == "torch" or (kind == "auto" and not has_onnxruntime()):
        return _in_torch(trunk)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(_exported(trunk), options, providers=["CPUExecutionProvider"])
    (name,) = (given.name for given in session.get_inputs())

    def compute(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        return session.run(None, {name: images})[0]

    return compute


def is_prepared(trunk: Trunk, kind: Kind) -> bool:
    """Whether `compiled` is quick: the trunk needs no graph, or its graph was kept."""
    return kind == "torch" or not has_onnxruntime() or _kept(trunk).exists()


def _kept(trunk: Trunk) -> Path:
    return home() / "trunks" / f"{trunk.key}.trunk"


def _in_torch(trunk: Trunk) -> Compute:
    @torch.inference_mode()
    def compute(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        return trunk.net(torch.from_numpy(images)).numpy()

    return compute


def _exported(trunk: Trunk) -> bytes:
    """The trunk as an ONNX graph. Exporting takes seconds, so the graph is kept if the disk has room."""
    if (content := kept(_kept(trunk), trunk.key)) is None:
        content = _graph(trunk)
        with suppress(OSError, UserError):
            keep(_kept(trunk), content, trunk.key)
    return content


def _graph(trunk: Trunk) -> bytes:
    try:
        return to_onnx(trunk.net, torch.zeros(2, *trunk.images, dtype=torch.uint8), "features")
    except Exception as error:  # of the exporter, or of the user's own network inside it
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise UserError(
            f"the frozen trunk cannot be exported for onnxruntime ({reason}); set run.runtime=torch"
        ) from error


def to_onnx(net: nn.Module, images: Tensor, *outputs: str, opset: int | None = None, given: str = "images") -> bytes:
    """The network as an ONNX graph with the input "images", or as given, for any number of images of this size.

    Without `opset`, torch chooses the version of the operators.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)  # torch logs and prints what it tries
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                net.eval(),
                (images,),
                dynamo=True,
                verbose=False,
                opset_version=opset,
                input_names=[given],
                output_names=list(outputs),
                dynamic_shapes=({0: torch.export.Dim("n")},),
            )
    finally:
        logging.disable(disabled)
    assert program is not None
    return program.model_proto.SerializeToString()
