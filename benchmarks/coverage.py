"""How far the error that `fit` estimates without test images can be trusted.

    python -m benchmarks.coverage cifar10.npz plantvillage --labels 4 --seeds 10 --out coverage.jsonl

For every data set and seed, the recipe `photos` trains with a few labels per class and estimates its error by
cross-validation over them. The estimate is compared with the error of the final model on test images.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.photographs import CPU, prepared, rows
from cotrain.data import draw_split
from cotrain.evaluation.outputs import head_logits, score
from cotrain.fitting.crossvalidation import cross_validate
from cotrain.runs.run import Run
from cotrain.training.experiment import Experiment
from cotrain.training.loop import trained_net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("coverage.jsonl"))
    parser.add_argument("--labels", type=int, default=4, help="per class")
    parser.add_argument("--seeds", type=int, default=10)
    asked = parser.parse_args()
    console = Console()
    done = {(row["data"], row["labels"], row["seed"]) for row in rows(asked.out)}
    for source in asked.data:
        wanted = [seed for seed in range(asked.seeds) if (Path(source).stem, asked.labels, seed) not in done]
        dataset, base = prepared(source, {}, console) if wanted else (None, None)
        for seed in wanted:
            assert dataset is not None and base is not None
            config = base.changed({"data.labels": asked.labels * len(dataset.classes), "run.seed": seed})
            split = draw_split(dataset, config.data, seed)
            with tempfile.TemporaryDirectory() as folder:
                experiment = Experiment(config, dataset, split, CPU)
                checked = cross_validate(Run.create(Path(folder) / "run", config, split), experiment, console)
            assert checked is not None
            net = trained_net(experiment)
            held = np.asarray(split.test)
            logits = head_logits(net, experiment.inputs, held)
            true = score(logits, dataset.labels[held], config.run.ensemble).error
            row = {"data": Path(source).stem, "labels": asked.labels, "seed": seed, "true": true}
            row |= checked[0].model_dump()
            with open(asked.out, "a") as file:
                file.write(json.dumps(row) + "\n")
    for name in sorted({row["data"] for row in rows(asked.out)}):
        found = [row for row in rows(asked.out) if row["data"] == name and row["labels"] == asked.labels]
        ours = [row["errors"]["method"] for row in found]
        covered = sum(one["low"] <= row["true"] <= one["high"] for one, row in zip(ours, found, strict=True))
        bias = np.mean([one["error"] - row["true"] for one, row in zip(ours, found, strict=True)])
        width = np.mean([one["high"] - one["low"] for one in ours])
        print(
            f"{name}, {asked.labels} labels per class: {covered} of {len(found)} intervals cover the test error; "
            f"estimate - test error: {bias:+.1f} points on average; width {width:.0f} points"
        )


if __name__ == "__main__":
    main()
