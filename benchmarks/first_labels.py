"""How good the first labels are that a method gives to unlabelled images, by batch-norm's running statistics and by
those of the batch. In short runs the running ones lag behind the weights.

    python -m benchmarks.first_labels --steps 500 --seeds 0 1

Trains on digits (40 labels) until the first labelling is due. For Tri-net: the three heads' mean.
"""

import argparse
import copy
from contextlib import nullcontext

import torch
from torch import Tensor

from cotrain import open_data, recipe_named
from cotrain.config import Config
from cotrain.data import Source, draw_split
from cotrain.evaluation.outputs import head_logits
from cotrain.ops import batch_statistics, evaluating
from cotrain.training.loop import objective_of, refresh, source_of, take_step
from cotrain.training.state import State, begin, pool_of
from cotrain.types import Pool

CPU = torch.device("cpu")


def first_labelling(config: Config) -> tuple[float, float]:
    """Percent of unlabelled images that are labelled right: by running statistics, by the batch's."""
    dataset = open_data("digits")
    split = draw_split(dataset, config.data, config.run.seed)
    state, source = begin(config, dataset, split, CPU), source_of(config, dataset, split, CPU)
    objective, pool = objective_of(config, state, CPU), pool_of(dataset, split)
    rounds = config.method.refresh_steps(pool, config.optim.steps, config.unlabelled)
    if 0 in rounds:  # not a labelling yet
        refresh(config, state, pool, source)
    while state.step == 0 or state.step not in rounds:
        batch = source.batch(state.step, config.method.rates(state.memory))
        take_step(config, state, objective, batch, source.generator(state.step))

    def right(by_batch: bool) -> float:
        said = labels_of(config, copy.deepcopy(state), pool, source, by_batch)
        return 100 * (said == dataset.labels[pool.unlabelled]).double().mean().item()

    return right(False), right(True)


def labels_of(config: Config, state: State, pool: Pool, source: Source, by_batch: bool) -> Tensor:
    """What LaplaceNet's graph, or else the heads, say of the unlabelled images."""
    with evaluating(state.net), batch_statistics(state.net) if by_batch else nullcontext():
        if config.method.name == "laplacenet":
            refresh(config, state, pool, source)
            return state.memory["labels"][pool.unlabelled]
        rows = pool.unlabelled.numpy()
        return head_logits(state.net, source.images, rows, source.mean, source.std).argmax(dim=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    for name in ("trinet", "pseudo_label_arazo", "laplacenet"):
        for seed in arguments.seeds:
            changes = {"method": name, "optim.steps": arguments.steps, "run.seed": seed}
            running, own = first_labelling(recipe_named("digits").changed(changes))
            print(f"{name}, seed {seed}: {running:.1f} % right by running statistics, {own:.1f} % by the batch's")


if __name__ == "__main__":
    main()
