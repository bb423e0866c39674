"""What stops a run as Ctrl-C does: also a terminal that is closed, and Ctrl-Break."""

import os
import pty
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cotrain.cli.main import main
from cotrain.runs import interrupt
from cotrain.runs.checkpoint import Checkpoints
from cotrain.runs.interrupt import stop_like_ctrl_c, stop_requests
from tests.few_digits import few_digits_file
from tests.labelling.served import command, photos, visit
from tests.processes import Running

BREAK = signal.SIGUSR1  # in the place of SIGBREAK, which only Windows has


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(interrupt, "BREAK", {BREAK})
    monkeypatch.setattr(interrupt, "STOPPING", {*interrupt.STOPPING, BREAK})
    before = {number: signal.getsignal(number) for number in interrupt.STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, BREAK])
def test_the_first_signal_asks_and_a_second_ctrl_c_does_not_wait(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stop_requests() as request:
        assert not request.asked
        os.kill(os.getpid(), number)
        assert request.asked
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(number) == before


def test_a_closed_terminal_may_say_so_twice() -> None:
    with stop_requests() as request:
        for _ in range(2):  # by the shell, and by the system
            os.kill(os.getpid(), signal.SIGHUP)
        assert request.asked


def test_nohup_is_respected() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop_like_ctrl_c()
    with stop_requests() as request:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not request.asked
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize("number", [signal.SIGHUP, BREAK])
def test_what_has_no_steps_ends_as_with_ctrl_c(number: signal.Signals) -> None:
    stop_like_ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


def in_terminal(target: Callable[[list[str]], None], words: list[str], closing: Path, content: str = "") -> None:
    """Run this in a terminal of its own, close it as soon as the file has this content, and print the exit code."""
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        sys.stdout, sys.stderr = (open(output, "w", closefd=False) for output in (1, 2))  # noqa: SIM115
        stop_like_ctrl_c()
        target(words)
        os._exit(0)
    os.set_blocking(terminal, False)
    while not (closing.exists() and content in closing.read_text()):
        with suppress(OSError):  # nothing to read
            print(os.read(terminal, 10_000).decode(), end="", flush=True)
        time.sleep(0.01)
    os.close(terminal)
    print("exit code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@pytest.mark.system
def test_a_run_is_saved_when_its_terminal_is_closed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["fit", str(few_digits_file()), "--out", str(out), "--steps", "100000", "--no-baseline"]
    words += ["--set", "run.log_every=1", "--set", "run.checkpoint_every=100000"]
    done = Running(in_terminal, main, words, out / "log.jsonl", '"step": 3').wait()
    assert done.stdout.endswith("exit code 130\n"), done
    assert Checkpoints(out / "checkpoint").newest()


@pytest.mark.system
def test_labels_are_written_when_the_terminal_is_closed(tmp_path: Path) -> None:
    folder, closing = photos(tmp_path / "photos"), tmp_path / "closing"
    process = Running(in_terminal, command, [str(folder), "--no-browser", "--port", "0"], closing)
    process.wait_until(lambda: re.search(r"open http\S+\r?\n", process.stdout))
    client = visit(re.findall(r"open (http\S+)", process.stdout)[0])
    client.label(client.name("red")["red"], 0)
    closing.touch()
    assert process.wait().stdout.endswith("exit code 0\n")
    assert "000.png,red" in (folder / "labels.csv").read_text()
