"""Write files so that they are either complete or absent. Every file of a run is written here, none as a pickle."""

import hashlib
import json
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from cotrain.types import UserError

KEEP = 2  # the newest checkpoint and the previous one


def make_folder(folder: Path, markers: Collection[str]) -> None:
    """Create the folder, or reuse it if it is empty or holds one of the marker files and no run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise UserError(f"cannot create the folder {folder}: {error.strerror}; choose another --out") from error
    if "config.json" in present:
        raise UserError(f"{folder} is a run; choose another --out")
    if present and present.isdisjoint(markers):
        raise UserError(f"{folder} contains other files ({min(present)}); choose another --out")


def write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary file, sync it to disk and rename it, so that a kill or a full disk keeps the old file."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
        rename_synced(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}; the previous file, if any, is unchanged") from error


def rename_synced(temporary: Path, path: Path) -> None:
    """Give a complete file its name, so that a power cut leaves the whole file or none."""
    with open(temporary, "r+b") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the folder, so that a rename in it survives a power cut. Windows cannot open a folder for this."""
    if sys.platform == "win32":
        return
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: Path, value: Any) -> None:
    write_whole(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({error})") from error


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
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("cotrain", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file ({error})") from error
    if header.get("digest") != _digest(tensors):
        raise UserError(f"{path} is damaged: its content does not match its digest")
    return tensors, header["facts"]


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


def restore_optimizer(net: nn.Module, optimizer: torch.optim.Optimizer, memory: dict[str, Tensor]) -> None:
    parameters = dict(net.named_parameters())
    for place, tensor in memory.items():
        key, _, name = place.partition(".")
        like = parameters[name] if tensor.ndim else tensor  # the step count stays on the CPU
        optimizer.state[parameters[name]][key] = torch.empty_like(like).copy_(tensor)
