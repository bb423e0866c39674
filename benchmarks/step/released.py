"""A step as the paper's released code computes it, with the same weights and images.

It has one NCHW batch of labelled, weak and strong images, all of which go through the backward pass. Pillow makes the
views image by image, and the optimiser and the averaged weights (EMA) go tensor by tensor.
"""

import copy
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.step.pillow import normalised_by_pillow, recipes
from cotrain.augment import Draw
from cotrain.data import Source
from cotrain.data.inputs import ImageInputs
from cotrain.training.experiment import Experiment
from cotrain.training.optim import learning_rate, set_learning_rate


class PillowSource(Source):
    """The same batches, prepared one step ahead as usual, with views made by Pillow."""

    def _render(self, images: Tensor, own_rows: NDArray[np.int64], draw: Draw) -> Tensor:
        views = normalised_by_pillow(images, own_rows, recipes(draw), self.policy, self.mean, self.std)
        return views.to(self.device)


def released_steps(experiment: Experiment) -> Callable[[int], dict[str, float]]:
    config, state, inputs = experiment.config, experiment.start().state, experiment.inputs
    assert isinstance(inputs, ImageInputs)
    optim, heads = config.optim, config.method.heads
    if heads < 3:
        raise ValueError("the released code needs at least three heads")
    source = PillowSource(inputs, experiment.pool, experiment.drawing, experiment.device)
    net = state.net.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    averaged, batches = copy.deepcopy(net), source.batches(0, optim.steps)
    for group in state.optimizer.param_groups:
        group["foreach"] = False

    def step() -> Tensor:
        batch = next(batches)
        images = torch.cat([batch.x, batch.weak[0], *batch.strong]).contiguous()
        shared, *strong = net.trunk(images).split([optim.labelled + config.unlabelled] + [config.unlabelled] * heads)
        logits = [head(torch.cat([shared, view])) for head, view in zip(net.heads, strong, strict=True)]
        sizes = [optim.labelled, config.unlabelled, config.unlabelled]
        labelled, weak, own = zip(*(output.split(sizes) for output in logits), strict=True)
        guesses = [output.detach().argmax(dim=-1) for output in weak]
        loss = torch.stack([F.cross_entropy(output, batch.y) for output in labelled]).sum()
        for head, output in enumerate(own):
            first, *others = (guess for other, guess in enumerate(guesses) if other != head)
            agreed = torch.stack([first == other for other in others]).all(dim=0)
            loss = loss + (F.cross_entropy(output, first, reduction="none") * agreed).mean()
        set_learning_rate(state.optimizer, learning_rate(optim.lr, state.step, optim.steps))
        state.optimizer.zero_grad()
        loss.backward()
        state.optimizer.step()
        state.step += 1
        with torch.no_grad():
            for kept, new in zip(averaged.parameters(), net.parameters(), strict=True):
                kept.mul_(optim.ema).add_(new, alpha=1 - optim.ema)
            for kept, new in zip(averaged.buffers(), net.buffers(), strict=True):
                kept.copy_(new)
        return loss

    def work(steps: int) -> dict[str, float]:
        for _ in range(steps):
            loss = step()
        return {"loss": loss.item()}

    return work
