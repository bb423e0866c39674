"""The lower bound of a step: only its convolutions and batch-norms, at the shapes that the step has."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Call:
    """One call of a layer, and which gradients the step computes for it."""

    layer: nn.Conv2d | nn.BatchNorm2d
    shape: torch.Size
    learning: bool
    of_input: bool

    @property
    def multiplications(self) -> int:
        """For the forward pass of a convolution; each gradient needs as many again."""
        if not isinstance(self.layer, nn.Conv2d):
            return 0
        images, _, height, width = self.shape
        stride = self.layer.stride[0]
        outputs = images * -(-height // stride) * -(-width // stride)
        return outputs * self.layer.weight.numel() * (1 + self.learning + self.of_input)


@dataclass
class Bare:
    autocast: torch.autocast
    calls: list[Call] = field(default_factory=list)
    inputs: dict[Any, Tensor] = field(default_factory=dict)

    @classmethod
    def record(cls, net: nn.Module, step: Callable[[], object], autocast: torch.autocast) -> Self:
        """Take one step and record every call of a convolution or batch-norm."""
        bare = cls(autocast)

        def record_call(layer: Any, arguments: tuple[Tensor, ...]) -> None:
            (x,) = arguments
            bare.calls.append(Call(layer, x.shape, torch.is_grad_enabled(), x.requires_grad))
            if (x.shape, x.requires_grad) not in bare.inputs:
                like = torch.randn_like(x.detach())  # in the same precision and memory layout
                bare.inputs[x.shape, x.requires_grad] = like.requires_grad_(x.requires_grad)

        hooks = [
            layer.register_forward_pre_hook(record_call)
            for layer in net.modules()
            if isinstance(layer, nn.Conv2d | nn.BatchNorm2d)
        ]
        step()
        for hook in hooks:
            hook.remove()
        return bare

    @property
    def gflop(self) -> float:
        return 2e-9 * sum(call.multiplications for call in self.calls)

    def run(self) -> None:
        for call in self.calls:
            x = self.inputs[call.shape, call.of_input]
            with torch.set_grad_enabled(call.learning), self.autocast:
                y = call.layer(x)
                if call.learning:
                    wanted = [*call.layer.parameters(), *([x] if call.of_input else [])]
                    torch.autograd.grad(y, wanted, y)
