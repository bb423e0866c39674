"""What `cotrain data check` finds in the features of a pretrained network, before any training."""

from collections.abc import Iterator, Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from cotrain.audit.near_duplicates import Pair, across, contradicting, near_duplicates
from cotrain.audit.neighbours import Neighbours
from cotrain.audit.outliers import by_neighbours, share_of_strangers, smallest_rate, training_p_values
from cotrain.audit.shares import estimate_shares
from cotrain.data import Dataset
from cotrain.training.experiment import Experiment

LISTED = 5  # examples per line
QUICK = 2_000  # images whose features are computed without asking
SUSPICIOUS = 0.1  # share of images of no class from which on there is a warning
RARE = 0.02  # estimated share of a rare class, at most


def features_table(experiment: Experiment) -> Table:
    table = Table("found in the features", "count", "examples", title="Before training", title_justify="left")
    table.columns[1].justify = "right"
    rows = [*_pairs(experiment), *_strangers(experiment)]
    for what, count, examples in rows:
        table.add_row(what, count, Text("\n".join(examples)))
    if not rows:
        table.add_row("nothing unusual", "", "")
    return table


Line = tuple[str, str, Sequence[str]]


def _pairs(experiment: Experiment) -> Iterator[Line]:
    dataset, split, bank = experiment.dataset, experiment.split, experiment.kind.bank
    assert bank is not None
    rows = np.sort(np.concatenate([split.trained_on, np.array([*split.valid, *split.test], np.int64)]))
    pairs = near_duplicates(bank, rows, dataset.hashes)
    if pairs:
        yield "near-duplicates", f"{len(pairs):,}", [_words(dataset, pair) for pair in pairs[:LISTED]]
    if wrong := contradicting(pairs, dataset.labels.numpy()):
        yield (
            "near-duplicates with different labels",
            f"{len(wrong):,}",
            [_words(dataset, one) for one in wrong[:LISTED]],
        )
    if len(leaked := across(pairs, split.trained_on, np.asarray(split.test, np.int64))):
        names = [name_of(dataset, row) for row in leaked[:LISTED].tolist()]
        yield "test images with a near-duplicate in training", f"{len(leaked):,}", names


def _strangers(experiment: Experiment) -> Iterator[Line]:
    dataset, split, bank = experiment.dataset, experiment.split, experiment.kind.bank
    assert bank is not None
    unlabelled = np.setdiff1d(split.unlabelled, split.labelled).astype(np.int64)
    if not len(unlabelled):
        return
    known = experiment.neighbours
    p_values = training_p_values(known, by_neighbours(known), bank, unlabelled)
    share = share_of_strangers(p_values, len(known.labelled))
    if share >= SUSPICIOUS:
        strangest = unlabelled[np.argsort(p_values, kind="stable")[:LISTED]]
        names = [name_of(dataset, row) for row in strangest.tolist()]
        yield "unlabelled images that seem to belong to no class", f"about {100 * share:.0f} %", names
    usual = unlabelled[p_values > smallest_rate(len(known.labelled))]
    yield from _rare(dataset, known, np.isin(known.rows, usual if len(usual) else unlabelled))


def _rare(dataset: Dataset, known: Neighbours, usual: np.ndarray) -> Iterator[Line]:
    """The labelled images and their neighbours are all that is known before training: a rough estimate."""
    shares = estimate_shares(known.labels, known.held_out_guesses, known.guesses[usual], len(dataset.classes))
    rare = [index for index in np.argsort(shares.share) if shares.high[index] <= RARE]
    if rare:
        words = [f"{dataset.classes[index]}: {100 * shares.share[index]:.1f} %" for index in rare[:LISTED]]
        yield f"rare classes, up to {100 * RARE:.0f} % of the unlabelled images", f"{len(rare):,}", words


def name_of(dataset: Dataset, row: int) -> str:
    return dataset.paths[row] if dataset.paths else f"row {row}"


def _words(dataset: Dataset, pair: Pair) -> str:
    def labelled(row: int) -> str:
        label = int(dataset.labels[row])
        return name_of(dataset, row) + (f" ({dataset.classes[label]})" if label >= 0 else "")

    return f"{labelled(pair.first)} ~ {labelled(pair.second)}, {pair.likeness:.2f}"
