"""Weights of the user's own network from a safetensors file, and what identifies a network."""

import hashlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from cotrain.model.own import Pair
from cotrain.model.pretrained import IMAGENET_MEAN, IMAGENET_STD
from cotrain.model.stages import Backbone, Pretrained, Stage
from cotrain.storage.regular import open_regular
from cotrain.types import UserError

COUNTERS = "num_batches_tracked"  # of batch-norm: many files leave them out, and nothing here reads them


def with_weights(parts: Backbone | Pair, path: Path, channels: int) -> Backbone | Pair:
    """The network with the weights of its trunk from a file: the keys are the trunk's, or STAGE.KEY for stages."""
    tensors = read_weights(path)
    pretrained = parts.pretrained or assumed(channels)
    pretrained = replace(pretrained, digest=f"{pretrained.digest} {sha256_of(path)}".strip())
    if isinstance(parts, Pair):
        load_trunk(parts.trunk, tensors, path)
        return replace(parts, pretrained=pretrained)
    shared = parts.stages[: parts.place("paper")]
    names = {stage.name for stage in shared}
    _refuse_unexpected((key for key in tensors if key.partition(".")[0] not in names), path)
    loaded = tuple(_with_weights(stage, tensors, path) for stage in shared)
    return replace(parts, stages=(*loaded, *parts.stages[len(shared) :]), pretrained=pretrained)


def _with_weights(stage: Stage, tensors: Mapping[str, Tensor], path: Path) -> Stage:
    def build(dropout: float) -> nn.Module:
        module = stage.build(dropout)
        prefix = f"{stage.name}."
        own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        return load_trunk(module, own, path, prefix)

    return Stage(stage.name, build)


def assumed(channels: int) -> Pretrained:
    """ImageNet's normalisation, which most pretrained networks expect."""
    if channels not in (1, 3):
        raise UserError(
            f"model.weights: say how pixels with {channels} channels are normalised: return cotrain.Pretrained(size, "
            "mean, std) with the network"
        )
    if channels == 3:
        return Pretrained(224, IMAGENET_MEAN, IMAGENET_STD)
    return Pretrained(224, (sum(IMAGENET_MEAN) / 3,), (sum(IMAGENET_STD) / 3,))


def read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UserError(f"model.weights={path}: there is no such file; give the path of a safetensors file")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"model.weights={path} is not a complete safetensors file ({reason}); write it with "
            "safetensors.torch.save_file(trunk.state_dict(), FILE)"
        ) from error


def load_trunk(module: nn.Module, tensors: Mapping[str, Tensor], path: Path, prefix: str = "") -> nn.Module:
    """Load exactly these weights. The first that is missing, unknown or of another shape is an error."""
    expected = module.state_dict()
    _refuse_unexpected((f"{prefix}{key}" for key in tensors if key not in expected), path)
    for key, tensor in expected.items():
        if key in tensors and tensors[key].shape != tensor.shape:
            shapes = f"has shape {tuple(tensors[key].shape)} and the trunk's {tuple(tensor.shape)}"
            raise UserError(f"model.weights={path} holds the weights of another network: {prefix}{key} {shapes}")
        if key not in tensors and not key.endswith(COUNTERS):
            raise UserError(f"model.weights={path} holds the weights of another network: {prefix}{key} is missing")
    module.load_state_dict({**expected, **tensors})
    return module


def _refuse_unexpected(keys: Iterable[str], path: Path) -> None:
    for key in keys:
        raise UserError(f"model.weights={path} holds the weights of another network: the trunk has no {key}")


def sha256_of(path: Path) -> str:
    """Of the content of a file. A file that has not changed is read once per process."""
    facts = path.stat()
    return _sha256(path.resolve(), facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=64)
def _sha256(path: Path, changed: int, size: int) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(net: nn.Module) -> str:
    """Of the weights, the layers, and the source of the classes that the user wrote."""
    digest = hashlib.sha256(repr(net).encode())
    for kind in dict.fromkeys(type(module) for module in net.modules()):
        if not kind.__module__.startswith("torch."):
            try:
                digest.update(inspect.getsource(kind).encode())
            except (OSError, TypeError):  # written in a shell: its name and layers are all there is
                digest.update(kind.__qualname__.encode())
    for key, tensor in net.state_dict().items():
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
