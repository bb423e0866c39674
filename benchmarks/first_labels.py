"""How accurate a method's first pseudo-labels are, with batch-norm's running statistics and with those of the batch.

    python -m benchmarks.first_labels --steps 500 --seeds 0 1

In short runs the running statistics lag behind the weights. This trains on digits (40 labels) until the first
labelling is due. For Tri-net the result is the mean over its three heads. The first phases of the other two are longer
here than by default, where they would be a step or two in a short run.
"""

import argparse
import copy
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from cotrain import open_data, recipe_named
from cotrain.config import Config
from cotrain.data import draw_split
from cotrain.evaluation.outputs import head_logits
from cotrain.ops import batch_statistics, evaluating
from cotrain.training.experiment import Experiment
from cotrain.training.step import Training

CPU = torch.device("cpu")
FIRST_PHASES = {
    "trinet": {},
    "pseudo_label_arazo": {"method.warmup": 10 / 410},
    "laplacenet": {"method.supervised_share": 0.1},
}


def first_labelling(config: Config) -> tuple[float, float]:
    """Percent of unlabelled images that get the right label: with running statistics, and with the batch's."""
    dataset = open_data("digits")
    split = draw_split(dataset, config.data, config.run.seed)
    training = Experiment(config, dataset, split, CPU).start()
    state, rounds, unlabelled = training.state, training.refresh_steps, training.pool.unlabelled
    if 0 in rounds:  # not a labelling yet
        training.refresh()
    while state.step == 0 or state.step not in rounds:
        training.update(training.source.batch(state.step, config.method.rates(state.memory)))

    def accuracy(by_batch: bool) -> float:
        predicted = labels_of(replace(training, state=copy.deepcopy(state)), by_batch)
        return 100 * (predicted == dataset.labels[unlabelled]).double().mean().item()

    return accuracy(False), accuracy(True)


def labels_of(training: Training, by_batch: bool) -> Tensor:
    """The labels that LaplaceNet's graph, or the heads of another method, give to the unlabelled images."""
    state, unlabelled = training.state, training.pool.unlabelled
    with evaluating(state.net), batch_statistics(state.net) if by_batch else nullcontext():
        if training.config.method.name == "laplacenet":
            training.refresh()
            return state.memory["labels"][unlabelled]
        return head_logits(state.net, training.source.inputs, unlabelled.numpy()).argmax(dim=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    for name, longer in FIRST_PHASES.items():
        for seed in arguments.seeds:
            changes = {"method": name, **longer, "optim.steps": arguments.steps, "run.seed": seed}
            running, own = first_labelling(recipe_named("digits").changed(changes))
            print(f"{name}, seed {seed}: {running:.1f} % right with running statistics, {own:.1f} % with the batch's")


if __name__ == "__main__":
    main()
