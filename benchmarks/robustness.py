"""Folders as they are: junk among the unlabelled images, unequal classes, wrong labels.

    python -m benchmarks.robustness junk imbalance labels --data DATA --out robustness.jsonl [--quick]

DATA holds cifar10.npz, cifar100.npz, svhn.npz, plantvillage/ and miniimagenet/. Every condition is trained once per
seed on the same bank (recipe `photos`, or with --quick the short training of `cotrain label`), and tested on test
images of the classes. Results are appended as they come; what is there already is not repeated. `--develop` uses the
seeds from 10 on and the unlabelled training images, to choose a default. `benchmarks.robustness_table` makes the page.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from benchmarks.photographs import DEVELOPMENT, rows
from benchmarks.spoiled import Real, Rows, mislabelled, per_class, prepared
from cotrain.audit.neighbours import pooled
from cotrain.audit.outliers import by_neighbours, training_p_values
from cotrain.audit.suspects import dispute
from cotrain.config import Config
from cotrain.data import Dataset, Split
from cotrain.evaluation.outputs import head_logits
from cotrain.fitting.baseline import logistic_net
from cotrain.fitting.crossvalidation import folds_of
from cotrain.labelling.learning import quick
from cotrain.ops import ensemble_probabilities
from cotrain.training.experiment import Experiment
from cotrain.training.loop import trained_net

CPU = torch.device("cpu")
SHARES, RATIOS, WRONG = (0.0, 0.25, 0.5, 0.75), (1, 10, 50), (0.0, 0.1, 0.2, 0.3)
FOLDER = {"cifar10": 1_200, "plantvillage": 900}  # unlabelled images, junk included
FEW = 4  # labels per class
MORE = {"cifar10": 10, "plantvillage": 5}  # labels per class, some of them wrong
TRUST = 0.8
PLAIN = {"robust.false_alarms": 0.0}
LOGISTIC = "logistic regression"
Row = dict[str, Any]
Job = tuple[dict[str, Any], Callable[[], Row]]  # what identifies it, and how it is done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="+", choices=[*EXPERIMENTS])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", default=["cifar10", "plantvillage"])
    parser.add_argument("--out", type=Path, default=Path("robustness.jsonl"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, as in fit; use a file of its own")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--develop", action="store_true")
    asked = parser.parse_args()
    changes = dict(change.split("=", 1) for change in asked.set)
    first = DEVELOPMENT if asked.develop else 0
    done = [{key: row.get(key) for key in KEYS} for row in rows(asked.out)]
    for name in asked.sets:
        real = prepared(name, asked.data, Console())
        real = replace(real, config=real.config.changed(changes))
        for seed in range(first, first + asked.seeds):
            trial = Trial(real, seed, short=asked.quick, develop=asked.develop)
            for experiment in asked.experiments:
                for what, work in EXPERIMENTS[experiment](trial):
                    key = {"experiment": experiment, "data": name, "seed": seed, "short": asked.quick, **what}
                    if key in done:
                        continue
                    row = {**key, **work()}
                    with open(asked.out, "a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(row, flush=True)


KEYS = ("experiment", "data", "seed", "short", "level", "method")


class Trial:
    """One seed on one set."""

    def __init__(self, real: Real, seed: int, *, short: bool, develop: bool) -> None:
        self.real, self.seed, self.short, self.develop = real, seed, short, develop
        self.rng = np.random.default_rng((seed, 5))

    def config(self, **changes: Any) -> Config:
        config = self.real.config.changed({"run.seed": self.seed, **changes})
        if not self.short:
            return config
        return quick(config, self.seed).changed({"robust.false_alarms": config.robust.false_alarms})

    def outputs(self, config: Config, split: Split, of: Rows, dataset: Dataset | None = None) -> torch.Tensor:
        experiment = Experiment(config, dataset or self.real.dataset, split, CPU)
        return head_logits(trained_net(experiment), experiment.inputs, of)

    def logistic(self, split: Split, of: Rows, dataset: Dataset | None = None) -> torch.Tensor:
        experiment = Experiment(self.config(), dataset or self.real.dataset, split, CPU)
        return head_logits(logistic_net(experiment), experiment.inputs, of)

    def judged(self, split: Split) -> Rows:
        held = np.setdiff1d(np.intersect1d(self.real.good, split.unlabelled), split.labelled)
        return held if self.develop else self.real.dataset.test

    def errors(self, predicted: np.ndarray, of: Rows, rarest: int | None = None) -> Row:
        labels = self.real.labels[of]
        recalls = {index: float((predicted == labels)[labels == index].mean()) for index in np.unique(labels).tolist()}
        found = {
            "error": 100 * float((predicted != labels).mean()),
            "balanced": 100 - 100 * np.mean([*recalls.values()]),
        }
        if rarest is not None:
            found["rarest"] = 100 * recalls[rarest]
        return {name: round(float(value), 3) for name, value in found.items()}


def confidence(logits: torch.Tensor) -> np.ndarray:
    """The highest probability of the ensemble."""
    return ensemble_probabilities(logits, "probabilities").max(dim=-1).values.numpy()


def classes_of(logits: torch.Tensor) -> np.ndarray:
    return ensemble_probabilities(logits, "probabilities").argmax(dim=-1).numpy()


def junk(trial: Trial) -> Iterator[Job]:
    """A folder of a fixed number of unlabelled images, of which a share is junk."""
    real, size = trial.real, FOLDER[trial.real.dataset.name]
    labelled = per_class(real, real.good, FEW, trial.rng)
    good, strange = trial.rng.permutation(np.setdiff1d(real.good, labelled)), trial.rng.permutation(real.junk)
    for share in SHARES:
        count = round(share * size)
        split = real.split(labelled, np.concatenate([good[: size - count], strange[:count]]))
        of = trial.judged(split)

        def trained(changes: dict[str, Any], split: Split = split, of: Rows = of) -> Row:
            return trial.errors(classes_of(trial.outputs(trial.config(**changes), split, of)), of)

        def scores(split: Split = split) -> Row:
            return aurocs(trial, split)

        yield {"level": share, "method": "with the filter"}, lambda f=trained: f({})
        yield {"level": share, "method": "without the filter"}, lambda f=trained: f(PLAIN)
        yield {"level": share, "method": "fixmatch"}, lambda f=trained: f({"method": "fixmatch", **PLAIN})
        yield (
            {"level": share, "method": LOGISTIC},
            lambda split=split, of=of: trial.errors(classes_of(trial.logistic(split, of)), of),
        )
        if count:
            yield {"level": share, "method": "scores"}, scores


def aurocs(trial: Trial, split: Split) -> Row:
    """Area under the ROC curve of junk against the other unlabelled images, and the false alarms at 10 %."""
    known = Experiment(trial.config(), trial.real.dataset, split, CPU).neighbours
    rows, bank = np.setdiff1d(split.unlabelled, split.labelled), trial.real.dataset.kind.bank
    assert bank is not None
    strange = trial.real.labels[rows] < 0
    p_values = training_p_values(known, by_neighbours(known), bank, rows)
    likeness = np.sort(pooled_unit(trial, rows) @ pooled_unit(trial, np.array(split.labelled)).T, axis=1)
    heads = confidence(trial.outputs(trial.config(**PLAIN), split, rows))
    logistic = confidence(trial.logistic(split, rows))
    found = {"ours": p_values, "nearest labelled": likeness[:, -1], "probability of the heads": heads}
    found["probability of logistic regression"] = logistic
    areas = {name: round(float(roc_auc_score(strange, -value)), 4) for name, value in found.items()}
    return {"auroc": areas, "false_alarms": round(float((p_values[~strange] <= 0.1).mean()), 4)}


def pooled_unit(trial: Trial, of: Rows) -> np.ndarray:
    bank = trial.real.dataset.kind.bank
    assert bank is not None
    features = pooled(bank, of)
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def imbalance(trial: Trial) -> Iterator[Job]:
    """CIFAR-10 cut down to geometric class sizes; PlantVillage as it is. The labels are a random sample."""
    real, classes = trial.real, len(trial.real.dataset.classes)
    sizes = np.bincount(real.labels[real.good], minlength=classes)
    order = trial.rng.permutation(classes)
    for ratio in RATIOS if real.dataset.name == "cifar10" else ("as it is",):
        wanted = sizes.copy()
        if isinstance(ratio, int):
            wanted[order] = np.maximum(sizes.min() * float(ratio) ** -(np.arange(classes) / (classes - 1)), 3)
        rarest = int(np.argmin(wanted)) if ratio != 1 else int(order[-1])
        pool = per_class(real, real.good, wanted, trial.rng)
        labels = np.maximum(np.round(FEW * classes * wanted / wanted.sum()), 1).astype(np.int64)
        split = real.split(per_class(real, pool, labels, trial.rng), pool)
        of = trial.judged(split)

        def trained(changes: dict[str, Any], split: Split = split, of: Rows = of, rarest: int = rarest) -> Row:
            return trial.errors(classes_of(trial.outputs(trial.config(**changes), split, of)), of, rarest)

        def weighted(split: Split = split, of: Rows = of, rarest: int = rarest) -> Row:
            features, own = pooled_unit(trial, of), np.array(split.labelled)
            model = LogisticRegression(C=100.0, class_weight="balanced", max_iter=1000)
            model.fit(pooled_unit(trial, own), real.labels[own])
            return trial.errors(model.predict(features), of, rarest)

        for shares in ("unknown", "estimate", "equal"):
            yield (
                {"level": ratio, "method": f"shares {shares}"},
                lambda f=trained, shares=shares: f({"robust.class_shares": shares}),
            )
        yield {"level": ratio, "method": "fixmatch"}, lambda f=trained: f({"method": "fixmatch", **PLAIN})
        yield {"level": ratio, "method": f"class-weighted {LOGISTIC}"}, weighted


def labels(trial: Trial) -> Iterator[Job]:
    """A share of the labels is replaced by others, drawn at random."""
    real = trial.real
    labelled = per_class(real, real.good, MORE[real.dataset.name], trial.rng)
    split = real.split(labelled, real.good)
    of = trial.judged(split)
    for share in WRONG:
        dataset, wrong = mislabelled(real, labelled, share, np.random.default_rng((trial.seed, 6)))

        def trained(changes: dict[str, Any], dataset: Dataset = dataset) -> Row:
            return trial.errors(classes_of(trial.outputs(trial.config(**changes), split, of, dataset)), of)

        yield {"level": share, "method": "all labels"}, lambda f=trained: f({})
        yield {"level": share, "method": f"--trust-labels {TRUST}"}, lambda f=trained: f({"robust.trust_labels": TRUST})
        yield (
            {"level": share, "method": LOGISTIC},
            lambda dataset=dataset: trial.errors(classes_of(trial.logistic(split, of, dataset)), of),
        )
        if share:
            yield (
                {"level": share, "method": "suspects"},
                lambda dataset=dataset, wrong=wrong: precisions(trial, dataset, split, wrong),
            )


def precisions(trial: Trial, dataset: Dataset, split: Split, wrong: Rows) -> Row:
    """How many of the first k suspects are wrong labels, where k is the number of wrong labels."""
    from cleanlab.rank import order_label_issues  # only for this comparison

    config, held, found = trial.config(), [], []
    for fold in folds_of(split, dataset.labels, 4, 1, trial.seed):
        held.append(fold.held)
        found.append(trial.outputs(config, fold.split, fold.held, dataset))
    rows, given = np.concatenate(held), dataset.labels.numpy()[np.concatenate(held)]
    probabilities = ensemble_probabilities(torch.cat(found, dim=1), "probabilities").numpy()
    known = Experiment(config, dataset, split, CPU).neighbours
    places = known.rows[known.labelled]
    everything = np.ones(len(rows), bool)
    lists = {
        "ours": rows[np.argsort(-dispute(probabilities, given), kind="stable")],
        "neighbours": places[np.argsort(-dispute(known.held_out, known.labels), kind="stable")],
        **{
            f"cleanlab, {rank}": rows[order_label_issues(everything, given, probabilities, rank_by=rank)]
            for rank in ("self_confidence", "normalized_margin")
        },
    }
    return {
        "precision": {name: round(float(np.isin(each[: len(wrong)], wrong).mean()), 4) for name, each in lists.items()}
    }


EXPERIMENTS: dict[str, Callable[[Trial], Iterator[Job]]] = {"junk": junk, "imbalance": imbalance, "labels": labels}


if __name__ == "__main__":
    main()
