"""What the tests of single methods share: a small network, a batch of noise, and losses recomputed in numpy."""

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cotrain.model import MultiHead
from cotrain.model.families.wrn import wrn
from cotrain.ops import batch_norms
from cotrain.types import Batch, Learner, Losses, Method, Pool

Array = NDArray[np.float64]
ROWS = 40  # of the data set that the batches are drawn from


def a_batch(method: Method, labelled: int = 6, unlabelled: int = 12, channels: int = 3, classes: int = 3) -> Batch:
    rng = torch.Generator().manual_seed(0)
    views, shape = method.views, (channels, 8, 8)
    return Batch(
        x=torch.randn(labelled, *shape, generator=rng),
        y=torch.arange(labelled) % classes,
        labelled_rows=torch.arange(labelled),
        weak=torch.randn(views.weak, unlabelled, *shape, generator=rng),
        strong=torch.randn(views.strong, unlabelled, *shape, generator=rng),
        unlabelled_rows=torch.arange(labelled, labelled + unlabelled),
    )


def a_net(method: Method, seed: int = 3, channels: int = 3, classes: int = 3) -> MultiHead:
    """Batch-norm frozen, so that images of one batch do not see each other; sure of some images, not of all."""
    torch.manual_seed(seed)
    backbone = wrn(10, 1, channels=channels, classes=classes, extra=method.extra)
    net = MultiHead.cut(backbone, method.heads, after=method.share or "paper")
    for module in net.modules():
        if isinstance(module, nn.Linear) and module.out_features == classes:
            module.weight.data *= 6
    return net.eval()


def a_learner(
    method: Method, net: nn.Module, teacher: nn.Module | None = None, step: int = 5, **memory: Any
) -> Learner:
    classes = 3 if not isinstance(net, MultiHead) or net.classes is None else net.classes
    rows = torch.arange(ROWS)
    laid_out = method.init(Pool(rows[:6], rows[:6] % classes, rows, ROWS, classes))
    return Learner(net, teacher or net, step, 10, torch.Generator().manual_seed(1), {**laid_out, **memory})


def probabilities(net: nn.Module, images: Tensor) -> Array:
    """Of a network with one head, by hand."""
    with torch.no_grad():
        return softmax(net(images)[0].double().numpy())


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def cross_entropy(targets: Array | Tensor, predicted: Array) -> Array:
    """Of each example: of its class, or of its soft target."""
    if isinstance(targets, Tensor):
        targets = np.eye(predicted.shape[-1])[targets.numpy()]
    return -(targets * np.log(predicted)).sum(axis=-1)


def changed(batch: Batch, **parts: Tensor) -> Batch:
    return Batch(**{**vars(batch), **parts})


def unlabelled(losses: Losses) -> Tensor:
    """All terms but the supervised one, weighted as in the total."""
    others = [term.weight * term.value for name, term in losses.terms.items() if name != "supervised"]
    return torch.stack(others).sum()


def gradients(loss: Tensor, net: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(net.parameters()), allow_unused=False))


def statistics(net: nn.Module) -> list[Tensor]:
    """Batch-norm's running statistics, in order."""
    return [buffer.clone() for layer in batch_norms(net) for buffer in layer.buffers()]


def updated_by_labelled_images_alone(method: Method) -> bool:
    """Whether a step of training leaves the running statistics that a pass of the labelled images would leave."""
    batch, net = a_batch(method), a_net(method).train()
    alone, teacher, before = copy.deepcopy(net), copy.deepcopy(net), statistics(net)
    alone(batch.x)
    method.loss(a_learner(method, net, teacher.eval()), batch)
    assert not any(layer.training for layer in batch_norms(teacher)), "the teacher is left in its own mode"
    assert all(map(torch.equal, statistics(teacher), before))
    return all(map(torch.equal, statistics(net), statistics(alone)))
