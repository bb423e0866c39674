"""Which model `predict` uses if unlabelled images do harm, judged on validation images."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import cotrain
from cotrain import Dataset
from cotrain.cli.result_table import result_table
from cotrain.config.defaults import configured_for_fit
from cotrain.data import draw_split
from cotrain.evaluation.verdict import how_better
from cotrain.fitting.summary import better_model
from cotrain.methods.mhct import MultiHeadCoTraining
from cotrain.report.page import write_report
from cotrain.runs.log import read_log
from cotrain.runs.result import CrossValidation, EstimatedError, OnTest, Result, Verdict, Word
from cotrain.runs.run import Run
from cotrain.types import Batch, Learner, Losses, Unit


@pytest.fixture(scope="module")
def harmed(toy: Dataset, tmp_path_factory: pytest.TempPathFactory) -> cotrain.Fitted:
    """Co-training learns to confuse the two classes; the labelled-only baseline does not."""
    learn = MultiHeadCoTraining.loss

    def confused(self: MultiHeadCoTraining, learner: Learner, batch: Batch) -> Losses:
        return learn(self, learner, replace(batch, y=1 - batch.y))

    settings = {"optim.steps": 30, "optim.labelled": 8, "optim.unlabelled": 16, "optim.lr": 0.03, "run.report": False}
    settings |= {"data.valid_share": 0.3, "data.labels": 20, "run.baseline_factor": 1.5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiHeadCoTraining, "loss", confused)
        config, out = cotrain.recipe_named("digits"), tmp_path_factory.mktemp("harmed") / "run"
        return cotrain.fit(toy, out=out, config=config, settings=settings)


def test_the_labelled_only_model_is_used_if_it_is_clearly_better(harmed: cotrain.Fitted, toy: Dataset) -> None:
    assert harmed.result["used"] == "labelled_only"
    images = toy.images[toy.test]
    used, method, baseline = (
        cotrain.load(harmed.folder, use=use).predict(images).probabilities
        for use in ("better", "method", "labelled_only")
    )
    np.testing.assert_array_equal(used, baseline)
    assert not np.array_equal(used, method)
    right = torch.from_numpy(used.argmax(axis=1)) == toy.labels[toy.test]
    assert 100 * (1 - right.double().mean().item()) == pytest.approx(harmed.result["labelled_only_error"])


def test_the_baseline_is_as_long_as_asked(harmed: cotrain.Fitted) -> None:
    run = Run.open(harmed.folder)
    logs = [read_log(folder / run.log_path.name) for folder in (run.folder, run.baseline_folder)]
    assert [rows[-1]["step"] for rows in logs] == [30, 45]


def test_the_table_and_the_page_say_so(harmed: cotrain.Fitted, toy: Dataset) -> None:
    run = Run.open(harmed.folder)
    table = result_table(run, harmed.result)
    assert "(labelled-only heads) is clearly better on the validation images" in str(table.title)
    assert "validation error" in table.columns[0]._cells
    write_report(run, toy)
    page = " ".join((harmed.folder / "report.html").read_text(encoding="utf-8").split())
    assert "is clearly better on the validation images, so <code>cotrain predict</code> uses it" in page


def validated(word: Word, difference: float) -> Verdict:
    numbers = {"labelled_only": 10.0, "error": 10.0 + difference, "low": difference - 1, "high": difference + 1}
    return Verdict(**numbers, difference=difference, word=word)


def test_on_features_only_a_clear_difference_counts() -> None:
    found = validated("hurt", 4.0)
    assert better_model(None, found) == "labelled_only"
    assert better_model(None, validated("no clear difference", 4.0)) == "method"
    assert better_model(None, None) == "method"
    error = EstimatedError(error=4.0, low=1.0, high=9.0)
    checked = CrossValidation(images=12, folds=4, repeats=1, errors={"method": error}, against=None)
    assert better_model(checked, found) == "method", "cross-validation decides where there is one"


@pytest.mark.parametrize(("difference", "used"), [(0.5, "labelled_only"), (0.0, "method"), (-0.5, "method")])
def test_from_scratch_fewer_mistakes_are_enough(difference: float, used: str) -> None:
    found = validated("no clear difference", difference)
    assert better_model(None, found, from_scratch=True) == used
    result = Result(test=OnTest(error=None), validation=found)
    assert how_better(result, Unit.IMAGE) == "better on the validation images"


def made(known: int, unknown: int, *, classes: int = 10, test: int = 0, valid: int = 0) -> Dataset:
    """Grey images of 8x8 pixels, `known` of them labelled, classes of equal size."""

    def part(count: int) -> tuple[np.ndarray, np.ndarray] | None:
        images = np.random.default_rng(count).integers(0, 256, (count, 8, 8, 1), np.uint8)
        return (images, np.arange(count) % classes) if count else None

    images, labels = part(known + unknown) or (None, None)
    assert images is not None and labels is not None
    labels[known:] = -1
    return cotrain.from_arrays(images, labels, test=part(test), valid=part(valid))


@pytest.mark.parametrize(
    ("dataset", "changes", "valid"),
    [
        (made(1000, 500, test=50), {}, 200),
        (made(1000, 500), {}, 160),  # a fifth was set aside for testing
        (made(6000, 0, test=50), {"data.labels": 1000}, 500),
        (made(1200, 0, test=50), {"data.labels": 1000}, 200),  # the labels that training does not use
        (made(1000, 0, test=50), {"data.labels": 1000}, 0),
        (made(400, 2000, test=50), {}, 0),  # too few labels to spare any
        (made(1000, 500, test=50, valid=30), {}, 30),
        (made(1000, 500, test=50), {"data.valid_share": 0.0}, 0),
        (made(1000, 500, test=50), {"run.baseline": False}, 0),  # nothing to compare with
        (made(1000, 500, test=50), {"method": "supervised"}, 0),
    ],
)
def test_labels_that_can_be_spared_are_set_aside(dataset: Dataset, changes: dict[str, object], valid: int) -> None:
    config = configured_for_fit(dataset, None, "paper", {"model.backbone": "wrn-10-1", **changes}, None)
    split = draw_split(dataset, config.data, seed=0)
    assert len(split.valid) == pytest.approx(valid, abs=10)
    assert bool(split.valid) == bool(valid)


def test_a_class_keeps_the_labels_that_it_needs() -> None:
    dataset = made(2000, 0, test=50)
    dataset.labels[dataset.train[dataset.labels[dataset.train] == 3][100:]] = 4  # 100 images of class 3 remain
    config = configured_for_fit(dataset, None, "paper", {"model.backbone": "wrn-10-1", "data.labels": 1000}, None)
    assert config.data.valid_share == 0
    assert len(draw_split(dataset, config.data, seed=0).labelled) == 1000


def test_chosen_settings_stay() -> None:
    dataset, chosen = made(1000, 500, test=50), {"model.backbone": "wrn-10-1"}
    small32 = cotrain.recipe_named("small32")
    assert configured_for_fit(dataset, small32, "paper", {}, None).data.valid_share == 0
    given = draw_split(dataset, small32.data, seed=0)
    assert configured_for_fit(dataset, None, "paper", chosen, given).data.valid_share == 0
    assert configured_for_fit(dataset, None, "paper", {"model.backbone": "lite0"}, None).data.valid_share == 0
