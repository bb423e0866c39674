"""Which model `predict` uses if unlabelled images do harm, judged on validation images."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import cotrain
from cotrain import Dataset
from cotrain.cli.result_table import result_table
from cotrain.methods.mhct import MultiHeadCoTraining
from cotrain.pipeline.fit import better_model
from cotrain.report.page import write_report
from cotrain.runs.run import Run
from cotrain.types import Batch, Learner, Losses


@pytest.fixture(scope="module")
def harmed(toy: Dataset, tmp_path_factory: pytest.TempPathFactory) -> cotrain.Fitted:
    """Co-training learns to confuse the two classes; the labelled-only baseline does not."""
    learn = MultiHeadCoTraining.loss

    def confused(self: MultiHeadCoTraining, learner: Learner, batch: Batch) -> Losses:
        return learn(self, learner, replace(batch, y=1 - batch.y))

    settings = {"optim.steps": 30, "optim.labelled": 8, "optim.unlabelled": 16, "optim.lr": 0.03, "run.report": False}
    settings |= {"data.valid_share": 0.3, "data.labels": 20}
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


def test_the_table_and_the_page_say_so(harmed: cotrain.Fitted, toy: Dataset) -> None:
    run = Run.open(harmed.folder)
    table = result_table(run, harmed.result)
    assert str(table.title).startswith("Result: labelled-only")
    write_report(run, toy)
    page = " ".join((harmed.folder / "report.html").read_text(encoding="utf-8").split())
    assert "On the validation images," in page and "<code>cotrain predict</code> uses it" in page


def test_only_a_clear_difference_counts() -> None:
    found = {"against": "labelled_only", "word": "hurt"}
    assert better_model(None, found) == "labelled_only"
    assert better_model(None, found | {"word": "no clear difference"}) == "method"
    assert better_model(None, None) == "method"
    assert better_model({"against": None}, found) == "method", "cross-validation decides where there is one"
