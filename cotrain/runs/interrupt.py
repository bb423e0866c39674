"""Ctrl-C, SIGTERM and a closed terminal stop a run between two steps, not in the middle of one."""

import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

CLOSED = {getattr(signal, name) for name in ("SIGHUP",) if hasattr(signal, name)}  # the terminal; not on Windows
BREAK = {getattr(signal, name) for name in ("SIGBREAK",) if hasattr(signal, name)}  # on Windows: also a closed console
STOPPING = {signal.SIGINT, signal.SIGTERM, *CLOSED, *BREAK}
OUTPUTS = (1, 2)


class Interrupted(Exception):
    """The run was asked to stop, and its state is saved."""


class StopRequest:
    asked = False


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """The first signal asks the loop to stop after the current step; a second one stops it immediately.

    A closed terminal counts once: the shell and the system may both send a signal.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int) -> None:
        if request.asked and number not in CLOSED:
            raise KeyboardInterrupt
        request.asked = True

    with handled_by(ask):
        yield request


@contextmanager
def handled_by(stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop` with the number of each signal that asks the process to stop. Only the main thread can do this."""

    def handle(number: int, frame: object) -> None:
        _let_go_of_closed_terminal()
        stop(number)

    before = {number: signal.signal(number, handle) for number in STOPPING if not _is_nohup(number)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_like_ctrl_c() -> None:
    """From now on, a closed terminal or console and Ctrl-Break also raise KeyboardInterrupt."""

    def interrupt(number: int, frame: object) -> None:
        _let_go_of_closed_terminal()
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in CLOSED | BREAK:
        if not _is_nohup(number):
            signal.signal(number, interrupt)


def ignore_stopping() -> None:
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def _is_nohup(number: int) -> bool:
    """Whether `nohup` started the process, which then survives a closed terminal."""
    return number in CLOSED and signal.getsignal(number) == signal.SIG_IGN


def _let_go_of_closed_terminal() -> None:
    """What is printed to a closed terminal is an error, which would end the process before its state is saved."""
    for output in OUTPUTS:
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(output).st_mode) and not os.isatty(output):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, output)
                os.close(null)
