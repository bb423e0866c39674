"""Ctrl-C and SIGTERM stop a run between two steps, not in the middle of one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupted(Exception):
    """The run was asked to stop, and its state is saved."""


class StopRequest:
    asked = False


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """The first signal asks the loop to stop after the current step; a second one stops it immediately."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, frame: object) -> None:
        if request.asked:
            raise KeyboardInterrupt
        request.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
