from pathlib import Path

import numpy as np
import pytest
import torch

from cotrain.evaluation.suspects import dispute, most_disputed, suspects_of
from cotrain.runs.scores import Outputs
from tests.evaluation.clusters import CLASSES, IMAGES, LABELS, clusters

SCORES = np.array([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.1, 0.8, 0.1], [0.3, 0.6, 0.1], [0.0, 0.9, 0.1]])
LABELS_OF_SCORES = np.array([0, 0, 0, 1, 2])


def test_a_label_is_disputed_by_the_log_ratio_to_the_best_other_class() -> None:
    found = dispute(SCORES, LABELS_OF_SCORES)
    assert found[:3] == pytest.approx(np.log([0.1 / 0.9, 0.7 / 0.2, 0.8 / 0.1]))


def test_the_only_label_of_a_class_is_never_disputed() -> None:
    assert dispute(SCORES, LABELS_OF_SCORES)[3:].tolist() == [-np.inf, -np.inf]


def test_at_most_a_share_of_all_labels_and_half_of_each_class_is_distrusted() -> None:
    assert most_disputed(SCORES, LABELS_OF_SCORES, 0.0).tolist() == []
    assert most_disputed(SCORES, LABELS_OF_SCORES, 0.2).tolist() == [2]
    assert most_disputed(SCORES, LABELS_OF_SCORES, 0.9).tolist() == [2]  # class 0 has three labels


def test_no_label_that_is_undisputed_is_distrusted() -> None:
    agreed = np.eye(3)[[0, 0, 1, 1]]
    assert most_disputed(agreed, np.array([0, 0, 1, 1]), 0.5).tolist() == []


def test_neighbours_find_wrong_labels(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(CLASSES), IMAGES)
    wrong = [0, IMAGES, 2 * IMAGES + 1]  # all of them labelled
    labels[wrong] = (labels[wrong] + 1) % CLASSES
    made = clusters(tmp_path, junk=0, labels=labels)
    found = most_disputed(made.known.held_out, made.known.labels, len(wrong) / (CLASSES * LABELS))
    assert made.known.rows[made.known.labelled[found]].tolist() == wrong


def outputs(probabilities: list[list[float]], labels: list[int], heads: int = 3) -> Outputs:
    logits = torch.tensor(probabilities).clamp(min=1e-6).log().expand(heads, -1, -1).contiguous()
    return Outputs(logits, torch.tensor(labels), 10 * np.arange(len(labels)))


def test_suspects_are_ranked_with_the_clear_cases_first() -> None:
    held_out = outputs([[0.99, 0.01], [0.4, 0.6], [0.995, 0.005], [0.1, 0.9], [0.9, 0.1]], [0, 0, 1, 1, 0])
    found = suspects_of(held_out, "probabilities")
    assert [one.row for one in found] == [20, 10]
    assert [one.disputed for one in found] == [True, False]
    assert (found[0].label, found[0].proposed) == (1, 0)
    assert found[0].of_proposed == pytest.approx(0.995)


def test_heads_that_disagree_make_no_clear_case() -> None:
    held_out = outputs([[0.99, 0.01], [0.995, 0.005], [0.1, 0.9]], [0, 1, 1])
    split = held_out.logits.clone()
    split[0, 1] = split[0, 1].flip(0)  # one head predicts the label
    found = suspects_of(Outputs(split, held_out.labels, held_out.rows), "probabilities")
    assert [(one.row, one.disputed) for one in found] == [(10, False)]


def test_every_label_disputed_gives_a_full_list() -> None:
    held_out = outputs([[0.001, 0.999], [0.999, 0.001]], [0, 1])
    assert len(suspects_of(held_out, "probabilities")) == 2
