"""Whether a probability can be believed."""

import torch
from torch import Tensor


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 10) -> float:
    """In percent: how far accuracy is from confidence, in equal bins of confidence, weighted by their images.

    (n, C) probabilities; a bin includes its upper edge.
    """
    confidence, predicted = probabilities.double().max(dim=-1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    bin_of = torch.bucketize(confidence, edges)
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, bin_of, (predicted == labels).double() - confidence)
    return 100 * (gap.abs().sum() / len(labels)).item()
