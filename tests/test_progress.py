"""A bar in a terminal, lines elsewhere."""

import io
import os
import pty
import re
import sys
from pathlib import Path
from select import select

import pytest
from rich.console import Console

from cotrain import progress
from cotrain.cli import fit
from cotrain.cli.main import main
from cotrain.progress import clock, counted, needed_and_free, size_of
from cotrain.runs import log
from cotrain.runs.log import Log, StepProgress, read_log
from tests.processes import Running


def train_in_terminal(name: str, command: str) -> None:
    """In a process that was forked from one without a terminal."""
    terminal = os.open(name, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(terminal, descriptor)
    os.close(terminal)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", closefd=False) for descriptor in (1, 2))
    fit.console = Console()
    main(command.split())


@pytest.mark.system
def test_a_terminal_gets_a_live_bar(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = (
        "fit digits --labels 20 --steps 12 --optim.labelled 8 --optim.unlabelled 16 --run.log_every 2 --no-baseline "
        "--run.report false"
    )
    terminal = {"COLUMNS": "80", "TERM": "xterm"}
    process = Running(train_in_terminal, os.ttyname(theirs), command, cwd=tmp_path, environment=terminal)
    process.wait_until(lambda: select([ours], [], [], 0)[0])  # then it has opened the terminal
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait().returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert shown.count(b"\x1b[2K") > 1, "the line is drawn over and over"
    assert "12/12" in text
    for word in ("/s", "agreement 0.", "losses ", "00:00", "ensemble of 3 heads"):
        assert word in text


def test_elsewhere_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PLAIN_SECONDS", 0.0)
    output = io.StringIO()
    with StepProgress(Console(file=output), "training", 0, 3, ("supervised", "unsupervised")) as progress:
        for step in (1, 2, 3):
            progress.advance(step, {"agreement": step / 10, "supervised": 2.0, "unsupervised": 0.125})
    lines = output.getvalue().splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"training: step 2/3  [\d.]+ steps/s  0:00 left  agreement 0\.20  losses 2\.00 0\.12", lines[1])


def test_items_may_stand_for_several_and_some_may_be_done_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", -1.0)
    output = io.StringIO()
    batches = [[1, 2], [3, 4], [5]]
    passed = counted(batches, 1005, "predicting images", Console(file=output), start=1000, size=len)
    assert list(passed) == batches
    assert output.getvalue().splitlines() == [
        "predicting images: 1,002 of 1,005, 0:00 left",
        "predicting images: 1,004 of 1,005, 0:00 left",
    ]
    output = io.StringIO()
    terminal = Console(file=output, force_terminal=True, width=100)
    assert list(counted(batches, 1005, "predicting images", terminal, start=1000, size=len)) == batches
    assert "1005/1005" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.getvalue())


def test_times_read_like_a_clock() -> None:
    assert [clock(seconds) for seconds in (0, 59.6, 61, 3600 + 125)] == ["0:00", "1:00", "1:01", "1:02:05"]


def test_reopening_a_log_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Log(path, 0) as lines:
        for step in (5, 10, 15):
            lines.write({"step": step})
    with open(path, "a") as file:
        file.write('{"step": 18, "supe')
    with Log(path, 10) as lines:
        lines.write({"step": 12})
    assert [row["step"] for row in read_log(path)] == [5, 10, 12]
    with open(path, "a") as file:
        file.write('{"step": 13, "torn')
    with Log(path, 12) as lines:
        lines.write({"step": 14})
    assert [row["step"] for row in read_log(path)] == [5, 10, 12, 14]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (100, "100 bytes"),
        (999, "999 bytes"),
        (1_000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_960, "1.0 MB"),
        (12_300_000, "12.3 MB"),
        (1.5e9, "1.5 GB"),
        (2.5e15, "2,500.0 TB"),
    ],
)
def test_sizes_have_the_unit_that_shows_them(count: float, words: str) -> None:
    assert size_of(count) == words


def test_sizes_that_are_compared_differ() -> None:
    assert needed_and_free(2_688, 2_687) == ("2.688 kB", "2.687 kB")
    assert needed_and_free(3e9, 1e6) == ("3.0 GB", "1.0 MB")
