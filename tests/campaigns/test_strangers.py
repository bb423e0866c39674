"""Strangers' files at a small size: that nothing runs, and that it would be noticed. `make campaigns` does the rest."""

import sys
from pathlib import Path

import pytest

from tests.campaigns import strangers
from tests.processes import Running

FEW = ("stranger.evil:build", "torch.hub:load", "hf:stranger/model", "hf:somebody/model")


def attacked(parts: tuple[str, ...]) -> None:
    """In a process of its own, because an audit hook stays."""
    strangers.BACKBONES = {name: strangers.BACKBONES[name] for name in FEW}
    sys.argv = ["strangers", "--only", *parts]
    strangers.main()


def careless() -> None:
    """As the campaign, for a command that imports what it is told."""
    sys.path.insert(0, "")
    strangers.BACKBONES = {"evil:build": None}
    strangers.USES = {"import": lambda: __import__("evil")}
    sys.argv = ["strangers", "--only", "runs"]
    strangers.main()


@pytest.mark.system
@pytest.mark.parametrize("part", [*strangers.PARTS])
def test_nothing_of_a_stranger_runs(part: str) -> None:
    done = Running(attacked, (part,)).wait()
    assert done.returncode == 0 and " 0 findings" in done.stdout, done.stdout + done.stderr


@pytest.mark.system
def test_code_that_runs_is_noticed(tmp_path: Path) -> None:
    done = Running(careless).wait()
    assert done.returncode == 1 and "wrote the canary" in done.stdout, done.stdout + done.stderr
