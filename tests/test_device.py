"""What the machine has and has not is found out before any training."""

from pathlib import Path

import numpy as np
import pytest
import torch

import cotrain
from cotrain import Config, Dataset, UserError
from cotrain.cli.main import main
from cotrain.data import memory
from cotrain.device import pick_device, pick_precision
from cotrain.runs.log import read_log

CPU = torch.device("cpu")


def test_a_cpu_computes_in_float32_unless_told() -> None:
    assert pick_precision("auto", CPU) == pick_precision("float32", CPU) == torch.float32
    assert pick_device("cpu", local_rank=3) == CPU


@pytest.mark.system
def test_bfloat16_trains_here_or_is_refused_before_anything_is_written(
    toy: Dataset, tiny: Config, tmp_path: Path
) -> None:
    few = {"optim.steps": 12, "optim.unlabelled": 8}  # bfloat16 is slow on CPUs
    out, settings = tmp_path / "run", {"run.precision": "bfloat16", "run.device": "cpu", **few}
    try:
        pick_precision("bfloat16", CPU)
    except UserError:
        with pytest.raises(UserError, match="bfloat16 does not work on this CPU"):
            cotrain.fit(toy, out=out, config=tiny, settings=settings)
        assert not out.exists()
        return
    fitted = cotrain.fit(toy, out=out, config=tiny, settings=settings)
    assert fitted.result["precision"] == "bfloat16"
    assert fitted.result["test_error"] < 25


def test_the_loss_is_float32_in_any_precision() -> None:
    logits = torch.tensor([[[0.1, 0.3]]], dtype=torch.bfloat16)
    loss = cotrain.ops.heads_cross_entropy(logits, torch.tensor([0]))
    expected = torch.nn.functional.cross_entropy(logits[0].double(), torch.tensor([0]))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


TORCHS_OWN = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


@pytest.mark.slow
@TORCHS_OWN
def test_compilation_does_not_change_what_is_learnt(toy: Dataset, tiny: Config, tmp_path: Path) -> None:
    few = {"optim.steps": 3, "run.log_every": 1}
    runs = [
        cotrain.fit(toy, out=tmp_path / str(value), config=tiny, settings=few | {"run.compile": value})
        for value in (True, False)
    ]
    losses = [[row["supervised"] for row in read_log(run.folder / "log.jsonl") if "supervised" in row] for run in runs]
    np.testing.assert_allclose(*losses, rtol=1e-3)


def test_arrays_that_memory_cannot_hold_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "large.npz"
    np.savez_compressed(path, train_images=np.zeros((2000, 32, 32, 3), np.uint8), train_labels=np.arange(2000) % 2)
    assert 0.1 < memory.free_memory() < 10_000
    monkeypatch.setattr(memory, "free_memory", lambda: 0.01)
    with pytest.raises(SystemExit) as end:
        main(["fit", str(path), "--out", str(tmp_path / "run")])
    line = capsys.readouterr().err
    assert end.value.code == 2
    assert f"{path} needs 12.3 MB of memory" in line and line.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_memory_that_runs_out_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def greedy(*_: object, **__: object) -> None:
        torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr("cotrain.cli.fit.fit", greedy)
    with pytest.raises(SystemExit) as end:
        main(["fit", "digits"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("cotrain: not enough memory (")
