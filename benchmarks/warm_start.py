"""Is it better to start co-training from the labelled-only baseline than from random weights? For choosing a default.

    python -m benchmarks.warm_start cifar10.npz --labels 1000 --out runs/warm/cifar10-1000
    python -m benchmarks.warm_start svhn.npz --labels 1000 --set augment.flip=false --out runs/warm/svhn-1000

Errors are those on the unlabelled training images, never on the test images, with a seed that no result uses. A stopped
command continues where it was.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import cotrain
from benchmarks.photographs import DEVELOPMENT, markdown
from cotrain.runs.run import Run

STARTS: dict[str, dict[str, Any]] = {"baseline": {}, "random": {"run.warm_start": False, "run.baseline": False}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--labels", type=int, required=True)
    parser.add_argument("--seed", type=int, default=DEVELOPMENT)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, as in fit")
    asked = parser.parse_args()
    settings = {"model.backbone": "wrn-10-1", "data.labels": asked.labels, "data.valid_share": 0, "run.report": False}
    settings |= {"run.seed": asked.seed} | dict(change.split("=", 1) for change in asked.set)
    for start, changes in STARTS.items():
        out = asked.out / start
        cotrain.fit(asked.data, out=out, settings=None if out.exists() else settings | changes, resume=out.exists())
    errors = {f"co-training, {start} weights": error(asked.data, asked.out / start, "method") for start in STARTS}
    errors = {"labelled-only": error(asked.data, asked.out / "baseline", "labelled_only"), **errors}
    print(
        markdown(["model", "error on unlabelled images, %"], [[name, f"{each:.2f}"] for name, each in errors.items()])
    )


def error(data: str, folder: Path, use: str) -> float:
    dataset, split = cotrain.open_data(data), Run.open(folder).split
    rows = np.setdiff1d(split.unlabelled, split.labelled)
    predicted = cotrain.load(folder, use=use).predict(dataset.images[rows]).probabilities.argmax(axis=1)
    return 100 * float(np.mean(predicted != dataset.labels.numpy()[rows]))


if __name__ == "__main__":
    main()
