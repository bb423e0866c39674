"""A program that loads torch before cotrain: its OpenMP threads sleep soon once it trains."""

import os
import subprocess
import sys

import pytest
import torch

from cotrain.openmp import WAITING
from cotrain.training.spinning import bound_spinning_late, sleeping_teams

linux = pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP runtime here")
TORCH_FIRST = """
import os, time
import torch
import cotrain
from cotrain.training.spinning import bound_spinning_late
assert "GOMP_SPINCOUNT" not in os.environ
numbers = torch.ones(2**20)

def cpu_while_waiting():
    used = 0.0
    for _ in range(20):
        numbers.mul_(1.0)
        began = time.process_time()
        time.sleep(0.02)
        used += time.process_time() - began
    return used

before, threads = cpu_while_waiting(), torch.get_num_threads()
assert bound_spinning_late() and bound_spinning_late()
after = cpu_while_waiting()
assert after < before / 5, (before, after)
assert torch.get_num_threads() == threads
"""


@linux
def test_waiting_threads_stop_spinning() -> None:
    if (cpus := len(os.sched_getaffinity(0))) == 1:
        pytest.skip("one CPU has one OpenMP thread")
    environment = {name: value for name, value in os.environ.items() if name not in WAITING}
    command = [sys.executable, "-c", TORCH_FIRST]
    subprocess.run(command, env=environment | {"OMP_NUM_THREADS": str(cpus)}, check=True, timeout=300)


@linux
def test_a_user_who_set_the_policy_and_a_single_thread_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    assert torch.get_num_threads() == 1
    assert not bound_spinning_late()
    monkeypatch.setattr(torch, "get_num_threads", lambda: len(os.sched_getaffinity(0)))
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert not bound_spinning_late()


@pytest.mark.parametrize("threads, cpus, teams", [(1, 8, 0), (2, 2, 1), (8, 8, 1), (8, 16, 2), (5, 8, 1), (2, 64, 0)])
def test_sleeping_teams_make_threads_outnumber_cpus(threads: int, cpus: int, teams: int) -> None:
    assert sleeping_teams(threads, cpus) == teams
    assert teams == 0 or 1 + (1 + teams) * (threads - 1) > cpus
