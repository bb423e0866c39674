"""Runs that survive: real processes, really killed."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGSTOP, SIGTERM

import pytest
import torch

import cotrain
from cotrain import Config, Dataset
from cotrain.cli.main import main
from cotrain.runs.log import read_log
from tests.few_digits import few_digits_file
from tests.processes import Done, Running, Signal, here, run, start
from tests.runs.small_fit import STEPS, arguments, checkpoint


def fit(out: Path, *more: str, **options: object) -> Done:
    return run(*arguments(), "--out", out, *more, **options)


def resume(out: Path) -> tuple[int, str]:
    done = fit(out, "--resume")
    return done.returncode, done.stderr


def interrupted(out: Path, number: int, step: int, *more: str) -> Done:
    """A run that gets a signal after this step, the labelled-only network having been trained before."""
    done = fit(out, *more, signalled=Signal(number, STEPS + step))
    assert not (out / "result.json").exists()
    return done


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by a process that was started as everybody starts it."""
    out = tmp_path_factory.mktemp("whole") / "run"
    command = [sys.executable, "-m", "cotrain", *arguments(), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    return out


def same_bits(ours: Path, theirs: Path) -> bool:
    return all(
        (ours / name).read_bytes() == (theirs / name).read_bytes()
        for name in ("model.safetensors", "labelled_only/model.safetensors")
    )


def test_killed_again_and_again_the_run_ends_with_the_same_bits(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    labelled_only = checkpoint(out / "labelled_only", 6)
    stages = [(7, labelled_only), (11, checkpoint(out, 3)), (8, checkpoint(out, 9))]
    for number, (steps, newest) in enumerate(stages):
        more = ["--resume"] if number else []
        assert fit(out, *more, signalled=Signal(SIGKILL, steps)).returncode == -SIGKILL
        assert max(newest.parent.iterdir()) == newest
        assert not (out / "result.json").exists()
    assert max(row["step"] for row in read_log(out / "log.jsonl")) == 10, "a row that the checkpoint knows nothing of"
    assert resume(out) == (0, "")
    assert same_bits(out, uninterrupted)

    whole, pieces = read_log(uninterrupted / "log.jsonl"), read_log(out / "log.jsonl")
    assert len(pieces) == len(whole)
    for piece, row in zip(pieces, whole, strict=True):
        assert piece == pytest.approx({**row, "seconds": piece["seconds"]} if "seconds" in row else row)
    results = [json.loads((run / "result.json").read_text()) for run in (uninterrupted, out)]
    for name in ("test_error", "head_errors", "labelled_only_error", "agreement", "split", "steps"):
        assert results[0][name] == results[1][name]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A run that got Ctrl-C between two checkpoints; tests resume copies of it."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    return out, interrupted(out, SIGINT, 7)


def test_ctrl_c_saves_and_says_how_to_go_on(stopped: tuple[Path, Done], uninterrupted: Path, tmp_path: Path) -> None:
    out, done = stopped
    assert done.returncode == 130
    assert len(done.stderr.splitlines()) == 1
    words = ["cotrain", "fit", str(few_digits_file()), "--out", str(out), "--resume"]
    assert shlex.join(words) in done.stderr
    stopped_at = int(done.stderr.split("stopped at step ")[1].split()[0])
    assert stopped_at == 7
    assert checkpoint(out, stopped_at).exists()
    shutil.copytree(out, tmp_path / "run")
    assert resume(tmp_path / "run") == (0, "")
    assert same_bits(tmp_path / "run", uninterrupted)


def test_a_run_knows_its_data_and_settings(stopped: tuple[Path, Done], uninterrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped[0], tmp_path / "run")
    done = run("fit", "--out", tmp_path / "run", "--resume")
    assert (done.returncode, done.stderr) == (0, "")
    assert same_bits(tmp_path / "run", uninterrupted)


def test_arrays_must_be_passed_again(tiny: Config, toy: Dataset, tmp_path: Path) -> None:
    cotrain.fit(toy, out=tmp_path / "run", config=tiny)
    with pytest.raises(cotrain.UserError, match=r"run was trained on arrays, which it does not contain: pass them"):
        cotrain.fit(out=tmp_path / "run", resume=True)


@pytest.mark.system
def test_a_damaged_checkpoint_is_named_and_the_previous_one_can_resume(
    uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert interrupted(out, SIGKILL, 10).returncode == -SIGKILL
    *_, before, newest = sorted((out / "checkpoint").glob("step-*.safetensors"))
    whole = newest.read_bytes()
    for damage in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        newest.write_bytes(damage)
        done = here(capsys, *arguments(), "--out", out, "--resume")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert f"{newest} is damaged" in done.stderr
        assert f"delete it to resume from {before.name}" in done.stderr
    newest.unlink()
    assert resume(out) == (0, "")
    assert same_bits(out, uninterrupted)


@pytest.mark.system
def test_a_disk_that_takes_no_more_leaves_the_last_checkpoint(
    stopped: tuple[Path, Done], uninterrupted: Path, tmp_path: Path
) -> None:
    """The kernel refuses to let a file grow past the limit, as a full disk does."""
    out = tmp_path / "run"
    shutil.copytree(stopped[0], out)
    saved = {path: path.read_bytes() for path in (out / "checkpoint").iterdir()}
    done = fit(out, "--resume", file_size=100_000)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "cannot write" in done.stderr
    assert {path: path.read_bytes() for path in (out / "checkpoint").iterdir()} == saved
    assert resume(out) == (0, "")
    assert same_bits(out, uninterrupted)


@pytest.mark.system
def test_two_processes_do_not_train_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = [*arguments(), "--out", out, "--no-baseline"]
    sleeping: Running = start(*words, signalled=Signal(SIGSTOP, 4))
    sleeping.wait_until(checkpoint(out, 3).exists)
    refused = here(capsys, *words, "--resume")
    sleeping.send(SIGKILL)
    assert sleeping.wait().returncode == -SIGKILL
    assert refused.returncode == 2
    assert "another process is training" in refused.stderr


@pytest.mark.system
def test_a_start_that_was_killed_can_be_started_again(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "split.json").write_text("")
    done = fit(out)
    assert (done.returncode, done.stderr) == (0, "")
    assert same_bits(out, uninterrupted)


def with_two_threads(words: list[str]) -> None:
    torch.set_num_threads(2)
    main(words)


@pytest.mark.system
def test_a_run_without_baseline_is_resumed_without_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = fit(out, "--no-baseline", signalled=Signal(SIGTERM, STEPS - 3))
    assert done.returncode == 130
    assert "--resume" in done.stderr
    again = Running(with_two_threads, ["fit", str(few_digits_file()), "--out", str(out), "--resume"]).wait()
    assert again.returncode == 0
    assert "resumed with 2 threads instead of 1: weights may differ" in again.stdout
    assert not (out / "labelled_only").exists()
    result = json.loads((out / "result.json").read_text())
    assert (result["steps"], result["labelled_only_error"]) == (STEPS, None)
    assert result["command"].endswith("--no-baseline")
