"""Second looks: wrong labels are found, and strangers come first."""

import numpy as np
import pytest
import torch

from cotrain.labelling.estimating import HeldOut
from cotrain.labelling.learning import Known
from cotrain.labelling.second_looks import disputed_labels, still_disputed, stranger_scores
from cotrain.labelling.snapshot import Disputed
from tests.labelling.learned import CLASSES, a_page_model, a_snapshot, answered, estimated


def test_wrong_labels_are_disputed_and_the_right_class_is_proposed() -> None:
    page_model = a_page_model()
    known = answered(page_model, range(60))
    mistakes = {7: (known.labels[7] + 1) % 3, 20: (known.labels[20] + 2) % 3, 41: (known.labels[41] + 1) % 3}
    said = Known(CLASSES, {**known.labels, **mistakes})
    snapshot = page_model.train(said)
    assert snapshot is not None
    snapshot = estimated(page_model, said, snapshot)
    found = {(one.row, one.label, one.proposed) for one in snapshot.disputed}
    assert found <= {(row, label, known.labels[row]) for row, label in mistakes.items()}, "no right label is disputed"
    assert len(found) >= 2
    corrected = snapshot.disputed[0].row
    later = page_model.train(Known(CLASSES, {**known.labels, **mistakes, corrected: known.labels[corrected]}), snapshot)
    assert later is not None
    assert later.disputed == snapshot.disputed[1:], "a corrected label is no longer disputed"


def test_right_labels_are_not_disputed() -> None:
    page_model = a_page_model()
    known = answered(page_model, range(60))
    snapshot = page_model.train(known)
    assert snapshot is not None
    assert estimated(page_model, known, snapshot).disputed == ()


def held_out(labels: list[int], *heads: list[list[float]]) -> HeldOut:
    """Outputs with these probabilities, (H, n, C)."""
    logits = torch.tensor(heads).clamp(min=1e-9).log()
    return HeldOut(tuple(range(10, 10 + len(labels))), logits, torch.tensor(labels), "probabilities")


def test_a_dispute_needs_all_heads_the_usual_probability_and_an_unlikely_label() -> None:
    labels = [0] * 6 + [1] * 6
    sure, doubtful, unusual = [0.01, 0.99, 0.0], [0.1, 0.9, 0.0], [0.01, 0.6, 0.39]
    outputs = [sure, doubtful, unusual, *[[0.8, 0.2, 0.0]] * 3, *[[0.2, 0.8, 0.0]] * 6]
    (one,) = disputed_labels(held_out(labels, outputs, outputs, outputs))
    assert (one.row, one.label, one.proposed, one.probability) == (10, 0, 1, pytest.approx(0.99)), "the sure one"
    other = [[0.0, 0.4, 0.6], *outputs[1:]]
    assert disputed_labels(held_out(labels, outputs, outputs, other)) == (), "a head disagrees"
    nothing = HeldOut((), torch.zeros(1, 0, 2), torch.zeros(0, dtype=torch.int64), "probabilities")
    assert disputed_labels(nothing) == ()


def test_the_clearest_dispute_comes_first() -> None:
    outputs = [[0.015, 0.985], [0.005, 0.995], *[[0.3, 0.7]] * 3]
    found = disputed_labels(held_out([0, 0, 1, 1, 1], outputs, outputs))
    assert [one.row for one in found] == [11, 10]


def test_disputes_follow_their_classes_through_renaming_and_merging() -> None:
    snapshot = a_snapshot(disputed=(Disputed(3, 0, 1, 0.9), Disputed(4, 0, 2, 0.8)))
    moved = Known({2: "blue", 0: "crimson"}, {3: 0, 4: 0})  # green is gone, and red has another name
    assert still_disputed(snapshot, moved) == (Disputed(4, 0, 2, 0.8),)
    assert still_disputed(snapshot, Known(CLASSES, {3: 1, 4: 0})) == (Disputed(4, 0, 2, 0.8),)
    assert still_disputed(None, moved) == ()


def test_images_unlike_all_labelled_ones_are_strangers_and_found_ones_show_others() -> None:
    rng = np.random.default_rng(0)
    centres = np.eye(4)[np.repeat([0, 1, 2, 3], [20, 20, 3, 3])]  # two classes, two kinds of strangers
    points = (centres + 0.05 * rng.normal(size=(46, 4))).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    labelled = np.array([0, 1, 2, 3, 20, 21, 22, 23])
    scores = stranger_scores(points, labelled, np.array([], np.int64))
    assert set(np.argsort(-scores)[:6]) == set(range(40, 46))
    after = stranger_scores(points, labelled, np.array([40]))
    assert after[[41, 42]].min() > after[43:].max(), "those like a known stranger come first"
    assert after[:40].max() < after[40:].min()


def test_a_labelled_image_is_compared_with_the_others() -> None:
    points = np.array([[1, 0], [1, 0], [1, 0], [1, 0], [0, 1]], np.float32)
    scores = stranger_scores(points, np.arange(5), np.array([], np.int64))
    assert scores.argmax() == 4


@pytest.mark.parametrize("rows", [[0], [0, 1, 2]])
def test_few_labels_are_enough_for_scores(rows: list[int]) -> None:
    points = np.eye(3, dtype=np.float32)
    assert np.isfinite(stranger_scores(points, np.array(rows), np.array([], np.int64))).all()
