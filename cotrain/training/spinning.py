"""While other processes compete for the CPUs, let OpenMP threads sleep at once when they wait for each other.

`cotrain.openmp` bounds how long they spin. On a quiet machine that much spinning is needed: to wake a thread takes
longer than most gaps between operations. On a busy machine any spinning takes time from the thread that is waited for.
libgomp spins 100 times at most while a process has more OpenMP threads than CPUs (GCC's manual on GOMP_SPINCOUNT), so
a team of sleeping threads is all it takes, also in a program that loaded torch before cotrain. Results do not change.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch

from cotrain.openmp import left_to_cotrain

LOOK, REST = 0.25, 10.0  # seconds: to find out whether the machine is busy, and until the next look if it is
BUSY = 0.2  # of the time, some thread is ready to run and has no CPU
MOST_TEAMS = 2  # with fewer threads than half the CPUs, other processes find a free one
SPLIT = 2**18  # elements: torch splits such an operation over threads


@contextmanager
def sleeping_when_busy() -> Iterator[None]:
    """Watch the machine meanwhile, unless the user has decided how threads wait."""
    cpus = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    teams = teams_needed(torch.get_num_threads(), cpus)
    if not teams or not left_to_cotrain(os.environ):
        yield
        return
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(teams, over), name="watches for busy CPUs", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def teams_needed(threads: int, cpus: int) -> int:
    """How many sleeping teams make the OpenMP threads outnumber the CPUs; 0 if that makes no sense."""
    teams = (cpus - 1) // (threads - 1) if threads > 1 else 0
    return teams if teams <= MOST_TEAMS else 0


def _watch(teams: int, over: threading.Event) -> None:
    while not over.is_set():
        began, before = time.monotonic(), delays()
        over.wait(LOOK)
        now = delays()
        longest = max((now[thread] - before[thread] for thread in now.keys() & before.keys()), default=0.0)
        if longest > BUSY * (time.monotonic() - began):
            with ExitStack() as sleeping:
                for _ in range(teams):
                    sleeping.enter_context(sleeping_team())
                over.wait(REST)


def delays() -> dict[str, float]:
    """Seconds that each thread of this process has waited for a CPU so far."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it ended meanwhile, or this kernel does not count
            found[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return found


@contextmanager
def sleeping_team() -> Iterator[None]:
    """OpenMP gives each thread that runs an operation a team of its own, for as long as that thread lives."""
    ready, over = threading.Event(), threading.Event()

    def sleep() -> None:
        torch.ones(SPLIT).mul_(2.0)
        ready.set()
        over.wait()

    thread = threading.Thread(target=sleep, name="sleeping OpenMP team", daemon=True)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()
