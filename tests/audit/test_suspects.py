import numpy as np
import pytest
import torch

from cotrain.audit.suspects import dispute, label_weights, probability_right, softened, suspects_of
from cotrain.runs.scores import Outputs

SCORES = np.array([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.1, 0.8, 0.1], [0.3, 0.6, 0.1], [0.0, 0.9, 0.1]])
LABELS_OF_SCORES = np.array([0, 0, 0, 1, 2])


def test_a_label_is_disputed_by_the_log_ratio_to_the_best_other_class() -> None:
    found = dispute(SCORES, LABELS_OF_SCORES)
    assert found[:3] == pytest.approx(np.log([0.1 / 0.9, 0.7 / 0.2, 0.8 / 0.1]))


def test_the_only_label_of_a_class_is_never_disputed() -> None:
    assert dispute(SCORES, LABELS_OF_SCORES)[3:].tolist() == [-np.inf, -np.inf]


def test_the_probability_that_a_label_is_right_is_bayes_rule_over_the_true_classes() -> None:
    trust, classes = 0.8, SCORES.shape[1]
    for scores, label, found in zip(
        SCORES, LABELS_OF_SCORES, probability_right(SCORES, LABELS_OF_SCORES, trust), strict=True
    ):
        joint = [scores[true] * (trust if true == label else (1 - trust) / (classes - 1)) for true in range(classes)]
        assert found == pytest.approx(joint[label] / sum(joint))


def test_probabilities_are_softened_until_the_labels_are_most_probable() -> None:
    confident = np.array([[0.99, 0.01]] * 10)
    labels = np.array([0] * 7 + [1] * 3)
    assert softened(confident, labels, 1.0)[:, 0] == pytest.approx(0.7, abs=0.02)
    assert softened(confident, labels, 0.7)[:, 0].min() > 0.99  # as many are disputed as are expected to be wrong


def disputed(right: int, wrong: int, classes: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities that recognise every image, labels of which `wrong` per class are wrong, and which these are."""
    true = np.repeat(np.arange(classes), right + wrong)
    is_wrong = np.tile(np.arange(right + wrong) < wrong, classes)
    probabilities = 0.9 * np.eye(classes)[true] + 0.1 / classes
    return probabilities, np.where(is_wrong, (true + 1) % classes, true), is_wrong


def test_wrong_labels_count_less_and_right_ones_keep_their_weight() -> None:
    probabilities, labels, wrong = disputed(right=8, wrong=2)
    found = label_weights(probabilities, labels, 0.8)
    assert found[wrong].max() < 0.1
    assert found[~wrong].min() > 1
    assert np.bincount(labels, found) == pytest.approx([10] * 4)  # every class counts as before


def test_undisputed_labels_all_count_the_same() -> None:
    probabilities, labels, _ = disputed(right=5, wrong=0)
    assert label_weights(probabilities, labels, 0.8) == pytest.approx(1)


def test_a_class_of_disputed_labels_counts_as_much_as_any() -> None:
    probabilities, labels, _ = disputed(right=5, wrong=0)
    probabilities[labels == 0] = probabilities[labels == 1]
    assert label_weights(probabilities, labels, 0.8) == pytest.approx(1)


@pytest.mark.parametrize("trust", [0.01, 0.5, 0.9, 1.0])
def test_weights_are_finite_even_if_every_label_is_disputed_or_alone(trust: float) -> None:
    impossible, alone = 1 - np.eye(2), np.array([0, 1])
    assert label_weights(impossible, alone, trust) == pytest.approx(1)
    found = label_weights(impossible[[0, 0, 1]], np.array([0, 0, 1]), trust)
    assert np.isfinite(found).all() and found.sum() == pytest.approx(3)


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
