"""Shared mathematics: small pure functions over logits, and the modes of batch-norm that methods differ in."""

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
    """For each head, the class that the others vote for, and whether those who do are more than half of all heads.

    (H, n) predicted classes -> (H, n) classes and (H, n) bool. It takes three heads: a single other is never enough.
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
    """Add the heads' predictions: the mean of their probabilities, or the softmax of the sum of their logits."""
    if rule == "probabilities":
        return logits.double().softmax(dim=-1).mean(dim=0)
    if rule == "logits":
        return logits.double().sum(dim=0).softmax(dim=-1)
    raise ValueError(f"unknown ensemble rule {rule!r}: probabilities or logits")


def error_percent(predicted: Tensor, labels: Tensor) -> float:
    return 100.0 * (predicted != labels).double().mean().item()


def all_agree(predicted: Tensor) -> Tensor:
    """(H, n) predicted classes -> (n,) whether every head says the same."""
    return (predicted == predicted[0]).all(dim=0)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """H(targets, softmax(logits)) of each example: (..., C) -> (...)."""
    return -(targets * logits.float().log_softmax(dim=-1)).sum(dim=-1)


def entropy(logits: Tensor) -> Tensor:
    """Of each example's softmax: (..., C) -> (...). From logits, as a probability of 0 has no finite gradient."""
    return soft_cross_entropy(logits, logits.float().softmax(dim=-1))


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """p_c^(1/T), normalised."""
    powers = probabilities ** (1 / temperature)
    return powers / powers.sum(dim=-1, keepdim=True)


def beta(alpha: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws of Beta(alpha, alpha)."""
    parameters = torch.full((*shape, 2), alpha, device=generator.device)
    return torch._sample_dirichlet(parameters, generator)[..., 0]


def mix(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """share * first + (1 - share) * second, with one share for each row, or one for all."""
    return torch.lerp(second, first, share.reshape(-1, *[1] * (first.ndim - 1)))


def kl_divergence(logits: Tensor, others: Tensor) -> Tensor:
    """KL(softmax(logits) || softmax(others)) of each example: (..., C) -> (...)."""
    probabilities = logits.float().softmax(dim=-1)
    return soft_cross_entropy(others, probabilities) - soft_cross_entropy(logits, probabilities)


def js_divergence(logits: Tensor) -> Tensor:
    """Between the heads, the entropy of their mean less the mean of their entropies: (H, n, C) -> (n,)."""
    probabilities, logs = logits.float().softmax(dim=-1), logits.float().log_softmax(dim=-1)
    log_mean = logs.logsumexp(dim=0) - math.log(len(logits))
    return soft_cross_entropy(log_mean, probabilities.mean(dim=0)) - soft_cross_entropy(logs, probabilities).mean(dim=0)


def full_precision(tensor: Tensor) -> torch.autocast:
    """What is computed on this tensor's device inside is not in half precision, also where autocast is on."""
    return torch.autocast(tensor.device.type, enabled=False)


def mix_pool(images: Tensor, targets: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """MixUp of every example with one drawn from the same pool, each by a share of its own of at least one half."""
    share = beta(alpha, (len(images),), generator)
    share = torch.maximum(share, 1 - share)
    other = torch.randperm(len(images), generator=generator, device=generator.device)
    return mix(images, images[other], share), mix(targets, targets[other], share)


def interleave(batches: Sequence[Tensor]) -> list[Tensor]:
    """Batches of the same sizes, of which the first has a part of every other, and they of it. Twice is not at all.

    The rows of all n batches, as far as the shortest goes, are cut into n chunks; chunk i of the first batch is
    exchanged with chunk i of batch i.
    """
    shortest = min(len(batch) for batch in batches)
    ends = [shortest * i // len(batches) for i in range(len(batches) + 1)]
    mixed = [batch.clone() for batch in batches]
    for i, (start, end) in enumerate(pairwise(ends)):
        mixed[i][start:end] = batches[0][start:end]
        mixed[0][start:end] = batches[i][start:end]
    return mixed


def interleaved_logits(net: nn.Module, batches: Sequence[Tensor], updating: int) -> list[Tensor]:
    """The logits of each batch (n, C), from one pass for each of the interleaved ones.

    Only pass number `updating` changes batch-norm's running statistics; so they are of a mixture of all batches.
    """
    logits = []
    for number, images in enumerate(interleave(batches)):
        with nullcontext() if number == updating else without_update(net):
            (of_batch,) = net(images)
        logits.append(of_batch)
    return interleave(logits)


def labelled_weak_strong(net: nn.Module, batch: Batch, weak_pass: str) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of one network on labelled images, weak and strong views; the weak ones are without gradient.

    "joint": they are in the same batch as the rest all the same; "separate": in a pass of their own before.
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
    """Batches are normalised by their own statistics, as in training, but the running ones stay as they are.

    A teacher, whose batch-norm is otherwise in eval mode, is brought into the mode of the network it is `like`.
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
    """Eval mode, with or without live dropout."""
    modes = [(module, module.training) for module in net.modules()]
    for module, _ in modes:
        module.training = dropout and isinstance(module, nn.Dropout)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def mixed_cross_entropy(logits: Tensor, targets: Tensor, order: Tensor, share: Tensor) -> Tensor:
    """What each target costs where image i was mixed with image order[i]: (n, C) -> (n,).

    The mean is that of share * H(t_i, p_i) + (1 - share) * H(t_order[i], p_i), the loss of mixup, taken apart by image:
    each image's target counts where the image stands, and where it is mixed in.
    """
    standing = soft_cross_entropy(logits, targets)
    mixed_in = soft_cross_entropy(logits, targets[order])[order.argsort()]
    return share * standing + (1 - share) * mixed_in


@contextmanager
def batch_statistics(net: nn.Module) -> Iterator[None]:
    """In eval mode too, batches are normalised by their own statistics: the running ones may lag behind the weights.

    The layers stay in their mode, so that one process may do this while others wait.
    """
    kept = [(layer, layer.running_mean, layer.running_var) for layer in batch_norms(net)]
    for layer, _, _ in kept:
        layer.running_mean = layer.running_var = None
    try:
        yield
    finally:
        for layer, mean, variance in kept:
            layer.running_mean, layer.running_var = mean, variance
