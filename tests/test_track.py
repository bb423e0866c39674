"""What a run logs is in TensorBoard's files too."""

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import cotrain
from cotrain import Config, Dataset, UserError
from cotrain.log import read_log


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    events = EventAccumulator(str(folder)).Reload()
    return {(tag, event.step): event.value for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}


def test_the_same_scalars_are_there(toy: Dataset, tiny: Config, tmp_path: Path) -> None:
    cotrain.fit(toy, out=tmp_path / "run", config=tiny, settings={"run.track": "tensorboard"})
    logged = {
        (name, row["step"]): value
        for row in read_log(tmp_path / "run" / "log.jsonl")
        for name, value in row.items()
        if name != "step"
    }
    assert scalars(tmp_path / "run" / "tensorboard") == pytest.approx(logged, rel=1e-5)
    assert ("supervised", 30) in logged


def test_without_the_package_it_is_said_before_anything_is_written(
    toy: Dataset, tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match="needs the package tensorboard: pip install"):
        cotrain.fit(toy, out=tmp_path / "run", config=tiny, settings={"run.track": "tensorboard"})
    assert not any(tmp_path.iterdir())
