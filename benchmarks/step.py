"""One training step of WRN-28-2 against the same step as the released code computes it: `python -m benchmarks.step`.

The released computation: one NCHW batch of labelled, weak and strong images, all of it carried through backward, an
optimiser and an average that go tensor by tensor. Weights, images and settings are the same; repetitions alternate.
"""

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cotrain.ema import Average
from cotrain.methods.mhct import MultiHeadCoTraining
from cotrain.model import MultiHead, wrn
from cotrain.optim import sgd
from cotrain.types import Batch, Learner

LABELLED, UNLABELLED, HEADS = 16, 112, 3
REPETITIONS = 5
OPTIM = {"lr": 0.03, "momentum": 0.9, "weight_decay": 5e-4}


def random_batch(size: int = 32) -> Batch:
    """Views as the source makes them: channels last in memory."""
    torch.manual_seed(0)

    def views(*shape: int) -> Tensor:
        return torch.randn(*shape, size, size, 3).movedim(-1, -3)

    labels = torch.randint(10, (LABELLED,))
    rows, index = torch.arange(LABELLED), torch.arange(UNLABELLED)
    return Batch(views(LABELLED), labels, rows, views(1, UNLABELLED), views(HEADS, UNLABELLED), index)


def our_step(net: MultiHead, batch: Batch, weak_pass: str) -> Callable[[], float]:
    net = copy.deepcopy(net).channels_last().train()
    average, optimizer = Average(net, 0.999, warmup=False), sgd(net, **OPTIM)
    method = MultiHeadCoTraining(normaliser="batch", reduction="sum", weak_pass=weak_pass)
    learner = Learner(net, average.net, 0.0, torch.Generator(), {})

    def step() -> float:
        losses = method.loss(learner, batch)
        loss = losses.supervised + losses.unsupervised
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(net, 0)
        return loss.item()

    return step


def released_step(net: MultiHead, batch: Batch) -> Callable[[], float]:
    net = copy.deepcopy(net).to(memory_format=torch.contiguous_format).train()
    averaged = copy.deepcopy(net)
    optimizer = sgd(net, **OPTIM)
    for group in optimizer.param_groups:
        group["foreach"] = False
    everything = torch.cat([batch.x, batch.weak[0], *batch.strong]).contiguous()

    def step() -> float:
        shared, *strong = net.trunk(everything).split([LABELLED + UNLABELLED] + [UNLABELLED] * HEADS)
        logits = [head(torch.cat([shared, view])) for head, view in zip(net.heads, strong, strict=True)]
        labelled, weak, own = zip(*(output.split([LABELLED, UNLABELLED, UNLABELLED]) for output in logits), strict=True)
        guesses = [output.detach().argmax(dim=-1) for output in weak]
        loss = sum(F.cross_entropy(output, batch.y) for output in labelled)
        for head, output in enumerate(own):
            first, second = (guess for other, guess in enumerate(guesses) if other != head)
            loss = loss + (F.cross_entropy(output, first, reduction="none") * (first == second)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(averaged.parameters(), net.parameters(), strict=True):
                kept.mul_(0.999).add_(new, alpha=0.001)
            for kept, new in zip(averaged.buffers(), net.buffers(), strict=True):
                kept.copy_(new)
        return loss.item()

    return step


def rows(repetitions: int = REPETITIONS) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    net, batch = MultiHead.cut(wrn(28, 2, channels=3, classes=10), HEADS), random_batch()
    steps = {
        "released computation": released_step(net, batch),
        "ours, joint weak pass": our_step(net, batch, "joint"),
        "ours, separate weak pass": our_step(net, batch, "separate"),
    }
    first = {name: step() for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repetitions):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            times[name].append(1000 * (time.perf_counter() - began))
    released = times["released computation"]
    return [
        {
            "step": name,
            "first_loss": first[name],
            "min_ms": min(times[name]),
            "median_ms": statistics.median(times[name]),
            "ratio": min(released) / min(times[name]),
            "ratio_of_medians": statistics.median(released) / statistics.median(times[name]),
        }
        for name in steps
    ]


def main() -> None:
    for row in rows():
        print(
            "  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{value:26}" for key, value in row.items())
        )


if __name__ == "__main__":
    main()
