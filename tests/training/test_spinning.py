"""OpenMP threads stop spinning while the machine is busy, and only then, and only if the user has not decided."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from cotrain.training import spinning
from cotrain.training.spinning import delays, sleeping_team, sleeping_when_busy, teams_needed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP runtime here")
TORCH_FIRST = """
import time
import torch
from cotrain.training.spinning import sleeping_team, teams_needed
numbers, threads = torch.ones(2**20), torch.get_num_threads()

def cpu_while_waiting():
    used = 0.0
    for _ in range(20):
        numbers.mul_(1.0)
        began = time.process_time()
        time.sleep(0.02)
        used += time.process_time() - began
    return used

before = cpu_while_waiting()
with sleeping_team():
    during = cpu_while_waiting()
after = cpu_while_waiting()
assert during < min(before, after) / 5, (before, during, after)
assert torch.get_num_threads() == threads
"""


@pytest.mark.system
def test_a_sleeping_team_ends_the_spinning_of_a_program_that_loaded_torch_first() -> None:
    if (cpus := len(os.sched_getaffinity(0))) == 1:
        pytest.skip("one CPU has one OpenMP thread")
    unset = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    command = [sys.executable, "-c", TORCH_FIRST]
    subprocess.run(command, env=environment | {"OMP_NUM_THREADS": str(cpus)}, check=True, timeout=300)


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("waiting, busy", [(0.9, True), (0.05, False)])
def test_a_team_sleeps_while_threads_wait_for_a_cpu(
    monkeypatch: pytest.MonkeyPatch, waiting: float, busy: bool
) -> None:
    monkeypatch.setattr(spinning, "LOOK", 0.02)
    monkeypatch.setattr(spinning, "delays", lambda: {"one": waiting * time.monotonic(), "two": 0.0})
    monkeypatch.setattr(spinning, "teams_needed", lambda threads, cpus: 1)
    with sleeping_when_busy():
        time.sleep(0.3)
        assert ("sleeping OpenMP team" in names()) == busy
    assert not names() & {"sleeping OpenMP team", "watches for busy CPUs"}


def test_a_user_who_decided_and_a_single_thread_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.get_num_threads() == 1
    with sleeping_when_busy():
        assert "watches for busy CPUs" not in names()
    monkeypatch.setattr(spinning, "teams_needed", lambda threads, cpus: 1)
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    with sleeping_when_busy():
        assert "watches for busy CPUs" not in names()


@pytest.mark.system
def test_time_without_a_cpu_is_counted() -> None:
    """Two threads of a child that share one CPU wait for it in turn."""
    program = f"""
import os, threading, time
from cotrain.training.spinning import delays
os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})
before, end = delays(), time.monotonic() + 0.5
other = os.fork()
while time.monotonic() < end: pass
if not other: os._exit(0)
os.waitpid(other, 0)
now = delays()
assert max(now[thread] - before[thread] for thread in before) > 0.1, (before, now)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=120)
    assert str(threading.get_native_id()) in delays()


def test_a_sleeping_team_leaves_nothing_behind() -> None:
    with sleeping_team():
        assert "sleeping OpenMP team" in names()
    assert "sleeping OpenMP team" not in names()


@pytest.mark.parametrize("threads, cpus, teams", [(1, 8, 0), (2, 2, 1), (8, 8, 1), (8, 16, 2), (5, 8, 1), (2, 64, 0)])
def test_teams_make_threads_outnumber_cpus(threads: int, cpus: int, teams: int) -> None:
    assert teams_needed(threads, cpus) == teams
    assert teams == 0 or 1 + (1 + teams) * (threads - 1) > cpus
