"""Locks between processes: who finds one held is told or waits, and the lock of a killed process is free."""

import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from cotrain import Config, Dataset, open_data
from cotrain.comparison.compare import Comparison, contenders
from cotrain.data import cache, draw_split
from cotrain.runs.run import Busy, Run
from tests.data.photos import by_class

HOLD = """
import sys, filelock
lock = filelock.FileLock(sys.argv[1])
lock.acquire()
print(flush=True)
sys.stdin.read()
"""
Hold = Callable[[Path], "subprocess.Popen[str]"]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Starts a process that holds the lock at a path until it is killed."""
    with ExitStack() as started:

        def start(path: Path) -> "subprocess.Popen[str]":
            command = [sys.executable, "-c", HOLD, str(path)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            started.enter_context(process)
            started.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
            return process

        yield start


def killed(process: "subprocess.Popen[str]") -> None:
    """SIGKILL: no handler and no `finally` of the process runs."""
    process.kill()
    process.wait()


@pytest.fixture
def run(tmp_path: Path, toy: Dataset, tiny: Config) -> Run:
    return Run.create(tmp_path / "run", tiny, draw_split(toy, tiny.data, 0))


def test_a_run_that_another_process_trains_is_refused_until_that_process_is_gone(run: Run, hold: Hold) -> None:
    process = hold(run.folder / ".lock")
    with pytest.raises(Busy, match=f"another process is training {run.folder}"), run.locked():
        pass
    killed(process)
    assert (run.folder / ".lock").exists()
    with run.locked():
        pass


def test_a_lock_excludes_within_a_process_and_is_released_by_an_error(run: Run) -> None:
    with pytest.raises(ZeroDivisionError), run.locked():
        with pytest.raises(Busy), run.locked():
            pass
        with run.locked("another"):
            pass
        raise ZeroDivisionError
    with run.locked():
        pass


def waits_for(process: "subprocess.Popen[str]", work: Callable[[], object]) -> None:
    """`work` ends only after the process that holds its lock was killed."""
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(0.5)
    assert worker.is_alive()
    killed(process)
    worker.join(60)
    assert not worker.is_alive()


def test_a_plan_waits_for_the_process_that_makes_one(tmp_path: Path, toy: Dataset, tiny: Config, hold: Hold) -> None:
    comparison = Comparison.of(toy, tmp_path, contenders("supervised"), seeds=1, config=tiny)
    plans: list[object] = []
    waits_for(hold(tmp_path / ".lock"), lambda: plans.append(comparison.plan(Console(quiet=True))))
    assert [set(plan) for plan in plans] == [{"supervised"}]


def test_a_folder_is_decoded_by_one_process_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold: Hold
) -> None:
    monkeypatch.setenv("COTRAIN_HOME", str(tmp_path / "home"))
    folder = by_class(tmp_path / "photos")
    (tmp_path / "home" / "locks").mkdir(parents=True)
    process = hold(tmp_path / "home" / "locks" / f"{cache._place(folder, 224).name}.lock")
    console = Console(record=True, file=io.StringIO(), width=200)
    waits_for(process, lambda: open_data(folder, console=console))
    assert "waiting for another process that is decoding the same images" in console.export_text()
    assert [path.suffix for path in (tmp_path / "home" / "images").iterdir()] == [""]
