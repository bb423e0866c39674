"""While other processes compete for the CPUs, make OpenMP threads that wait for each other sleep immediately.

`cotrain.openmp` limits how long they spin. On an idle machine, that spinning helps: waking a thread takes longer than
most gaps between operations. On a busy machine, spinning takes CPU time from the thread that the others wait for.
libgomp spins at most 100 times while a process has more OpenMP threads than CPUs (see GOMP_SPINCOUNT in GCC's manual),
so an additional team of sleeping threads is enough, even if torch was loaded before cotrain. Results do not change.
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

LOOK, REST = 0.25, 10.0  # seconds to find out whether the machine is busy, and until the next check if it is
BUSY = 0.2  # fraction of the time that a thread is ready to run but has no CPU
MOST_TEAMS = 2  # with fewer threads than half the CPUs, other processes find a free CPU
SPLIT = 2**18  # elements; torch splits an operation of this size over threads


@contextmanager
def sleeping_when_busy() -> Iterator[None]:
    """Watch for busy CPUs inside this context, unless the user has configured how threads wait."""
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
    """How many sleeping teams make the OpenMP threads outnumber the CPUs; 0 if that is not worthwhile."""
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
    waited = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended, or this kernel keeps no such statistics
            waited[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return waited


@contextmanager
def sleeping_team() -> Iterator[None]:
    """Keep an additional team: OpenMP gives each thread that runs an operation its own team while the thread lives."""
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
