"""Runs that survive: real processes, really killed."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from cotrain.runs.log import read_log

STEPS = 60
ARGUMENTS = (
    f"digits --steps {STEPS} --labels 20 --optim.labelled 8 --optim.unlabelled 16 --model.backbone wrn-10-1 "
    "--run.report false "
    "--run.log_every 7 --run.checkpoint_every 10"
).split()
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def start(out: Path, *more: str, **options: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "cotrain", "fit", *ARGUMENTS, "--out", str(out), *more]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def finish(out: Path, *more: str, **options: object) -> tuple[int, str]:
    process = start(out, *more, **options)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


def wait_for(process: subprocess.Popen, path: Path) -> None:
    """Until the process has written the file."""
    end = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, f"{path} was never written"
        time.sleep(0.005)


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def checkpoint(out: Path, step: int) -> Path:
    return out / "checkpoint" / f"step-{step:08d}.safetensors"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    assert finish(out) == (0, "")
    return out


def same_bits(ours: Path, theirs: Path) -> bool:
    return all(
        (ours / name).read_bytes() == (theirs / name).read_bytes()
        for name in ("model.safetensors", "labelled_only/model.safetensors")
    )


def test_killed_again_and_again_the_run_ends_with_the_same_bits(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stages = [out / "labelled_only/checkpoint/step-00000020.safetensors", checkpoint(out, 10), checkpoint(out, 30)]
    for number, stage in enumerate(stages):
        process = start(out, *(["--resume"] if number else []))
        wait_for(process, stage)
        kill(process)
        assert not (out / "result.json").exists()
    assert finish(out, "--resume") == (0, "")
    assert same_bits(out, uninterrupted)

    whole, pieces = read_log(uninterrupted / "log.jsonl"), read_log(out / "log.jsonl")
    assert len(pieces) == len(whole)
    for piece, row in zip(pieces, whole, strict=True):
        assert piece == pytest.approx({**row, "seconds": piece["seconds"]} if "seconds" in row else row)
    results = [json.loads((run / "result.json").read_text()) for run in (uninterrupted, out)]
    for name in ("test_error", "head_errors", "labelled_only_error", "agreement", "split", "steps"):
        assert results[0][name] == results[1][name]


def test_ctrl_c_saves_and_says_how_to_go_on(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out)
    wait_for(process, checkpoint(out, 10))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(errors.splitlines()) == 1
    assert f"cotrain fit digits --out {out} --resume" in errors
    stopped_at = int(errors.split("stopped at step ")[1].split()[0])
    assert checkpoint(out, stopped_at).exists()
    assert finish(out, "--resume") == (0, "")
    assert same_bits(out, uninterrupted)


def test_a_finished_run_is_not_trained_again(uninterrupted: Path) -> None:
    before = (uninterrupted / "result.json").stat().st_mtime_ns
    assert finish(uninterrupted, "--resume") == (0, "")
    assert (uninterrupted / "result.json").stat().st_mtime_ns == before


def test_an_existing_folder_is_never_written_into(uninterrupted: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in uninterrupted.rglob("*") if path.is_file()}
    code, errors = finish(uninterrupted)
    assert code == 2
    assert "exists already; choose another --out, or add --resume" in errors
    assert {path: path.read_bytes() for path in uninterrupted.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--optim.lr", "0.5"), "cannot be resumed with other settings: optim.lr was 0.1 and is now 0.5"),
        (("--seed", "3"), "run.seed was 0 and is now 3"),
        (("--recipe", "svhn"), "optim.lr was 0.1 and is now 0.3"),
    ],
)
def test_other_settings_cannot_resume(uninterrupted: Path, more: tuple[str, ...], message: str) -> None:
    code, errors = finish(uninterrupted, "--resume", *more)
    assert code == 2
    assert message in errors


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_can_go_on(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out)
    wait_for(process, checkpoint(out, 30))
    kill(process)
    *_, before, newest = sorted((out / "checkpoint").glob("step-*.safetensors"))
    whole = newest.read_bytes()
    for damage in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        newest.write_bytes(damage)
        code, errors = finish(out, "--resume")
        assert (code, len(errors.splitlines())) == (2, 1)
        assert f"{newest} is damaged" in errors
        assert f"delete it to go on from {before.name}" in errors
    newest.unlink()
    assert finish(out, "--resume") == (0, "")
    assert same_bits(out, uninterrupted)


def test_a_disk_that_takes_no_more_leaves_the_last_checkpoint(uninterrupted: Path, tmp_path: Path) -> None:
    """The kernel refuses to let a file grow past the limit, as a full disk does."""
    out = tmp_path / "run"
    process = start(out)
    wait_for(process, checkpoint(out, 20))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    saved = {path: path.read_bytes() for path in (out / "checkpoint").iterdir()}

    def no_space() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    code, errors = finish(out, "--resume", preexec_fn=no_space)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "cannot write" in errors
    assert {path: path.read_bytes() for path in (out / "checkpoint").iterdir()} == saved
    assert finish(out, "--resume") == (0, "")
    assert same_bits(out, uninterrupted)


def test_two_processes_do_not_train_one_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out)
    wait_for(process, checkpoint(out, 10))
    process.send_signal(signal.SIGSTOP)
    code, errors = finish(out, "--resume")
    kill(process)
    assert code == 2
    assert "another process is training" in errors


def test_a_loss_that_is_not_finite_is_found_before_anything_is_saved(tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, errors = finish(out, "--no-baseline", "--optim.lr", "1e25", "--run.checkpoint_every", "1")
    assert (code, len(errors.splitlines())) == (2, 1)
    step = int(errors.split("not to be finite at step ")[1].split(";")[0]) - 1
    assert f"the last checkpoint before that is {checkpoint(out, step)}" in errors
    saved = load_file(checkpoint(out, step))
    assert all(tensor.isfinite().all() for name, tensor in saved.items() if name.endswith("conv1.weight"))


def test_a_changed_config_file_is_noticed(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(uninterrupted, out)
    (out / "result.json").unlink()
    config = json.loads((out / "config.json").read_text())
    config["run"]["baseline"] = False
    (out / "config.json").write_text(json.dumps(config))
    code, errors = finish(out, "--resume")
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "was changed since the last checkpoint: run.baseline was True and is now False" in errors


@pytest.mark.parametrize(
    ("name", "content"),
    [("split.json", "{}"), ("config.json", "[]"), ("config.json", "{"), ("result.json", "{}")],
)
def test_damaged_files_of_a_run_are_named(uninterrupted: Path, tmp_path: Path, name: str, content: str) -> None:
    out = tmp_path / "run"
    shutil.copytree(uninterrupted, out)
    (out / name).write_text(content)
    code, errors = finish(out, "--resume")
    assert (code, len(errors.splitlines())) == (2, 1)
    assert str(out / name) in errors


def test_a_start_that_was_killed_can_be_started_again(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "split.json").write_text("")
    assert finish(out) == (0, "")
    assert same_bits(out, uninterrupted)


def test_a_run_without_yardstick_is_resumed_without_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out, "--no-baseline")
    wait_for(process, checkpoint(out, 10))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in errors
    command = [sys.executable, "-m", "cotrain", "fit", "digits", "--out", str(out), "--resume"]
    environment = ENVIRONMENT | {"OMP_NUM_THREADS": "2"}
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0
    assert "resumed with 2 threads instead of 1: weights may differ" in again.stdout
    assert not (out / "labelled_only").exists()
    result = json.loads((out / "result.json").read_text())
    assert (result["steps"], result["labelled_only_error"]) == (STEPS, None)
    assert result["command"].endswith("--no-baseline")
