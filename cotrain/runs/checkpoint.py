"""Checkpoints and models: safetensors files with facts and a digest, checked when they are read. None is a pickle."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from cotrain.runs.schema import Header
from cotrain.storage.reading import checked, decoded, parse_json, reason
from cotrain.storage.regular import open_regular
from cotrain.storage.writing import remove_abandoned, write_whole
from cotrain.types import UserError

KEEP = 2  # the newest checkpoint and the previous one


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write a safetensors file whose header also holds JSON facts and a digest of the tensors."""
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    header = {"cotrain": json.dumps({"digest": _digest(tensors), "facts": facts})}
    write_whole(path, save(tensors, header))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the facts of a file that `write_tensors` wrote."""
    try:
        open_regular(path).close()  # refuses what is not a regular file
        tensors, header, digest = decoded(lambda: _read(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file ({reason(error)})") from error
    known = checked(Header, header, path)
    if known.digest != digest:
        raise UserError(f"{path} is damaged: its content does not match its digest")
    return tensors, known.facts


def _read(path: Path) -> tuple[dict[str, Tensor], Any, str]:
    with safe_open(path, framework="pt") as file:
        header = parse_json((file.metadata() or {}).get("cotrain", "{}"))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return tensors, header, _digest(tensors)


class Checkpoints:
    """A folder that keeps the two newest `step-N.safetensors`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def paths(self) -> list[Path]:
        """All checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"))

    def newest(self) -> Path | None:
        return self.paths()[-1] if self.paths() else None

    def save(self, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_abandoned(self.folder)
        path = self.folder / f"step-{step:08d}.safetensors"
        write_tensors(path, tensors, {**facts, "step": step})
        for old in self.paths()[:-KEEP]:
            old.unlink()
        return path

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Read the newest checkpoint. If it is damaged, the error says how to resume from the previous one."""
        newest = self.newest()
        if newest is None:
            return None
        try:
            return read_tensors(newest)
        except UserError as error:
            older = [path.name for path in self.paths() if path != newest]
            remedy = f"delete it to resume from {older[-1]}" if older else "delete it to start again"
            raise UserError(f"{error}; {remedy}") from error


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def unprefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def optimizer_memory(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's tensors, by "key.parameter", e.g. "momentum_buffer.heads.0.weight"."""
    return {
        f"{key}.{name}": tensor
        for name, parameter in net.named_parameters()
        for key, tensor in optimizer.state[parameter].items()
        if tensor is not None
    }


def restore_optimizer(
    net: nn.Module, optimizer: torch.optim.Optimizer, memory: dict[str, Tensor], where: object
) -> None:
    """Restore what `optimizer_memory` returned. Tensors that do not fit the network are an error."""
    parameters = dict(net.named_parameters())
    keys: dict[str, set[str]] = {}
    for place, tensor in memory.items():
        key, _, name = place.partition(".")
        fits = name in parameters and tensor.is_floating_point() and tensor.shape in ((), parameters[name].shape)
        if not fits:
            raise UserError(f"{where} does not fit this run: its optimizer.{place} belongs to another network")
        keys.setdefault(name, set()).add(key)
        like = parameters[name] if tensor.ndim else tensor  # the step count stays on the CPU
        optimizer.state[parameters[name]][key] = torch.empty_like(like).copy_(tensor)
    if len({*map(frozenset, keys.values())}) > 1:
        raise UserError(f"{where} is damaged: some tensors of the optimiser are missing")


def restore_memory(memory: dict[str, Tensor], saved: dict[str, Tensor], where: object) -> None:
    """Restore a method's memory, which must have the same tensors."""
    for name in memory.keys() | saved.keys():
        same = name in memory and name in saved and memory[name].shape == saved[name].shape
        if not same or memory[name].dtype != saved[name].dtype:
            raise UserError(f"{where} does not fit this run: its memory.{name} is not that of the method")
        memory[name].copy_(saved[name])
