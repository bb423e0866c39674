"""Whether runs agree with a claim of the paper is decided by the interval of the paired differences."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from cotrain import UserError, recipe_named
from cotrain.comparison.budget import Length
from cotrain.comparison.case import CaseResult
from cotrain.comparison.claims import Claim
from cotrain.comparison.studies import STUDIES, study
from cotrain.comparison.study import StudyOptions
from cotrain.comparison.training_study import Training
from cotrain.runs.scores import Outputs
from cotrain.types import Unit
from tests.few_digits import few_digits


@pytest.mark.parametrize(
    ("lower", "higher", "verdict"),
    [
        ([10, 11, 12], [13.0, 14.1, 15.2], "agrees"),
        ([13, 14, 15], [10.0, 11.1, 12.2], "disagrees"),
        ([10, 14, 12], [13.0, 11.1, 12.2], "cannot be told"),
        ([10, 11], [13.0, 14.1], "cannot be told"),  # too few seeds
        ([10, 11, 12], [11, 12, 13], "cannot be told"),  # an interval of width 0
        ([], [], "cannot be told"),
    ],
)
def test_the_interval_decides(lower: list[float], higher: list[float], verdict: str) -> None:
    claim = Claim("Claimed", dict(enumerate(lower)), {**dict(enumerate(higher)), 99: 0.0})
    assert claim.verdict == verdict and claim.sentence.startswith(f"Claimed: {verdict} (")


def test_the_interval_is_students() -> None:
    rng = np.random.default_rng(0)
    lower, higher = rng.normal(10, 1, 10), rng.normal(12, 1, 10)
    low, high = stats.ttest_rel(lower, higher).confidence_interval(0.95)
    claim = Claim("Claimed", dict(enumerate(lower)), dict(enumerate(higher)))
    assert f"95 % interval {low:+.2f} to {high:+.2f}, n = 10" in claim.sentence


def result_of(case_number: int, study_name: str, wrong: list[float], heads: int = 3) -> CaseResult:
    """A case whose heads misclassify a share of 1,000 test images, all the same ones; one seed per share."""
    case = STUDIES[study_name]().cases(recipe_named("small32"))[case_number]
    labels = torch.zeros(1000, dtype=torch.long)
    outputs = {}
    for seed, share in enumerate(wrong):
        logits = torch.tensor([2.0, 0.0]).expand(heads, 1000, 2).clone()
        logits[:, : round(1000 * share)] = torch.tensor([0.0, 2.0])
        outputs[seed] = {"test": Outputs(logits, labels, np.arange(1000))}
    return CaseResult(case, outputs, 1, Length(1, 1.0, 1.0), "probabilities", Unit.IMAGE)


def test_the_ablation_states_every_row_of_the_paper() -> None:
    shares = [[0.10, 0.11, 0.12], [0.20, 0.22, 0.21], [0.05, 0.06, 0.08], [0.1, 0.12, 0.11], [0.1, 0.11, 0.12], []]
    found = [result_of(number, "ablation", wrong) for number, wrong in enumerate(shares)]
    claims = STUDIES["ablation"]().claims(found)
    assert [claim.verdict for claim in claims[:5]] == ["agrees", "disagrees", *["cannot be told"] * 3]
    assert [row["error"] for row in found[0].rows] == pytest.approx([10, 11, 12])
    assert claims[-1].text.startswith("Diversity comes from the strong views")


def test_calibration_compares_the_methods_at_each_temperature() -> None:
    found = [result_of(0, "calibration", [0.3, 0.31, 0.33]), result_of(1, "calibration", [0.1, 0.12, 0.11])]
    claims = {claim.text: claim.verdict for claim in STUDIES["calibration"]().claims(found)}
    assert claims["Co-training is better calibrated than FixMatch"] == "agrees"  # confidence is 88 % for both
    assert claims["FixMatch is overconfident"] == "agrees"
    assert len(STUDIES["calibration"]().rows(found)) == 2 * 2 * 3


def test_a_pretrained_network_keeps_its_steps_and_a_frozen_one_has_no_structure(tmp_path: Path) -> None:
    options = {"out": tmp_path / "out", "config": recipe_named("photos"), "settings": {"data.labels": 20}}
    options["settings"] |= {"data.test_share": 0.2}
    training = Training.of(STUDIES["ablation"](), StudyOptions(few_digits(), **options))
    assert training.comparison.base.optim.steps == recipe_named("photos").optim.steps
    with pytest.raises(UserError, match="lite0 is frozen up to features; it needs a network that learns"):
        study("structure", few_digits(), **options)
    assert not (tmp_path / "out").exists()
