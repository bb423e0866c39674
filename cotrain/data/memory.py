"""How much memory there is for images."""

from pathlib import Path

import psutil

from cotrain.types import UserError


def quarter_of_memory() -> float:
    """GB."""
    return psutil.virtual_memory().total / 4e9


def free_memory() -> float:
    """GB that the system, or the container this runs in, can still give."""
    found = [psutil.virtual_memory().available]
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text() for name in ("memory.max", "memory.current"))
        facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        reclaimable = int(facts["active_file"]) + int(facts["inactive_file"])  # copies of files that can be dropped
        found.append(int(limit) - int(used) + reclaimable)
    except (OSError, ValueError, KeyError):  # no Linux, no container, or one without a limit
        pass
    return min(found) / 1e9


def check_room(what: str, gigabytes: float) -> None:
    """Refuse, before anything is read, what cannot be held."""
    free = free_memory()
    if gigabytes > free:
        raise UserError(
            f"{what} needs {gigabytes:.3g} GB of memory, and {free:.3g} GB are free; images as files in a folder "
            "are read from disk as they are used"
        )
