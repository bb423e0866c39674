"""Files that are either whole or absent: everything a run keeps is written through here, and nothing is a pickle."""

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

KEEP = 2  # the newest checkpoint and the one before it


def make_folder(folder: Path, signs: Collection[str]) -> None:
    """A new folder, an empty one, or one that is known by a sign and is no run: no other is written into."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; choose another --out") from error
    if "config.json" in held:
        raise UserError(f"{folder} is a run; choose another --out")
    if held and held.isdisjoint(signs):
        raise UserError(f"{folder} holds something else ({min(held)}); choose another --out")


def write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary file, force it to disk, and rename: a kill or a full disk leaves the old file as it was."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}; what was there before is untouched") from error
    _force_names_to_disk(path.parent)


def _force_names_to_disk(folder: Path) -> None:
    """A renamed file survives a power cut once its folder is written. Windows cannot open a folder for that."""
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
    """A safetensors file whose header also holds plain facts and a digest of the tensors."""
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
    """A folder of `step-N.safetensors`, the newest two of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def paths(self) -> list[Path]:
        """Oldest first."""
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
        """The newest checkpoint. A damaged one is an error that says how to go on from the one before it."""
        newest = self.newest()
        if newest is None:
            return None
        try:
            return read_tensors(newest)
        except UserError as error:
            before = [path.name for path in self.paths() if path != newest]
            way_on = f"delete it to go on from {before[-1]}" if before else "delete it to start again"
            raise UserError(f"{error}; {way_on}") from error


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def unprefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def optimizer_memory(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """By the optimiser's name of it and the parameter's name."""
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
        like = parameters[name] if tensor.ndim else tensor  # the count of steps stays on the CPU
        optimizer.state[parameters[name]][key] = torch.empty_like(like).copy_(tensor)
