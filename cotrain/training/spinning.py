"""Bound the spinning of OpenMP threads in a program that loaded torch before cotrain, too late for `cotrain.openmp`.

libgomp spins 100 times instead of 300,000 while a process has more OpenMP threads than CPUs (GCC's manual on
GOMP_SPINCOUNT). Teams of threads that sleep are enough for that. They change no result and cost no time.
"""

import os
import sys
import threading
from functools import cache

import torch

from cotrain.openmp import WAITING

MOST_TEAMS = 2  # with fewer threads than half the CPUs, other processes find a free CPU
SPLIT = 2**18  # elements: torch splits such an operation over threads


def bound_spinning_late() -> bool:
    """Whether it was done. It is not if the user or `cotrain.openmp` has set a limit, or with few threads."""
    if sys.platform != "linux" or any(name in os.environ for name in WAITING):
        return False
    return _start(sleeping_teams(torch.get_num_threads(), len(os.sched_getaffinity(0)))) > 0


def sleeping_teams(threads: int, cpus: int) -> int:
    """How many make the OpenMP threads outnumber the CPUs. Each adds its threads but the one that exists already."""
    teams = (cpus - 1) // (threads - 1) if threads > 1 else 0
    return teams if teams <= MOST_TEAMS else 0


@cache
def _start(teams: int) -> int:
    for _ in range(teams):
        ready = threading.Event()
        threading.Thread(target=_sleep, args=(ready,), name="sleeping OpenMP team", daemon=True).start()
        ready.wait()
    return teams


def _sleep(ready: threading.Event) -> None:
    """OpenMP gives each thread that runs an operation a team of its own, for as long as it lives."""
    torch.ones(SPLIT).mul_(2.0)
    ready.set()
    threading.Event().wait()
