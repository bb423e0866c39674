"""Choose the device and the precision, or explain in one line why a setting cannot be used."""

import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch

from cotrain.types import UserError

Precision = Literal["auto", "float32", "bfloat16", "float16"]


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """With several processes on one machine, each uses the GPU with its local rank."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise UserError(f"there are more processes than GPUs ({count}); start at most {count} per machine")
        return torch.device("cuda", local_rank)
    if name == "auto":
        return torch.device("cpu")
    try:
        torch.zeros(1, device=name).item()
        return torch.device(name)
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"run.device={name!r} cannot be used here ({reason}); try cpu or auto") from error


def pick_precision(name: Precision, device: torch.device) -> torch.dtype:
    """The dtype of convolutions. "auto": bfloat16 on a GPU that supports it, otherwise float32.

    Weights, batch-norm statistics, losses and votes are always float32.
    """
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" and _gpu_has_bfloat16() else torch.float32
    precision: torch.dtype = getattr(torch, name)
    if precision == torch.float32:
        return precision
    advice = "use run.precision=float32 or auto"
    if device.type == "cpu" and precision == torch.float16:
        raise UserError(f"run.precision=float16 is for GPUs; {advice}")
    if device.type == "cpu" and not _survives_bfloat16():
        raise UserError(f"run.precision=bfloat16 does not work on this CPU; {advice}")
    if device.type == "cuda" and precision == torch.bfloat16 and not _gpu_has_bfloat16():
        raise UserError(f"run.precision=bfloat16 needs a newer GPU; use float16, or {advice}")
    return precision


def _gpu_has_bfloat16() -> bool:
    return torch.cuda.is_bf16_supported(including_emulation=False)


@cache
def _survives_bfloat16() -> bool:
    """Tried in a separate process, because some virtual machines announce instructions that they cannot execute."""
    trial = """
import torch
net = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.Flatten(), torch.nn.Linear(64, 9))
with torch.autocast("cpu", torch.bfloat16):
    net(torch.randn(8, 3, 3, 3)).float().sum().backward()
"""
    return subprocess.run([sys.executable, "-P", "-c", trial], capture_output=True, check=False).returncode == 0


def check_compiler(device: torch.device) -> None:
    """torch.compile needs a C++ compiler on a CPU, and triton on a GPU."""
    if device.type == "cpu":
        named = (sysconfig.get_config_var("CXX") or "").split()[:1]
        if not any(shutil.which(compiler) for compiler in ("g++", "clang++", "c++", *named)):
            raise UserError("run.compile needs a C++ compiler; install g++ or clang++, or omit --compile")
    elif find_spec("triton") is None:
        raise UserError("run.compile needs triton on a GPU; install it, or omit --compile")
