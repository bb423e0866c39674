"""What a run reports during training: JSON lines in its folder, a bar in a terminal, plain lines elsewhere."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from cotrain.progress import PLAIN_SECONDS, clock, say
from cotrain.runs.tracking import TensorBoard
from cotrain.storage.reading import read_bytes, reason
from cotrain.storage.regular import open_to_append
from cotrain.storage.writing import write_whole
from cotrain.types import UserError

SELECTED = ("agreement", "selected")  # the methods' names for the fraction of unlabelled images with a pseudo-label


class Window:
    """Means of the logged values since the last `read`. Values stay on the device until then."""

    def __init__(self) -> None:
        self.total: dict[str, Tensor] = {}
        self.count = 0

    def add(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            value = value.detach()
            self.total[name] = self.total[name] + value if name in self.total else value
        self.count += 1

    def read(self) -> dict[str, float]:
        means = {name: total.item() / self.count for name, total in self.total.items()}
        self.total, self.count = {}, 0
        return means


class Log:
    """Writes log.jsonl. Opening it at a step drops later lines, which a killed run logged after its last checkpoint.

    Without a path, nothing is written.
    """

    def __init__(self, path: Path | None, step: int, tracker: TensorBoard | None = None) -> None:
        self.tracker = tracker
        if path is None:
            self.file: IO[str] = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            return
        kept = "".join(json.dumps(row) + "\n" for row in read_log(path) if row["step"] <= step).encode()
        if not path.exists() or read_bytes(path) != kept:
            write_whole(path, kept)
        self.file = open(open_to_append(path, inside=path.parent), "a", encoding="utf-8", newline="\n")  # noqa: SIM115

    def write(self, row: Mapping[str, float]) -> None:
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        if self.tracker is not None:
            self.tracker.write(row)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if self.tracker is not None:
            self.tracker.close()


def read_log(path: Path) -> list[dict[str, float]]:
    """The rows of a log, up to the first that a crash left incomplete."""
    rows: list[dict[str, float]] = []
    try:
        lines = read_bytes(path).split(b"\n")[:-1] if path.exists() else []
    except OSError as error:
        raise UserError(f"cannot read {path} ({reason(error)})") from error
    for line in lines:
        try:
            row = json.loads(line)  # a method may log NaN
        except (ValueError, RecursionError):
            break
        if not isinstance(row, dict) or not isinstance(row.get("step"), int) or not all(map(_is_number, row.values())):
            break
        rows.append(row)
    return rows


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63)


class StepProgress:
    """Shows step, steps/s, time left and the latest values: a live bar in a terminal, occasional lines elsewhere.

    `terms` names the values that are losses; `then` is how many seconds later work will take.
    """

    def __init__(
        self, console: Console, title: str, done: int, steps: int, terms: Sequence[str], then: float = 0.0
    ) -> None:
        self.console, self.title, self.steps, self.then, self.terms = console, title, steps, then, terms
        self.first, self.began, self.last_line = done, time.monotonic(), time.monotonic()
        self.values = ""
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.1f}/s", markup=False),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[in_all]}", markup=False),
            TextColumn("{task.fields[values]}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(title, completed=done, total=steps, rate=0.0, in_all="", values="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def advance(self, step: int, values: Mapping[str, float] | None = None) -> None:
        """Show this step; `values` are given when there are new ones."""
        if values is not None:
            losses = [f"{values[name]:.2f}" for name in self.terms if name in values]
            others = [f"{name} {value:.2f}" for name, value in values.items() if name not in self.terms]
            self.values = "  ".join([*others, f"losses {' '.join(losses)}"])
        rate = (step - self.first) / max(time.monotonic() - self.began, 1e-9)
        left = (self.steps - step) / max(rate, 1e-9)
        in_all = f"  {clock(left + self.then)} in total" if self.then else ""
        self.bar.update(self.task, completed=step, rate=rate, in_all=in_all, values=self.values)
        if not self.console.is_terminal and (step == self.steps or time.monotonic() - self.last_line > PLAIN_SECONDS):
            self.last_line = time.monotonic()
            pace = f"{rate:.1f} steps/s  {clock(left)} left{in_all}"
            say(self.console, f"{self.title}: step {step}/{self.steps}  {pace}  {self.values}")
