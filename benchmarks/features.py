"""Few labels on features: co-training with views of features, against what scikit-learn offers.

    python -m benchmarks.features digits breast_cancer wine iris text cifar10.npz svhn.npz plantvillage

For every set, number of labels per class and seed, each method trains once on the same labelled and unlabelled rows and
is tested once on the test rows. Results are appended to a file as they come; what is there already is not repeated.
`--table` prints them as Markdown.

To choose a default, measure on other seeds and on the unlabelled training rows, never on the test rows:

    python -m benchmarks.features digits wine --develop --methods mhct --set features.noise=1 --out one.jsonl
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from benchmarks.feature_sets import Rows, feature_set
from cotrain.comparison.statistics import paired, spread
from cotrain.config.defaults import configured
from cotrain.data import DataSettings, draw_split, from_features
from cotrain.evaluation.outputs import head_logits, score
from cotrain.fitting.baseline import logistic_net
from cotrain.training.experiment import Experiment
from cotrain.training.loop import trained_net

LOGISTIC, OURS = "logistic_regression", "co-training"
DEVELOPMENT = 10  # the first seed of experiments that choose a default
CPU = torch.device("cpu")
Predict = Callable[[NDArray], NDArray]


def scikit_learns(name: str, x: NDArray, y: NDArray[np.int64], seed: int) -> Predict:
    """Fitted on standardised features; -1 in y for unlabelled rows."""
    logistic = LogisticRegression(max_iter=1000)
    models = {
        "self_training": (SelfTrainingClassifier(logistic), y > -2),
        "label_spreading": (LabelSpreading(kernel="knn", max_iter=100), y > -2),
        "random_forest": (RandomForestClassifier(random_state=seed), y >= 0),
        "gradient_boosting": (GradientBoostingClassifier(random_state=seed), y >= 0),
    }
    model, rows = models[name]
    scale = StandardScaler().fit(x)
    return make_pipeline(scale, model.fit(scale.transform(x[rows]), y[rows])).predict


SCIKIT = ("self_training", "label_spreading", "random_forest", "gradient_boosting")
METHODS = (LOGISTIC, *SCIKIT, "fixmatch", OURS)


def trial(
    rows: Rows, per_class: int, seed: int, name: str, changes: Mapping[str, Any], *, on_test: bool
) -> dict[str, Any]:
    classes = int(rows.y.max()) + 1
    dataset = from_features(rows.x, rows.y, test=(rows.test_x, rows.test_y))
    split = draw_split(dataset, DataSettings(labels=per_class * classes), seed)
    asked = np.asarray(split.test) if on_test else np.setdiff1d(split.unlabelled, split.labelled)
    truth = dataset.labels.numpy()[asked]
    began, cpu = time.monotonic(), time.process_time()
    if name in SCIKIT:
        known = np.full(len(rows.y), -1)
        known[list(split.labelled)] = rows.y[list(split.labelled)]
        predict = scikit_learns(name, rows.x, known, seed)
        seconds = time.process_time() - cpu
        error = 100 * float(np.mean(predict(np.concatenate([rows.x, rows.test_x])[asked]) != truth))
    else:
        method = {} if name in (OURS, LOGISTIC) else {"method": name}
        config = configured(dataset, None, "paper", {"run.seed": seed, **method, **changes})
        experiment = Experiment(config, dataset, split, CPU)
        net = logistic_net(experiment) if name == LOGISTIC else trained_net(experiment)
        seconds = time.process_time() - cpu
        logits = head_logits(net.eval(), experiment.inputs, asked)
        error = score(logits, dataset.labels[asked], config.run.ensemble).error
    return {
        "method": name,
        "seed": seed,
        "error": round(error, 3),
        "cpu_seconds": round(seconds, 2),
        "seconds": round(time.monotonic() - began, 2),
        "rows": len(rows.y),
        "columns": rows.x.shape[1],
        "tested": len(asked),
        "classes": classes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("features.jsonl"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--labels", type=int, nargs="*", default=[5, 10], help="per class")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, as in fit; use a file of its own")
    parser.add_argument("--develop", action="store_true", help="seeds from 10 on, measured on unlabelled rows")
    parser.add_argument("--table", action="store_true", help="print the table only")
    asked = parser.parse_args()
    if not asked.table:
        changes = dict(change.split("=", 1) for change in asked.set)
        done = {key(row) for row in rows_of(asked.out)}
        first = DEVELOPMENT if asked.develop else 0
        for seed in range(first, first + asked.seeds):
            for source in asked.data:
                for labels, method in [(labels, method) for labels in asked.labels for method in asked.methods]:
                    job = (Path(source).stem, labels, seed, method)
                    if job in done:
                        continue
                    row = trial(feature_set(source), labels, seed, method, changes, on_test=not asked.develop)
                    with open(asked.out, "a") as file:
                        file.write(json.dumps({"data": job[0], "labels": labels, **row}) + "\n")
                    print(*job, row["error"], row["cpu_seconds"], flush=True)
    print(table([*rows_of(asked.out)]))


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["data"], row["labels"], row["seed"], row["method"]


def table(rows: list[dict[str, Any]]) -> str:
    """For each number of labels: the errors, the paired differences from co-training, and CPU seconds."""
    parts = []
    for labels in dict.fromkeys(row["labels"] for row in rows):
        of_labels = [row for row in rows if row["labels"] == labels]
        parts.append(f"{labels} labels per class: error in percent\n\n{grid(of_labels, errors)}")
        parts.append(f"{labels} labels per class: co-training minus the method, points\n\n{grid(of_labels, against)}")
        parts.append(f"{labels} labels per class: CPU seconds of one fit\n\n{grid(of_labels, cpu_seconds)}")
    return "\n\n".join(parts)


def grid(rows: list[dict[str, Any]], cell: Callable[..., str]) -> str:
    """One line per method, one column per set."""
    sets, methods = (list(dict.fromkeys(row[name] for row in rows)) for name in ("data", "method"))
    lines = [f"| method | {' | '.join(sets)} |", "|---" * (len(sets) + 1) + "|"]
    for method in methods:
        of_sets = [[row for row in rows if row["data"] == data] for data in sets]
        cells = [cell([row for row in some if row["method"] == method], some) for some in of_sets]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def errors(own: list[dict[str, Any]], every: list[dict[str, Any]]) -> str:
    return spread([row["error"] for row in own])


def against(own: list[dict[str, Any]], every: list[dict[str, Any]]) -> str:
    ours = {row["seed"]: row["error"] for row in every if row["method"] == OURS}
    return paired({row["seed"]: row["error"] for row in own if row["method"] != OURS}, ours)


def cpu_seconds(own: list[dict[str, Any]], every: list[dict[str, Any]]) -> str:
    return f"{np.mean([row['cpu_seconds'] for row in own]):.2f}" if own else ""


if __name__ == "__main__":
    main()
