"""Standard output and standard error that were closed before the command began, as by `>&-`."""

import io
import os
import sys

NUMBERS = {"stdin": 0, "stdout": 1, "stderr": 2}


def prepare_streams() -> None:
    """Discard what goes to a closed stream. Print file names unchanged: they are bytes."""
    closed = [name for name in NUMBERS if getattr(sys, name) is None]
    for name in closed:
        _take(NUMBERS[name])
    for name in closed:
        setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            utf8 = stream.encoding.lower().startswith("utf")
            stream.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


def _take(number: int) -> None:
    """Occupy the descriptor. Otherwise, a file would get it, and what libraries print would go into that file."""
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)


def is_discarded(stream: object) -> bool:
    """Whether it was closed. One that a shell redirects to /dev/null was not: its name is <stdout>."""
    return getattr(stream, "name", None) == os.devnull
