"""Commands of cotrain in processes of their own, without waiting for the imports.

Each is forked by a server that has imported everything: a real process with a pid and an exit code, that can really be
killed. Its output goes to files.
"""

import multiprocessing
import os
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from cotrain.cli.main import main
from cotrain.training.step import Training

PATIENCE = 600  # seconds that a test waits for a process, on however busy a machine


@dataclass(frozen=True)
class Signal:
    """A signal that the process gets after so many training steps, whatever else the machine is doing."""

    number: signal.Signals
    steps: int
    rank: int = 0
    to_torchrun: bool = False  # which hands it on to all of its processes


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


class Running:
    """A process that calls `target(*arguments)`."""

    def __init__(
        self,
        target: Callable[..., Any],
        *arguments: Any,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        file_size: int | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="process-"))
        for name in ("stdout", "stderr"):
            (self.folder / name).touch()
        settings = {"cwd": cwd or Path.cwd(), "environment": {**os.environ, **(environment or {})}}
        settings |= {"folder": self.folder, "file_size": file_size}
        self.process = _server().Process(target=_enter, args=(settings, target, arguments))
        self.process.start()

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def wait_until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.is_alive() or condition(), f"it ended: {self.stderr}"
            assert time.monotonic() < end, "it takes too long"
            time.sleep(0.005)

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def wait(self) -> Done:
        self.process.join(PATIENCE)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            pytest.fail(f"it takes too long: {self.stdout}{self.stderr}")
        done = Done(code, self.stdout, self.stderr)
        shutil.rmtree(self.folder)
        return done


def start(*words: str | Path, signalled: Signal | None = None, **options: Any) -> Running:
    """`python -m cotrain` with these words."""
    return Running(_cotrain, [str(word) for word in words], signalled, **options)


def run(*words: str | Path, signalled: Signal | None = None, **options: Any) -> Done:
    return start(*words, signalled=signalled, **options).wait()


def here(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Done:
    """The same in this process, for what needs no process of its own."""
    capsys.readouterr()
    code = 0
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        code = int(end.code or 0)
    return Done(code, *capsys.readouterr())


def torchrun(target: Callable[..., Any], *arguments: Any) -> Running:
    """`target(*arguments)` in two processes of a job. torchrun forks them instead of starting Python in them."""
    return Running(_torchrun, target, arguments)


def cotrain_rank(words: list[str], signalled: Signal | None) -> None:
    """`-m cotrain` as one of them."""
    _cotrain(words, signalled if signalled and int(os.environ["RANK"]) == signalled.rank else None)


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        multiprocessing.forkserver.ensure_running()
    return context


def _enter(settings: Mapping[str, Any], target: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """In the new process: what a shell would have set up for it."""
    for name, descriptor in {"stdout": 1, "stderr": 2}.items():
        file = os.open(settings["folder"] / name, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background of a script
    os.environ.clear()
    os.environ.update(settings["environment"])
    os.chdir(settings["cwd"])
    if settings["file_size"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (settings["file_size"], settings["file_size"]))
    target(*arguments)


def _cotrain(words: list[str], signalled: Signal | None) -> None:
    if signalled:
        send_after_steps(signalled)
    sys.argv = ["cotrain", *words]
    runpy.run_module("cotrain", run_name="__main__", alter_sys=True)


def _torchrun(target: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    from torch.distributed import run as launcher

    given = launcher.config_from_args

    def forking(options: Namespace) -> tuple[Any, ...]:
        config, *_ = given(options)
        config.start_method = "fork"
        return config, target, arguments

    launcher.config_from_args = forking
    launcher.main(["--standalone", "--nproc-per-node", "2", "-m", "cotrain"])


def send_after_steps(signalled: Signal) -> None:
    """Have this process signal itself: no other can do it at a given step."""
    step, taken = Training.step, count(1)

    def counted(*arguments: Any) -> Any:
        result = step(*arguments)
        if next(taken) == signalled.steps:
            os.kill(os.getppid() if signalled.to_torchrun else os.getpid(), signalled.number)
            if signalled.to_torchrun:
                time.sleep(3)  # long enough for torchrun to hand it on; a pause would wait for ever if it came first
        return result

    Training.step = counted  # type: ignore[method-assign]
