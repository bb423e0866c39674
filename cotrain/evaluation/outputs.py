"""Outputs of a trained network, and the errors of its ensemble and of each head."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cotrain.augment import Policy, draw_plain, normalised
from cotrain.data.dataset import Images
from cotrain.data.source import near
from cotrain.ops import ensemble_probabilities, error_percent

PIXELS_AT_ONCE = 500 * 32 * 32


@dataclass(frozen=True)
class Scores:
    """Errors of the ensemble and of each head, in percent."""

    error: float
    head_errors: list[float]


def images_at_once(height: int, width: int) -> int:
    """The batch size that keeps the network's memory the same for images of any size."""
    return max(1, PIXELS_AT_ONCE // (height * width))


@torch.inference_mode()
def head_logits(
    net: nn.Module,
    images: Images,
    rows: NDArray[np.int64],
    mean: Sequence[float],
    std: Sequence[float],
    *,
    extra: bool = False,
) -> Tensor:
    """(H, n, C) logits of the images without augmentation. The network must be in eval mode."""
    assert not net.training
    device = next(net.parameters()).device
    logits = []
    for part in np.array_split(rows, -(-len(rows) // images_at_once(*images.shape[1:3]))):
        held, (places,) = near(images, [part], device)
        views = normalised(held, places, draw_plain(len(part)), Policy(), mean, std)
        logits.append(net(views.to(device), extra=extra).float().cpu())
    return torch.cat(logits, dim=1)


def score(logits: Tensor, labels: Tensor, ensemble: str) -> Scores:
    predicted = logits.argmax(dim=-1)
    by_ensemble = ensemble_probabilities(logits, ensemble).argmax(dim=-1)
    return Scores(
        error=error_percent(by_ensemble, labels),
        head_errors=[error_percent(head, labels) for head in predicted],
    )


def error_interval(wrong: int, images: int) -> tuple[float, float]:
    """Wilson's 95 % confidence interval for the error, in percent."""
    from scipy.stats import binomtest  # slow to import

    interval = binomtest(wrong, images).proportion_ci(0.95, method="wilson")
    return 100 * float(interval.low), 100 * float(interval.high)
