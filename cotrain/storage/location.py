"""The folder where cotrain keeps downloaded and decoded data and features, shared by all processes of a user."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout
from rich.console import Console

from cotrain.progress import say


def home() -> Path:
    """$COTRAIN_HOME, or the user's cache folder."""
    chosen = os.environ.get("COTRAIN_HOME")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("cotrain")


@contextmanager
def one_at_a_time(lock_file: Path, doing: str, console: Console) -> Iterator[None]:
    """One process at a time makes what is shared; the others say what they wait for, and then use it."""
    lock = FileLock(lock_file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        say(console, f"waiting for another process that is {doing}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
