"""Whole runs of two processes, as torchrun starts them: what they leave, and what happens when one of them ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import cotrain
from cotrain.cli.main import main
from cotrain.runs.log import read_log

PACKAGE = Path(cotrain.__file__).parent
STEPS = 60
ARGUMENTS = (
    f"fit digits --optim.steps {STEPS} --labels 20 --optim.labelled 8 --optim.unlabelled 16 --model.backbone wrn-10-1 "
    "--run.report false "
    "--run.log_every 7 --run.checkpoint_every 10 --no-baseline"
).split()
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "cotrain"]


def start(out: Path, *more: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*TORCHRUN, *ARGUMENTS, "--out", str(out), *more],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(out: Path, *more: str) -> list[str]:
    """The lines of a job that ends well."""
    process = start(out, *more)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return [*output.splitlines(), *errors.splitlines()]


def ended(out: Path, step: int, end: Callable[[subprocess.Popen], None], *more: str) -> str:
    """The one line of a job that is ended when it has written the checkpoint of a step."""
    process = start(out, *more)
    limit = time.monotonic() + 200
    while not checkpoint(out, step).exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < limit, f"there never was a checkpoint of step {step}"
        time.sleep(0.005)
    end(process)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert not (out / "result.json").exists()
    assert f'File "{PACKAGE}' not in errors
    (line,) = (line for line in errors.splitlines() if line.startswith("cotrain: "))
    return line


def checkpoint(out: Path, step: int) -> Path:
    return out / "checkpoint" / f"step-{step:08d}.safetensors"


def newest(out: Path) -> Path:
    return max((out / "checkpoint").glob("step-*"))


def kill(rank: int, out: Path) -> None:
    if not Path("/proc").exists():
        pytest.skip("finds the process of a rank in /proc")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment, command = ((process / name).read_text().split("\0") for name in ("environ", "cmdline"))
            if f"RANK={rank}" in environment and str(out) in command:
                os.kill(int(process.name), signal.SIGKILL)
                return
    pytest.fail(f"there is no rank {rank}")


def contents(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torchrun")


@pytest.fixture(scope="module")
def lines(folder: Path) -> list[str]:
    """What a job says that nobody disturbs."""
    return finish(folder / "whole")


def test_the_first_process_alone_speaks(lines: list[str], folder: Path) -> None:
    assert lines[0].endswith(f"wrn-10-1, 3 heads, on cpu -> {folder / 'whole'}")
    each = "2 processes, 4 labelled and 8 unlabelled images each a step; batch-norm over each one's own images"
    assert lines[1] == each
    assert any(f"step {STEPS}/{STEPS}" in line for line in lines)
    assert len(set(lines)) == len(lines)


def test_the_folder_has_what_one_process_leaves(lines: list[str], folder: Path) -> None:
    main([*ARGUMENTS, "--out", str(folder / "one")])
    assert contents(folder / "whole") == contents(folder / "one")
    logs = [read_log(folder / name / "log.jsonl") for name in ("whole", "one")]
    assert [row["step"] for row in logs[0]] == [row["step"] for row in logs[1]]
    results = [json.loads((folder / name / "result.json").read_text()) for name in ("whole", "one")]
    assert results[0].keys() == results[1].keys()
    assert [(result["ranks"], result["steps"]) for result in results] == [(2, STEPS), (1, STEPS)]


def test_a_job_whose_processes_are_killed_goes_on_to_the_same_bits(lines: list[str], folder: Path) -> None:
    out = folder / "killed"
    for rank, step, more in ((0, 10, ()), (1, 30, ("--resume",))):
        line = ended(out, step, lambda _, rank=rank: kill(rank, out), *more)
        assert line.startswith("cotrain: another process of this job has ended, at step ")
        assert line.endswith(f"the newest checkpoint is {newest(out)}; start the job again with --resume")
    assert not any(line.startswith("resumed with") for line in finish(out, "--resume"))
    assert (out / "model.safetensors").read_bytes() == (folder / "whole/model.safetensors").read_bytes()


def test_sigterm_saves_everything_and_one_process_can_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "stopped"
    line = ended(out, 10, subprocess.Popen.terminate)
    stopped_at = int(re.match(rf"cotrain: stopped at step (\d+) of {STEPS}; everything is saved; ", line)[1])
    assert line.endswith(f"go on with: torchrun --nproc-per-node 2 -m cotrain fit digits --out {out} --resume")
    assert newest(out) == checkpoint(out, stopped_at)
    main(["fit", "digits", "--out", str(out), "--resume"])
    assert "resumed with 1 process instead of 2: weights may differ" in capsys.readouterr().out
    result = json.loads((out / "result.json").read_text())
    assert (result["ranks"], result["steps"]) == (1, STEPS)


@pytest.mark.slow
def test_twenty_jobs_in_a_row_end_well(tmp_path: Path) -> None:
    for number in range(20):
        said = "\n".join(finish(tmp_path / str(number), "--steps", "4"))
        assert "abort" not in said.lower()
        assert "terminate called" not in said
