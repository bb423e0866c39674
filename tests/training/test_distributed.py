"""Two processes compute the same as one. They are real processes, which torchrun starts once for all these tests."""

import json
import socket
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import cotrain.training.distributed
from cotrain.cli.main import main
from cotrain.methods.mhct import MultiHeadCoTraining
from cotrain.training.experiment import Experiment
from cotrain.types import Learner
from tests.processes import torchrun
from tests.training.distributed_worker import CASES, CPU, NODES, STEP, decided, digits, renew, work

pytestmark = pytest.mark.system
each_case = pytest.mark.parametrize("name", CASES)
Found = list[dict[str, Tensor]]

REFUSED = {
    "labelled images": ("digits --optim.labelled 9", "2 processes cannot share optim.labelled=9 equally"),
    "unlabelled images": ("digits --optim.unlabelled 15", "choose a multiple of 2, or change --nproc-per-node"),
    "precision": ("digits --precision float16", "run.precision=float16 is for GPUs; use run.precision=float32 or auto"),
    "batch-norm": ("digits --run.batchnorm synchronised", "run.batchnorm=synchronised needs a GPU; use local or auto"),
    "backbone": ("digits --model.backbone wrn-11-1", "wrn-11-1"),
    "labels": ("digits --labels 1", "data.labels=1"),
    "data": ("nowhere", "nowhere"),
    "run": ("digits --resume", "there is no run "),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where each process wrote its results."""
    folder = tmp_path_factory.mktemp("ranks")
    commands = [["fit", *words.split(), "--out", str(folder / name)] for name, (words, _) in REFUSED.items()]
    done = torchrun(work, folder, commands).wait()
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    return [load_file(folder / f"rank-{rank}.safetensors") for rank in range(2)]


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


@each_case
def test_losses_and_gradients_are_those_of_one_process(name: str, found: Found) -> None:
    """Up to the order of float32 sums: some 1e-7 of what is summed, of which most cancels in a gradient."""
    config = CASES[name]
    training = decided(config)
    state, source = training.state, training.source
    renew(training)
    learner = Learner(state.net, state.average.net, STEP, config.optim.steps, source.generator(STEP), state.memory)
    losses = config.method.loss(learner, source.batch(STEP))
    losses.total.backward()
    logged = {"total": losses.total, **losses.logged}
    for rank in found:
        theirs = {key: value.item() for key, value in under(f"{name}/term/", rank).items()}
        assert theirs == pytest.approx({key: value.item() for key, value in logged.items()}, rel=1e-5)
        gradients = under(f"{name}/gradient/", rank)
        for key, weight in state.net.named_parameters():
            ours, theirs = weight.grad, gradients.pop(key)
            assert ours.any()
            torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=3e-5 * ours.abs().max().item())
        assert not gradients
        memory = under(f"{name}/memory/", rank)
        assert memory.keys() == state.memory.keys()
        for key, tensor in memory.items():
            torch.testing.assert_close(tensor, state.memory[key], rtol=1e-4, atol=1e-6)


def test_labels_reach_images_outside_the_sample_that_makes_the_graph(found: Found) -> None:
    spread = found[0]["graph of a sample/memory/spread"]
    assert NODES < spread.any(dim=1).sum() <= len(spread)
    assert not torch.equal(spread, found[0]["mhct_graph/memory/spread"])


@pytest.mark.parametrize("name", [name for name in CASES if isinstance(CASES[name].method, MultiHeadCoTraining)])
def test_some_images_are_selected_and_not_equally_many_on_the_two(name: str, found: Found) -> None:
    selected = [rank[f"{name}/selected"] for rank in found]
    assert all(0 < of_rank.sum() < of_rank.numel() for of_rank in selected)
    assert selected[0].sum() != selected[1].sum()


@each_case
def test_the_batch_is_the_same_and_each_rank_makes_the_views_of_its_own_rows(name: str, found: Found) -> None:
    config = CASES[name]
    whole = vars(Experiment(config, *digits(), CPU).source.batch(STEP))
    for number, rank in enumerate(found):
        part = under(f"{name}/batch/", rank)
        assert all(torch.equal(part[key], whole[key]) for key in ("y", "labelled_rows", "unlabelled_rows"))
        for key, axis in {"x": 0, "weak": 1, "strong": 1}.items():
            theirs, ours = part[key].movedim(axis, 0), whole[key].movedim(axis, 0)
            if config.method.views.whole:
                assert torch.equal(theirs, ours)
            else:
                assert torch.equal(theirs[number::2], ours[number::2])
                assert not theirs[1 - number :: 2].any()


def test_weights_and_teacher_stay_the_same_on_both(found: Found) -> None:
    first, second = (under("steps/", rank) for rank in found)
    assert first.keys() == second.keys()
    assert [key for key in first if not torch.equal(first[key], second[key])] == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_is_one_line_of_the_first_and_leaves_nothing(name: str, folder: Path) -> None:
    number = list(REFUSED).index(name)
    (code, out, errors), second = (json.loads((folder / f"rank-{rank}.json").read_text())[number] for rank in range(2))
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("cotrain: ")
    assert REFUSED[name][1] in errors
    assert second == [2, "", ""]
    assert not (folder / name).exists()


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one-line error with which this single process refuses to run."""
    with pytest.raises(SystemExit) as end:
        main(["fit", "digits", *arguments])
    out, errors = capsys.readouterr()
    assert (end.value.code, out, errors.count("\n")) == (2, "", 1)
    return errors


def test_synchronised_batchnorm_is_refused_without_a_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    errors = refusal(capsys, "--run.batchnorm", "synchronised", "--out", str(tmp_path / "run"))
    assert errors == "cotrain: run.batchnorm=synchronised needs a GPU; use local or auto\n"
    assert not any(tmp_path.iterdir())


def test_compiling_without_a_compiler_is_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert "run.compile needs a C++ compiler" in refusal(capsys, "--compile", "--out", str(tmp_path / "run"))
    assert not any(tmp_path.iterdir())


def test_half_of_torchruns_environment_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    missing = "WORLD_SIZE=2, but these are not set: RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; "
    assert f"cotrain: {missing}start several processes with torchrun" in refusal(capsys)


def test_an_address_that_does_not_answer_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cotrain.training.distributed, "START_TIMEOUT", timedelta(seconds=1))
    with socket.socket() as taken:  # and not listening
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "0"}
        for name, value in place.items():
            monkeypatch.setenv(name, value)
        ranks = cotrain.training.distributed.process_group()
        with pytest.raises(cotrain.UserError, match=f"rank 1 cannot reach the other processes at 127.0.0.1:{port} "):
            ranks.__enter__()
