"""Outputs of a trained network, and the errors of its ensemble and of each head."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cotrain.data.inputs import Inputs
from cotrain.graph import Graphs
from cotrain.model import MultiHead
from cotrain.ops import ensemble_probabilities, error_percent, evaluating

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True)
class Scores:
    """Errors of the ensemble and of each head, in percent."""

    error: float
    head_errors: list[float]


@torch.inference_mode()
def head_logits(net: nn.Module, inputs: Inputs, rows: NDArray[np.int64], *, extra: bool = False) -> Tensor:
    """(H, n, C) logits of the images without augmentation. The network must be in eval mode."""
    assert not net.training
    device = next(net.parameters()).device
    parts = np.array_split(rows, -(-len(rows) // inputs.at_once(net)))
    return torch.cat([net(inputs.plain(part, device), extra=extra).float().cpu() for part in parts], dim=1)


@dataclass(frozen=True)
class Looking:
    """A `Look` at images as they are."""

    net: MultiHead
    inputs: Inputs
    next_rows: Callable[[], NDArray[np.int64]]  # of `upcoming`
    graphs: Graphs

    def __call__(self, rows: Tensor) -> Tensor:
        return head_logits(self.net, self.inputs, rows.numpy(), extra=True)

    @torch.inference_mode()
    def features(self, rows: Tensor) -> Tensor:
        device, found = next(self.net.parameters()).device, []
        with evaluating(self.net):
            for part in rows.split(self.inputs.at_once(self.net)):
                found.append(self.net.trunk(self.inputs.plain(part.numpy(), device)).float().mean(dim=(2, 3)).cpu())
        return torch.cat(found)

    def graph(self, features: Tensor, neighbours: int) -> "csr_array":
        return self.graphs.of(features, neighbours)

    def upcoming(self) -> Tensor:
        return torch.from_numpy(self.next_rows())


def score(logits: Tensor, labels: Tensor, ensemble: str) -> Scores:
    predicted = logits.argmax(dim=-1)
    by_ensemble = ensemble_probabilities(logits, ensemble).argmax(dim=-1)
    return Scores(
        error=error_percent(by_ensemble, labels),
        head_errors=[error_percent(head, labels) for head in predicted],
    )


def error_interval(wrong: int, images: int) -> tuple[float, float]:
    """Wilson's 95 % confidence interval for the error, in percent."""
    error, doubt = wrong / images, NormalDist().inv_cdf(0.975) ** 2 / images
    half = math.sqrt(doubt * error * (1 - error) + doubt**2 / 4)
    low, high = ((error + doubt / 2 + side * half) / (1 + doubt) for side in (-1, 1))
    return 100 * max(low, 0.0), 100 * min(high, 1.0)
