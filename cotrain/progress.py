"""Progress of long tasks: a bar with the remaining time in a terminal, plain lines every few seconds elsewhere."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

T = TypeVar("T")
PLAIN_SECONDS = 10.0  # between lines without a terminal


def terminal(*, stderr: bool = False, quiet: bool = False) -> Console:
    """The console of a command. It prints what users write, such as [/x] or :x:, and what their files are called."""
    return Console(stderr=stderr, quiet=quiet, markup=False, emoji=False)


def say(console: Console, line: str) -> None:
    """Print a line literally: no wrapping, no colours, no markup."""
    console.print(line, soft_wrap=True, highlight=False, markup=False)


def counted(
    items: Iterable[T],
    total: int | None,
    what: str,
    console: Console,
    *,
    start: int = 0,
    size: Callable[[T], int] = lambda item: 1,
) -> Iterator[T]:
    """Yield the items and show how many have passed. Without a total, only the count is shown.

    An item may stand for several (`size`), and some may have passed earlier (`start`).
    """
    number = start
    began = last = time.monotonic()
    live = console.is_terminal
    shown = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not live,
    )
    with shown:
        task = shown.add_task(what, total=total, completed=start)
        for item in items:
            yield item
            number += size(item)
            if live:
                shown.update(task, completed=number)
            elif (now := time.monotonic()) - last > PLAIN_SECONDS and number != total:
                last = now
                seconds = (now - began) / (number - start)
                left = f" of {total:,}, {clock(seconds * (total - number))} left" if total else ""
                say(console, f"{what}: {number:,}{left}")


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def needed_and_free(needed: float, free: float) -> tuple[str, str]:
    """Both sizes with as many digits as it takes to tell them apart."""
    for digits in range(1, 13):
        if (sizes := (size_of(needed, digits), size_of(free, digits)))[0] != sizes[1]:
            break
    return sizes


def size_of(count: float, digits: int = 1) -> str:
    """So many bytes in the unit that leaves one to three digits before the point."""
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while round(count, digits) >= 1000 and len(units) > 1:
        count, units = count / 1000, units[1:]
    return f"{count:,.0f} bytes" if units[0] == "bytes" else f"{count:,.{digits}f} {units[0]}"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
