"""How much memory is available for the data."""

from pathlib import Path

import psutil

from cotrain.progress import needed_and_free
from cotrain.types import UserError

AS_FILES = "save the images as files in a folder, which can be read from disk during training"


def quarter_of_memory() -> float:
    """In GB."""
    return psutil.virtual_memory().total / 4e9


def free_memory() -> float:
    """GB still available from the system, or from the container this process runs in."""
    found = [psutil.virtual_memory().available]
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text() for name in ("memory.max", "memory.current"))
        facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        reclaimable = int(facts["active_file"]) + int(facts["inactive_file"])  # page cache
        found.append(int(limit) - int(used) + reclaimable)
    except (OSError, ValueError, KeyError):  # not Linux, not a container, or no limit
        pass
    return min(found) / 1e9


def check_room(what: str, gigabytes: float, remedy: str = AS_FILES) -> None:
    """Refuse data that do not fit in memory, before anything is read."""
    free = free_memory()
    if gigabytes > free:
        needed, left = needed_and_free(1e9 * gigabytes, 1e9 * free)
        raise UserError(f"{what} needs {needed} of memory, but only {left} is free; {remedy}")
