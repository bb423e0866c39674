"""The exponential moving average of the weights, which the paper evaluates."""

import copy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Net = TypeVar("Net", bound=nn.Module)


class Average(Generic[Net]):
    """A copy of the network with averaged weights; batch-norm statistics are copied without averaging."""

    def __init__(self, net: Net, decay: float, warmup: bool) -> None:
        self.decay = decay
        self.warmup = warmup
        self.net: Net = copy.deepcopy(net).eval().requires_grad_(False)

    def decay_at(self, step: int) -> float:
        """With warm-up, min(decay, (1 + k) / (10 + k)), so that short runs forget their random initial weights."""
        return min(self.decay, (1 + step) / (10 + step)) if self.warmup else self.decay

    @torch.no_grad()
    def update(self, net: nn.Module, step: int) -> None:
        weights: list[Tensor] = list(self.net.parameters())
        followed: list[Tensor] = list(net.parameters())
        torch._foreach_lerp_(weights, followed, 1 - self.decay_at(step))
        if buffers := list(net.buffers()):  # a network without batch-norm may have none, which torch refuses
            torch._foreach_copy_(list(self.net.buffers()), buffers)
