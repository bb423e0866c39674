"""The two optimisers of the published results: SGD as in FixMatch and the paper, Adam as in MixMatch."""

import inspect
import math
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

SHARE = "share"  # of the learning rate, in each group of parameters
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)


def _never_compiled(kind: type[Optimizer]) -> type[Optimizer]:
    """The same optimiser without torch's guards against compiling it.

    At the first step they import the compiler, which takes longer than importing torch.
    """
    guarded = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in guarded}
    return type(kind.__name__, (kind,), {**plain, "step": torch.no_grad()(inspect.unwrap(kind.step))})


SGD, AdamW = _never_compiled(torch.optim.SGD), _never_compiled(torch.optim.AdamW)


@dataclass(frozen=True)
class Slow:
    """The part of a network that learns more slowly: a pretrained trunk."""

    part: nn.Module
    share: float  # of the learning rate


def _divided(groups: list[dict[str, Any]], slow: Slow | None) -> list[dict[str, Any]]:
    """The groups, each divided into the parameters that learn slowly and the others."""
    slowly = set(slow.part.parameters()) if slow else set()
    parts = [
        {**group, "params": [p for p in group["params"] if (p in slowly) == is_slow], SHARE: share}
        for group in groups
        for is_slow, share in ((False, 1.0), (True, slow.share if slow else 1.0))
    ]
    return [part for part in parts if part["params"]]


def learning_rate(base: float, step: int, steps: int) -> float:
    """base * cos(7 pi k / 16 K): decays to 0.195 of its initial value, not to zero."""
    return base * math.cos(7 * math.pi * step / (16 * steps))


def sgd(
    net: nn.Module, *, lr: float, momentum: float, weight_decay: float, slow: Slow | None = None
) -> torch.optim.SGD:
    """SGD with Nesterov momentum; weight decay on everything except batch-norm."""
    normalised = {
        parameter
        for module in net.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for parameter in module.parameters(recurse=False)
    }
    groups = [
        {"params": [p for p in net.parameters() if p not in normalised], "weight_decay": weight_decay},
        {"params": [p for p in net.parameters() if p in normalised], "weight_decay": 0.0},
    ]
    groups = _divided(groups, slow)
    return SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0, foreach=True)


def adam(
    net: nn.Module, *, lr: float, momentum: float, weight_decay: float, slow: Slow | None = None
) -> torch.optim.AdamW:
    """Adam with decoupled weight decay, on kernels only: each step shrinks them by lr * weight_decay."""
    groups = [
        {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in net.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = _divided(groups, slow)
    return AdamW(groups, lr=lr, betas=(momentum, 0.999), fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group[SHARE]
