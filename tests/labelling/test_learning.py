"""What a page model learns: the same from the same labels, nothing from strangers, and honest estimates."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from scipy.stats import beta
from scipy.stats import entropy as scipy_entropy
from torch import Tensor

from cotrain import from_arrays
from cotrain.config.recipes import recipe_named
from cotrain.data import Dataset, Split
from cotrain.labelling import estimating
from cotrain.labelling.estimating import HeldOut, advice, audit_point, calibrated, extended, held_out
from cotrain.labelling.learning import Known, PageModel, Point, Snapshot, interactive_config, quick
from cotrain.networks import build_trunk
from cotrain.training.experiment import Prepared
from cotrain.types import UserError
from tests.labelling.learned import CLASSES, LEARNS, a_page_model, answered, estimated, truth, without_row
from tests.trunk.tiny import pictures, small_data


@pytest.fixture(scope="module")
def model() -> PageModel:
    return a_page_model()


def trained(model: PageModel, known: Known, earlier: Snapshot | None = None, *, estimate: bool = False) -> Snapshot:
    snapshot = model.train(known, earlier)
    assert snapshot is not None
    return estimated(model, known, snapshot) if estimate else snapshot


def same(one: Snapshot, other: Snapshot) -> bool:
    """Bit for bit, apart from the time."""
    pairs = [
        (getattr(one, each.name), getattr(other, each.name)) for each in fields(Snapshot) if each.name != "seconds"
    ]
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)


def test_a_dozen_labels_teach_the_rest(model: PageModel) -> None:
    snapshot = trained(model, answered(model, model.first(12)))
    right = snapshot.probabilities.argmax(axis=1) == model.dataset.labels.numpy()
    assert right.mean() > 0.9
    assert snapshot.labels == 12
    assert snapshot.probabilities.shape == (90, 3)
    assert np.allclose(snapshot.probabilities.sum(axis=1), 1, atol=1e-5)
    assert snapshot.heads.shape == (3, 90)
    assert (snapshot.heads == snapshot.probabilities.argmax(axis=1)).mean() > 0.9


def test_the_same_labels_give_the_same_snapshot_whatever_came_before(model: PageModel) -> None:
    known = answered(model, range(20))
    first = trained(model, known, estimate=True)
    trained(model, answered(model, range(40, 70)))
    torch.manual_seed(5)
    assert same(trained(model, known, estimate=True), first)
    assert same(trained(a_page_model(), known, estimate=True), first)
    assert not same(trained(model, answered(model, range(1, 21)), estimate=True), first)


def test_two_labelled_classes_are_needed(model: PageModel) -> None:
    of_one = [row for row, label in truth(model.dataset, range(30)).items() if label == 1]
    for known in (Known({}, {}), Known(CLASSES, {}, frozenset({3})), answered(model, of_one)):
        assert model.train(known) is None


def test_a_class_without_labels_is_never_predicted(model: PageModel) -> None:
    labels = {row: (2 if label == 1 else 0) for row, label in answered(model, range(20)).labels.items() if label < 2}
    snapshot = trained(model, Known({0: "red", 1: "nothing yet", 2: "green"}, labels), estimate=True)
    assert snapshot.probabilities.shape == (90, 3)
    assert not snapshot.probabilities[:, 1].any()
    assert set(np.unique(snapshot.heads)) <= {0, 2}
    named = (truth(model.dataset, range(20, 90))).items()
    right = [snapshot.probabilities[row].argmax() == (2 if label == 1 else 0) for row, label in named if label < 2]
    assert np.mean(right) > 0.9


def test_an_unreadable_image_has_no_prediction_and_is_not_asked_for() -> None:
    whole = a_page_model().dataset
    model = PageModel(Prepared(LEARNS, without_row(whole, 5)))
    snapshot = trained(model, answered(model, range(6, 30)))
    assert not snapshot.probabilities[5].any()
    assert (snapshot.heads[:, 5] == -1).all()
    assert 5 not in model.first(1000)
    assert 5 not in model.ranking(None, Known(CLASSES, {}))


def test_test_images_and_strangers_do_not_teach() -> None:
    model = a_page_model(train=40, test=10)
    tests = model.dataset.test.tolist()
    known = answered(model, [*range(15), *tests])
    data = model.training_set(replace(known, strangers=frozenset({30, 31})))
    assert data.split.labelled == tuple(range(15))
    assert data.split.unlabelled == tuple(row for row in range(40) if row not in (30, 31))
    assert (data.dataset.labels.numpy()[15:] == -1).all(), "no other label is even there"


def test_the_labels_of_the_dataset_are_not_used(model: PageModel) -> None:
    shuffled = replace(model.dataset, labels=torch.zeros_like(model.dataset.labels), classes=("x",))
    known = answered(model, range(20))
    other = PageModel(Prepared(LEARNS, shuffled))
    assert same(trained(other, known, estimate=True), trained(model, known, estimate=True))


def fake_trainer(seen: list[set[int]]) -> estimating.Train:
    """Predicts class 0 for even rows and 1 for odd ones, and remembers what it was trained on."""

    def train(dataset: Dataset, split: Split, rows: np.ndarray) -> Tensor:
        assert not set(rows.tolist()) & set(split.labelled)
        seen.append(set(split.labelled))
        return torch.nn.functional.one_hot(torch.from_numpy(rows % 2), 2).float().expand(3, -1, -1) * 5

    return train


def test_every_label_is_predicted_once_by_heads_that_have_not_seen_it() -> None:
    labels = {row: row % 2 for row in range(24)} | {4: 1, 9: 0, 11: 0}  # three that the trainer gets wrong
    dataset = replace(small_data(30, 0, 0), labels=torch.tensor([labels.get(row, -1) for row in range(30)]))
    split = Split(
        name="", source=None, fingerprint="", labelled=tuple(labels), unlabelled=tuple(range(30)), valid=(), test=()
    )
    seen: list[set[int]] = []
    *earlier, found = held_out(fake_trainer(seen), dataset, split, "probabilities", seed=0)
    assert [len(one.rows) for one in earlier] == [0, 6, 12, 18]
    assert sorted(found.rows) == list(range(24))
    assert [labels[row] for row in found.rows] == found.labels.tolist()
    assert len(seen) == 4
    assert (found.probabilities.argmax(axis=1) != found.labels.numpy()).sum() == 3


def outputs(labels: int, sharpness: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits (1, n, 4) that are too confident by the factor `sharpness`, and labels drawn from the true chances."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, 1.5, (labels, 4)))
    chances = logits.softmax(dim=-1).numpy()
    return sharpness * logits[None], torch.tensor([int(rng.choice(4, p=each)) for each in chances])


def test_the_expected_error_is_that_of_calibrated_probabilities() -> None:
    (own, labels), (others, truths) = outputs(400, 2.5), outputs(4000, 2.5, seed=1)
    fit = calibrated(HeldOut(tuple(range(400)), own, labels, "probabilities"), others[0].softmax(dim=-1), seed=0)
    assert fit is not None
    assert fit.temperature == pytest.approx(2.5, rel=0.15)
    measured = 100 * float((others[0].argmax(dim=-1) != truths).double().mean())
    assert fit.error == pytest.approx(measured, abs=4)
    assert fit.low <= fit.error <= fit.high
    assert fit.high - fit.low < 12
    few = HeldOut(tuple(range(9)), own[:, :9], labels[:9], "probabilities")
    assert calibrated(few, others[0].softmax(dim=-1), seed=0) is None


def test_the_interval_of_the_expected_error_covers_it_nine_times_of_ten() -> None:
    truth = outputs(3000, 2.0, seed=999)[0][0]
    expected = 100 * (1 - float((truth / 2).softmax(dim=-1).amax(dim=-1).mean()))
    covered = []
    for seed in range(40):
        own, labels = outputs(60, 2.0, seed)
        fit = calibrated(HeldOut(tuple(range(60)), own, labels, "probabilities"), truth.softmax(dim=-1), seed)
        assert fit is not None
        covered.append(fit.low <= expected <= fit.high)
    assert np.mean(covered) >= 0.85


def test_the_estimate_holds_though_hard_images_were_labelled(model: PageModel) -> None:
    rows = model.first(12)
    snapshot = trained(model, answered(model, rows))
    rows += model.next(snapshot, answered(model, rows), frozenset(), 18)
    late = trained(model, answered(model, rows), snapshot, estimate=True)
    unlabelled = np.setdiff1d(model.dataset.train, rows)
    guesses = late.probabilities[unlabelled].argmax(axis=1)
    measured = 100 * (guesses != model.dataset.labels.numpy()[unlabelled]).mean()
    (point,) = late.curve
    assert (point.labels, point.by) == (30, "cross-validation")
    assert point.low <= point.error <= point.high
    assert abs(point.error - measured) < 15


def test_probabilities_are_as_confident_as_held_out_labels_allow(model: PageModel) -> None:
    rng = np.random.default_rng(0)
    right = answered(model, range(60))
    wrong = {row: int(rng.integers(3)) if row % 2 else label for row, label in right.labels.items()}
    clear, noisy = (trained(model, Known(CLASSES, labels), estimate=True) for labels in (right.labels, wrong))
    unfitted = trained(model, Known(CLASSES, wrong))
    assert 1 <= clear.temperature < unfitted.temperature < noisy.temperature
    assert np.array_equal(noisy.probabilities.argmax(axis=1), unfitted.probabilities.argmax(axis=1)), "same guesses"
    assert noisy.probabilities.max(axis=1).mean() < unfitted.probabilities.max(axis=1).mean()
    later = trained(model, Known(CLASSES, wrong), noisy)
    assert later.temperature == noisy.temperature, "until the next estimate"


def test_doubt_is_the_entropy_of_the_ensemble(model: PageModel) -> None:
    snapshot = trained(model, answered(model, range(30)), estimate=True)
    plain = snapshot.probabilities.astype(np.float64) ** snapshot.temperature
    plain /= plain.sum(axis=1, keepdims=True)
    assert np.allclose(snapshot.doubt, scipy_entropy(plain, axis=1), atol=1e-3)


def test_too_few_labels_have_no_estimate(model: PageModel) -> None:
    snapshot = trained(model, answered(model, range(6)), estimate=True)
    assert snapshot.curve == ()
    assert snapshot.paying is None
    assert "30" in snapshot.advice


def test_the_audit_has_the_exact_interval_over_recent_answers() -> None:
    answers = {row: row >= 40 for row in range(47)} | {row: row % 5 > 0 for row in range(47, 90)}
    recent = [*answers.values()][-50:]
    wrong, images = recent.count(False), len(recent)
    point = audit_point(Known(CLASSES, dict.fromkeys(range(30), 0), audit=answers))
    assert point is not None
    assert (point.labels, point.error, point.by) == (30, pytest.approx(100 * wrong / images), "audit")
    assert point.low == pytest.approx(100 * beta.ppf(0.025, wrong, images - wrong + 1))
    assert point.high == pytest.approx(100 * beta.ppf(0.975, wrong + 1, images - wrong))
    assert audit_point(Known(CLASSES, {})) is None


def test_points_are_added_to_the_curve_once(model: PageModel) -> None:
    first, second = (Point(labels, 20.0, 10.0, 30.0, "cross-validation") for labels in (20, 30))
    audit, later = Point(20, 5.0, 1.0, 9.0, "audit"), Point(30, 5.0, 1.0, 9.0, "audit")
    curve = extended((), first, audit, None, second, later)
    assert curve == (first, audit, second), "an audit without new answers is not a new point"
    assert extended(curve, replace(second, error=18.0))[-1].error == 18.0
    assert len(extended(curve, replace(second, error=18.0))) == 3


def test_the_curve_and_the_advice_are_carried_on(model: PageModel) -> None:
    early = trained(model, answered(model, range(20)), estimate=True)
    between = trained(model, answered(model, range(25)), early)
    assert (between.curve, between.paying, between.advice) == (early.curve, early.paying, early.advice)
    assert "next estimate" in trained(model, answered(model, range(30)), early).advice, "not that 30 are needed"
    late = trained(model, replace(answered(model, range(40)), audit={80: True}), between, estimate=True)
    assert [(point.labels, point.by) for point in late.curve] == [
        (20, "cross-validation"),
        (40, "audit"),
        (40, "cross-validation"),
    ]


@pytest.mark.parametrize(
    ("changed", "by_chance", "paying"), [(1.9, 0.0, False), (2.1, 0.0, True), (12.0, 9.0, True), (12.0, 11.0, False)]
)
def test_labels_pay_while_they_change_predictions(changed: float, by_chance: float, paying: bool) -> None:
    found = advice(60, changed, by_chance)
    assert found.paying is paying
    assert f"The last 20 labels changed the guess for {changed} % of the images" in found.words
    assert found.words.endswith(".")


def test_labels_stop_paying_on_clear_classes_and_not_when_they_bring_news(model: PageModel) -> None:
    clear = trained(model, answered(model, range(60)), estimate=True)
    assert clear.paying is False
    labels = answered(model, range(60)).labels
    late = [row for row, label in labels.items() if label == 2]  # a class that the first labels do not know
    ordered = {row: label for row, label in labels.items() if label < 2} | dict.fromkeys(late, 2)
    news = trained(model, Known(CLASSES, ordered), estimate=True)
    assert news.paying is True


def test_a_quick_training_is_never_longer_than_the_usual_one() -> None:
    photos = recipe_named("photos")
    short = photos.changed({"optim.steps": 10, "optim.labelled": 4, "optim.unlabelled": 8})
    assert quick(photos, 3).optim.steps < photos.optim.steps
    assert quick(photos, 3).run.seed == 3
    assert quick(photos, 0).method == photos.method
    assert quick(short, 0).optim == short.optim


def test_small_grey_images_are_labelled_on_features_too() -> None:
    grey = from_arrays(pictures(8)[..., 0], np.arange(8) % 2, name="grey")
    assert build_trunk(interactive_config(grey, {}), 2, grey.shape) is not None
    assert interactive_config(small_data(), {"model.backbone": "tiny"}).model.backbone == "tiny"


def test_features_are_needed() -> None:
    with pytest.raises(UserError, match=r"frozen.*wrn-10-1 has none.*lite0"):
        PageModel(Prepared(recipe_named("small32"), small_data()))


def test_a_label_is_enough_for_each_of_two_classes(model: PageModel) -> None:
    snapshot = trained(model, answered(model, [0, 1]), estimate=True)
    assert snapshot.curve == ()
    assert len(model.next(snapshot, answered(model, [0, 1]), frozenset(), 7)) == 7


def test_plain_features_are_enough_for_the_first_questions() -> None:
    dataset = small_data(60, 0, 0, seed=9)  # a bank of its own
    model = PageModel(Prepared(LEARNS, dataset, augmented=False))
    assert len(model.first(5)) == 5
