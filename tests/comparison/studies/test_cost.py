"""The paper's cost table."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from cotrain import UserError, recipe_named
from cotrain.comparison.race import Timing
from cotrain.comparison.studies import cost, study
from cotrain.comparison.studies.cost import EFFORTS, NETWORKS, Cost, read_measured


def timings(slow: dict[str, float]) -> Any:
    """What `race` would return for steps that take so many seconds."""

    def race(tasks: dict[str, Any], turns: int) -> dict[str, Timing]:
        width = 8 if next(iter(tasks.values())).config["model"]["backbone"] == "wrn-28-8" else 2
        return {name: Timing([width * slow[name]] * turns, 1.0, {}, {}) for name in tasks}

    return race


def test_the_cost_is_the_papers_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "race", timings({"original": 3.0, "three models": 6.6, "ours": 3.9}))
    rows = list(csv.DictReader(study("cost", out=tmp_path / "out").csv.splitlines()))
    assert [row["parameters M"] for row in rows] == ["1.47", "4.40", "3.70", "23.40", "70.20", "19.96"]
    assert [row["network"] for row in rows] == ["WRN 28-2"] * 3 + ["WRN 28-8"] * 3
    assert [row["paper M"] for row in rows] == ["1.4", "4.2", "3.7", "23.4", "70.2", "19.9"]
    assert [row["paper min"] for row in rows] == ["30", "66", "39", "136", "344", "168"]
    assert [row["/ original"] for row in rows] == ["1.00", "2.20", "1.30"] * 2
    assert [row["paper / original"] for row in rows] == ["1.00", "2.20", "1.30", "1.00", "2.53", "1.24"]
    assert [row["s / step"] for row in rows] == ["6", "13.2", "7.8", "24", "52.8", "31.2"]
    assert rows[0]["min / 10,000"] == "1,000"
    with Image.open(tmp_path / "out" / "figure.png") as picture:
        assert picture.width > 900
    page = (tmp_path / "out" / "study.md").read_text()
    batch = "optim.labelled 4, not 64; optim.unlabelled 28, not 448; another machine"
    assert f"Differs from the paper: {batch} (the paper used a V100); no gradient through the weak views" in page


def test_what_differs_from_the_papers_cost_is_what_was_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def difference(effort: str = "minutes", preset: str = "paper", **changes: Any) -> str:
        return Cost(Path("nowhere"), EFFORTS[effort], preset, changes).difference

    machine = "differs from the paper: another machine (the paper used a V100)"
    weak = "; no gradient through the weak views (--preset code has one)"
    assert difference("published") == difference(**{"optim.labelled": "64"}) == machine + weak
    released = difference("published", "code")
    assert "method.normaliser batch, not selected" in released
    assert "weak views" not in released and "run.ensemble" not in released
    assert difference("published", **{"method.weak_pass": "joint"}) == machine
    both = "model.backbone wrn-10-2, not wrn-28-2; model.backbone wrn-10-2, not wrn-28-8; another machine"
    assert both in difference("published", **{"model.backbone": "wrn-10-2"})
    monkeypatch.setattr(cost, "race", timings({"original": 3.0, "three models": 6.6, "ours": 3.9}))
    table = study("cost", out=tmp_path / "out", settings={"model.backbone": "wrn-10-2"})
    assert [*dict.fromkeys(table.columns["network"])] == ["wrn-10-2, 10 classes", "wrn-10-2, 100 classes"]


@pytest.mark.parametrize(
    ("changes", "batch"),
    [
        ({"optim.labelled": "6"}, (6, 42)),
        ({"optim.unlabelled": "8"}, (4, 8)),
        ({"optim.labelled": 6, "optim.unlabelled": 8}, (6, 8)),
        ({}, (4, 28)),
    ],
)
def test_there_are_seven_times_as_many_unlabelled_images_by_default(
    changes: dict[str, Any], batch: tuple[int, int]
) -> None:
    cost = Cost(Path("nowhere"), EFFORTS["minutes"], "paper", changes)
    used = [cost.config(network, structure) for network in NETWORKS for structure in network.structures]
    assert {(config.optim.labelled, config.unlabelled) for config in used} == {batch}


@pytest.mark.system
def test_networks_that_were_measured_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"original": 1.0, "three models": 2.0, "ours": 1.5}

    def no_memory(tasks: dict[str, Any], turns: int) -> dict[str, Timing]:
        if next(iter(tasks.values())).config["model"]["backbone"] == "wrn-28-8":
            raise UserError("not enough memory")
        return timings(seconds)(tasks, turns)

    monkeypatch.setattr(cost, "race", no_memory)
    with pytest.raises(UserError, match="not enough memory"):
        study("cost", out=tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "measured.json").read_text())
    assert kept["seconds"] == {"WRN 28-2": {name: [2 * each] * 3 for name, each in seconds.items()}}
    monkeypatch.setattr(cost, "race", timings(dict.fromkeys(seconds, 9.0)))
    table = study("cost", out=tmp_path / "out")
    assert table.columns["/ original"] == ["1.00", "2.00", "1.50", "1.00", "1.00", "1.00"]
    with pytest.raises(UserError, match=r"was measured under other settings .*optim.labelled was 4 and is now 16"):
        study("cost", scale="hours", out=tmp_path / "out")
    (tmp_path / "out" / "measured.json").write_text("[]")
    with pytest.raises(UserError, match="damaged; delete it to measure again"):
        study("cost", out=tmp_path / "out")


def test_the_structures_that_are_timed_are_one_three_and_ours() -> None:
    cost = Cost(Path("nowhere"), EFFORTS["published"], "paper", {})
    one, three, ours = (cost.config(NETWORKS[1], structure) for structure in NETWORKS[1].structures)
    assert one.method.heads == 1
    assert (three.method.heads, three.model.share) == (3, "none")
    assert ours == recipe_named("cifar100").changed({"optim.unlabelled": 448})
    assert all((each.optim.labelled, each.unlabelled) == (64, 448) for each in (one, three, ours))
    released = Cost(Path("nowhere"), EFFORTS["published"], "code", {}).config(NETWORKS[0], NETWORKS[0].structures[2])
    assert released.method.weak_pass == "joint"


@pytest.mark.slow
def test_the_cost_is_measured(tmp_path: Path) -> None:
    changes = {"model.backbone": "wrn-10-2", "optim.labelled": 2, "optim.unlabelled": 8}
    table = study("cost", out=tmp_path / "out", settings=changes)
    ratios = [float(cell) for cell in table.columns["/ original"]]
    assert ratios[1] > ratios[2] > ratios[0] == 1.0


SECONDS = {"original": [1.0], "three models": [2.0], "ours": [1.5]}


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": [1]},
        {"seconds": {"WRN 28-2": {"original": [1.0]}}},
        {"seconds": {"WRN 99": SECONDS}},
        {"seconds": {"WRN 28-2": {**SECONDS, "ours": ["1"]}}},
        {"seconds": {"WRN 28-2": {**SECONDS, "ours": []}}},
        {"seconds": {"WRN 28-2": {**SECONDS, "ours": [0.0]}}},
    ],
    ids=str,
)
def test_damaged_measurements_are_named(change: dict[str, Any], tmp_path: Path) -> None:
    whole = {"protocol": {"cost": {"turns": 1}}, "seconds": {"WRN 28-2": SECONDS}}
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(whole))
    assert read_measured(path) == whole
    path.write_text(json.dumps(whole | change))
    with pytest.raises(UserError, match=f"^{path} is damaged; delete it to measure again"):
        read_measured(path)
