"""Two or more workers take turns, so that noise on the machine affects all of them alike."""

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Self

from cotrain.comparison.step_worker import Answer, Task
from cotrain.types import UserError

STEPS = "cotrain.comparison.step_worker"


@dataclass(frozen=True)
class Timing:
    """The time of one repetition."""

    seconds: list[float]  # one value per turn
    memory: float  # GB, peak
    first: dict[str, float]  # what the worker reported after the first repetition
    last: dict[str, float]  # and after the last one

    @property
    def least(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class Worker:
    """A process that repeats its task as often as requested."""

    def __init__(self, task: Task, program: str) -> None:
        alone = ["-P"] if program == STEPS else []  # other programs are in the current folder
        command = [sys.executable, *alone, "-m", program]
        stderr = subprocess.DEVNULL if task.what == "profile" else None  # torch's profiler prints to it
        self.spins = {} if task.spins is None else {"GOMP_SPINCOUNT": task.spins}
        self.busy = task.beside
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=os.environ | self.spins,
        )
        try:
            self._ask(json.dumps(asdict(task)))
        except UserError:
            self.__exit__()
            raise

    def run(self, times: int) -> Answer:
        """A process with a spin count of its own is stopped between turns; its OpenMP threads might spin for ever."""
        if self.spins:
            self.process.send_signal(signal.SIGCONT)
        try:
            with busy_processes(self.busy):
                return Answer(**self._ask(str(times)))
        finally:
            if self.spins:
                self.process.send_signal(signal.SIGSTOP)

    def _ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(line, file=self.process.stdin, flush=True)
            answer = json.loads(self.process.stdout.readline())
        except (BrokenPipeError, ValueError) as error:
            raise UserError(
                "a benchmark process ended early; perhaps there is not enough memory for this batch size"
            ) from error
        if "error" in answer:
            raise UserError(answer["error"])
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run `count` processes that each keep one core busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def race(
    tasks: Mapping[str, Task], turns: int = 5, turn_seconds: float = 1.0, program: str = STEPS
) -> dict[str, Timing]:
    """Time all tasks in turns of about equal length. The first repetitions of each process do not count.

    `program` is the module that carries out a task.
    """
    with ExitStack() as running:
        workers = {name: running.enter_context(Worker(task, program)) for name, task in tasks.items()}
        first = {name: worker.run(1) for name, worker in workers.items()}
        times = {name: max(1, round(turn_seconds / worker.run(1).seconds)) for name, worker in workers.items()}
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        last: dict[str, Answer] = {}
        for _ in range(turns):
            for name, worker in workers.items():
                last[name] = worker.run(times[name])
                seconds[name].append(last[name].seconds / times[name])
    return {name: Timing(seconds[name], last[name].memory, first[name].facts, last[name].facts) for name in tasks}
