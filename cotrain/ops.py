"""Shared maths: small pure functions of logits, and the batch-norm modes in which methods differ."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from cotrain.types import Batch


def vote_of_others(predicted: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """For each head, the most frequent class among the other heads' predictions, and how many of them chose it.

    (H, n) predicted classes -> (H, n) classes and (H, n) counts. Ties go to the lowest class.
    """
    chosen = F.one_hot(predicted, classes)  # (H, n, C)
    others = chosen.sum(dim=0) - chosen  # (H, n, C)
    count, winner = others.max(dim=-1)
    return winner, count


def majority_of_others(predicted: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """For each head, the class that the others vote for, and whether it has the votes of more than half of all heads.

    (H, n) predicted classes -> (H, n) classes and (H, n) bool. Needs three heads: one other head is never a majority.
    """
    assert len(predicted) >= 3
    winner, count = vote_of_others(predicted, classes)
    return winner, count > len(predicted) / 2


def confident(logits: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """The most probable class, and whether its probability reaches the threshold."""
    probability, winner = logits.softmax(dim=-1).max(dim=-1)
    return winner, probability >= threshold


def heads_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every head on every example: (H, n, C) and (n,) or (H, n) -> (H, n)."""
    targets = targets.expand(logits.shape[:2])
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


def ensemble_probabilities(logits: Tensor, rule: str) -> Tensor:
    """Combine the heads: the mean of their probabilities, or the softmax of the sum of their logits."""
    if rule == "probabilities":
        return logits.double().softmax(dim=-1).mean(dim=0)
    if rule == "logits":
        return logits.double().sum(dim=0).softmax(dim=-1)
    raise ValueError(f"unknown ensemble rule {rule!r}: use probabilities or logits")


def error_percent(predicted: Tensor, labels: Tensor) -> float:
    return 100.0 * (predicted != labels).double().mean().item()


def all_agree(predicted: Tensor) -> Tensor:
    """(H, n) predicted classes -> (n,) whether all heads predict the same class."""
    return (predicted == predicted[0]).all(dim=0)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """H(targets, softmax(logits)) per example: (..., C) -> (...)."""
    return -(targets * logits.float().log_softmax(dim=-1)).sum(dim=-1)


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the softmax per example: (..., C) -> (...). From logits: at probability 0 the gradient is infinite."""
    return soft_cross_entropy(logits, logits.float().softmax(dim=-1))


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """p_c^(1/T), normalised."""
    powers = probabilities ** (1 / temperature)
    return powers / powers.sum(dim=-1, keepdim=True)


def beta(alpha: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Samples from Beta(alpha, alpha)."""
    parameters = torch.full((*shape, 2), alpha, device=generator.device)
    return torch._sample_dirichlet(parameters, generator)[..., 0]


def mix(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """share * first + (1 - share) * second, with one share per row or one for all."""
    return torch.lerp(second, first, share.reshape(-1, *[1] * (first.ndim - 1)))


def kl_divergence(logits: Tensor, others: Tensor) -> Tensor:
    """KL(softmax(logits) || softmax(others)) per example: (..., C) -> (...)."""
    probabilities = logits.float().softmax(dim=-1)
    return soft_cross_entropy(others, probabilities) - soft_cross_entropy(logits, probabilities)


def js_divergence(logits: Tensor) -> Tensor:
    """Jensen-Shannon divergence of the heads: entropy of the mean minus mean of the entropies, (H, n, C) -> (n,)."""
    probabilities, logs = logits.float().softmax(dim=-1), logits.float().log_softmax(dim=-1)
    log_mean = logs.logsumexp(dim=0) - math.log(len(logits))
    return soft_cross_entropy(log_mean, probabilities.mean(dim=0)) - soft_cross_entropy(logs, probabilities).mean(dim=0)


def full_precision(tensor: Tensor) -> torch.autocast:
    """Context that turns autocast off on the device of this tensor."""
    return torch.autocast(tensor.device.type, enabled=False)


def mix_pool(images: Tensor, targets: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """MixUp of every example with a random one from the same pool, each with its own share of at least one half."""
    share = beta(alpha, (len(images),), generator)
    share = torch.maximum(share, 1 - share)
    other = torch.randperm(len(images), generator=generator, device=generator.device)
    return mix(images, images[other], share), mix(targets, targets[other], share)


def interleave(batches: Sequence[Tensor]) -> list[Tensor]:
    """Swap parts of the first batch with parts of the others. Sizes do not change; a second call undoes the first.

    The rows of all n batches, up to the length of the shortest, are cut into n chunks; chunk i of the first batch is
    swapped with chunk i of batch i.
    """
    shortest = min(len(batch) for batch in batches)
    ends = [shortest * i // len(batches) for i in range(len(batches) + 1)]
    mixed = [batch.clone() for batch in batches]
    for i, (start, end) in enumerate(pairwise(ends)):
        mixed[i][start:end] = batches[0][start:end]
        mixed[0][start:end] = batches[i][start:end]
    return mixed


def interleaved_logits(net: nn.Module, batches: Sequence[Tensor], updating: int) -> list[Tensor]:
    """The logits (n, C) of each batch, from one pass per interleaved batch.

    Only pass number `updating` updates batch-norm's running statistics, so they describe a mixture of all batches.
    """
    logits = []
    for number, images in enumerate(interleave(batches)):
        with nullcontext() if number == updating else without_update(net):
            (of_batch,) = net(images)
        logits.append(of_batch)
    return interleave(logits)


def labelled_weak_strong(net: nn.Module, batch: Batch, weak_pass: str) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of one network on labelled images, weak views and strong views; those of the weak views have no gradient.

    The weak views are in the same batch as the rest ("joint") or in a separate pass before it ("separate").
    """
    labels, images = len(batch.y), len(batch.unlabelled_rows)
    if weak_pass == "joint":
        (logits,) = net(torch.cat([batch.x, batch.weak[0], batch.strong[0]]))
        labelled, weak, strong = logits.float().split([labels, images, images])
        return labelled, weak.detach(), strong
    with torch.no_grad():
        (weak,) = net(batch.weak[0])
    (logits,) = net(torch.cat([batch.x, batch.strong[0]]))
    labelled, strong = logits.float().split([labels, images])
    return labelled, weak.float(), strong


def batch_norms(net: nn.Module) -> list[BatchNorm]:
    return [module for module in net.modules() if isinstance(module, BatchNorm)]


@contextmanager
def without_update(net: nn.Module, like: nn.Module | None = None) -> Iterator[None]:
    """Normalise batches by their own statistics, as in training, but do not update the running statistics.

    With `like`, the layers take the modes of that network: a teacher's batch-norm is otherwise in eval mode.
    """
    layers = batch_norms(net)
    modes = [layer.training for layer in layers]
    for layer, model in zip(layers, batch_norms(like or net), strict=True):
        layer.training, layer.track_running_stats = model.training, False
    try:
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.training, layer.track_running_stats = mode, True


@contextmanager
def evaluating(net: nn.Module, dropout: bool = False) -> Iterator[None]:
    """Eval mode, optionally with active dropout."""
    modes = [(module, module.training) for module in net.modules()]
    for module, _ in modes:
        module.training = dropout and isinstance(module, nn.Dropout)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def mixed_cross_entropy(logits: Tensor, targets: Tensor, order: Tensor, share: Tensor) -> Tensor:
    """The mixup loss, split by target, for images i that were mixed with images order[i]: (n, C) -> (n,).

    The mean equals the mean of share * H(t_i, p_i) + (1 - share) * H(t_order[i], p_i). Each target counts both where
    its image comes first and where its image was mixed in.
    """
    first = soft_cross_entropy(logits, targets)
    mixed_in = soft_cross_entropy(logits, targets[order])[order.argsort()]
    return share * first + (1 - share) * mixed_in


@contextmanager
def batch_statistics(net: nn.Module) -> Iterator[None]:
    """Normalise batches by their own statistics even in eval mode: running statistics may lag behind the weights.

    The layers keep their mode, so one process can do this while others wait.
    """
    kept = [(layer, layer.running_mean, layer.running_var) for layer in batch_norms(net)]
    for layer, _, _ in kept:
        layer.running_mean = layer.running_var = None
    try:
        yield
    finally:
        for layer, mean, variance in kept:
            layer.running_mean, layer.running_var = mean, variance


def widest(net: nn.Module) -> int:
    """The most values that one row becomes in a network of linear layers."""
    return max((len(parameter) for parameter in net.parameters() if parameter.ndim), default=1)


def one_hot(values: Tensor, categories: Sequence[int]) -> Tensor:
    """(..., D) -> (..., D'): a column with categories becomes one per category; an unknown category is all zeros.

    `categories` has their number for each column, 0 for numbers, which stay. If it is empty, everything stays.
    """
    if not categories:
        return values
    parts, start = [], 0
    for place, count in enumerate(categories):
        if count:
            codes = torch.arange(count, device=values.device, dtype=values.dtype)
            parts += [values[..., start:place], (values[..., place, None] == codes).to(values.dtype)]
            start = place + 1
    return torch.cat([*parts, values[..., start:]], dim=-1)
