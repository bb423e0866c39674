"""Whole runs of two processes, as torchrun starts them: what they leave, and what happens when one of them ends."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

import cotrain
from cotrain.cli.main import main
from cotrain.runs.log import read_log
from tests.few_digits import few_digits_file
from tests.fitting import own_network
from tests.processes import Done, Signal, cotrain_rank, torchrun

STEPS = 16
SETTINGS = (
    f"--optim.steps {STEPS} --labels 20 --optim.labelled 8 --optim.unlabelled 16 --model.backbone wrn-10-1 "
    "--run.report false "
    "--run.log_every 7 --run.checkpoint_every 5 --no-baseline"
).split()
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "cotrain"]
PACKAGE = Path(cotrain.__file__).parent


def arguments(out: Path) -> list[str]:
    return ["fit", str(few_digits_file()), *SETTINGS, "--out", str(out)]


def lines_of(returncode: int, output: str, errors: str) -> list[str]:
    """The lines of a job that ends well."""
    assert returncode == 0, errors
    return [*output.splitlines(), *errors.splitlines()]


def started(out: Path, *more: str) -> list[str]:
    """The lines of a job that is started as everybody starts it."""
    command = [*TORCHRUN, *arguments(out), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return lines_of(done.returncode, done.stdout, done.stderr)


def job(out: Path, *more: str, signalled: Signal | None = None) -> Done:
    return torchrun(cotrain_rank, [*arguments(out), *more], signalled).wait()


def ended(out: Path, signalled: Signal, *more: str) -> str:
    """The one line of a job whose processes, or one of them, get a signal."""
    done = job(out, *more, signalled=signalled)
    assert done.returncode != 0
    assert not (out / "result.json").exists()
    assert f'File "{PACKAGE}' not in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("cotrain: "))
    return line


def checkpoint(out: Path, step: int) -> Path:
    return out / "checkpoint" / f"step-{step:08d}.safetensors"


def newest(out: Path) -> Path:
    return max((out / "checkpoint").glob("step-*"))


def contents(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torchrun")


@pytest.fixture(scope="module")
def lines(folder: Path) -> list[str]:
    """What a job says that nobody disturbs."""
    return started(folder / "whole")


@pytest.mark.system
def test_the_first_process_alone_speaks(lines: list[str], folder: Path) -> None:
    assert lines[0].endswith(f"wrn-10-1, 3 heads, on cpu -> {folder / 'whole'}")
    each = "2 processes, each with 4 labelled and 8 unlabelled images per step; batch-norm within each process"
    assert lines[1] == each
    assert any(f"step {STEPS}/{STEPS}" in line for line in lines)
    assert len(set(lines)) == len(lines)


@pytest.mark.system
def test_the_folder_has_what_one_process_leaves(lines: list[str], folder: Path) -> None:
    main(arguments(folder / "one"))
    assert contents(folder / "whole") == contents(folder / "one")
    logs = [read_log(folder / name / "log.jsonl") for name in ("whole", "one")]
    assert [row["step"] for row in logs[0]] == [row["step"] for row in logs[1]]
    results = [json.loads((folder / name / "result.json").read_text()) for name in ("whole", "one")]
    assert results[0].keys() == results[1].keys()
    assert [(result["ranks"], result["steps"]) for result in results] == [(2, STEPS), (1, STEPS)]


@pytest.mark.system
def test_a_job_whose_processes_are_killed_goes_on_to_the_same_bits(lines: list[str], folder: Path) -> None:
    out = folder / "killed"
    for rank, more in ((0, ()), (1, ("--resume",))):
        line = ended(out, Signal(SIGKILL, 7, rank), *more)
        assert line.startswith("cotrain: another process of this job has ended, at step ")
        assert line.endswith(f"the newest checkpoint is {newest(out)}; start the job again with --resume")
    done = job(out, "--resume")
    said = lines_of(done.returncode, done.stdout, done.stderr)
    assert not any(line.startswith("resumed with") for line in said)
    assert (out / "model.safetensors").read_bytes() == (folder / "whole/model.safetensors").read_bytes()


def test_sigterm_saves_everything_and_one_process_can_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "stopped"
    line = ended(out, Signal(SIGTERM, 7, rank=1, to_torchrun=True))
    stopped_at = int(re.match(rf"cotrain: stopped at step (\d+) of {STEPS}; everything is saved; ", line)[1])
    again = ["fit", str(few_digits_file()), "--out", str(out), "--resume"]
    assert line.endswith(f"resume with: torchrun --nproc-per-node 2 -m cotrain {shlex.join(again)}")
    assert newest(out) == checkpoint(out, stopped_at)
    main(again)
    assert "resumed with 1 process instead of 2: weights may differ" in capsys.readouterr().out
    result = json.loads((out / "result.json").read_text())
    assert (result["ranks"], result["steps"]) == (1, STEPS)


@pytest.mark.system
def test_a_network_of_ones_own_has_the_losses_of_one_process(tmp_path: Path) -> None:
    """Up to the order of float32 sums, which grows from step to step."""
    done = torchrun(own_network.fit_each, tmp_path / "two").wait()
    assert done.returncode == 0, done.stderr
    own_network.fit_each(tmp_path / "one")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(names) == 4
    for name in names:
        one, two = (
            [row for row in read_log(tmp_path / number / name / "log.jsonl") if "supervised" in row]
            for number in ("one", "two")
        )
        assert len(one) == len(two) == own_network.STEPS
        for ours, theirs in zip(one, two, strict=True):
            terms = ("supervised", "unsupervised")
            assert [theirs[term] for term in terms] == pytest.approx([ours[term] for term in terms], rel=1e-4)
        assert one[-1]["unsupervised"] > 0
        results = [json.loads((tmp_path / number / name / "result.json").read_text()) for number in ("one", "two")]
        assert [result["ranks"] for result in results] == [1, 2]
        assert results[0]["test_error"] == pytest.approx(results[1]["test_error"], abs=0.5)


@pytest.mark.slow
def test_twenty_jobs_in_a_row_end_well(tmp_path: Path) -> None:
    for number in range(20):
        said = "\n".join(started(tmp_path / str(number), "--steps", "4"))
        assert "abort" not in said.lower()
        assert "terminate called" not in said
