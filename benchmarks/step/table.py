"""The table of this benchmark: a step compared with its lower bound, the released code, and other settings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from benchmarks.step.worker import PROGRAM
from cotrain.comparison.race import Timing, race
from cotrain.comparison.step_worker import Task
from cotrain.config import Config
from cotrain.config.recipes import as_released
from cotrain.device import check_compiler, pick_device, pick_precision
from cotrain.methods.mhct import MultiHeadCoTraining
from cotrain.types import Method, UserError


@dataclass(frozen=True)
class Row:
    """One comparison: our time, the other's time, and their ratio."""

    what: str
    other: str
    ours: Timing
    others: Timing
    target: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.others.least / self.ours.least

    @property
    def ratio_of_medians(self) -> float:
        return self.others.median / self.ours.median

    def as_dict(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "other": self.other,
            "our_ms": 1000 * self.ours.least,
            "our_median_ms": 1000 * self.ours.median,
            "other_ms": 1000 * self.others.least,
            "other_median_ms": 1000 * self.others.median,
            "ratio": self.ratio,
            "ratio_of_medians": self.ratio_of_medians,
            "target": self.target,
            "our_gb": self.ours.memory,
            "other_gb": self.others.memory,
            "note": self.note,
        }


ROUTED = "mhct_routed"  # the method with the cheapest step of several heads


@dataclass(frozen=True)
class Bench:
    """What to measure: the step of a config on made-up images of some shape."""

    config: Config
    shape: tuple[int, int, int] = (32, 32, 3)
    classes: int = 10
    turns: int = 5

    @property
    def task(self) -> Task:
        return Task(self.config.model_dump(), shape=self.shape, classes=self.classes)

    def changed(self, **changes: Any) -> Task:
        return replace(self.task, config=self.config.changed(changes).model_dump())

    def versus(self, what: str, other: str, ours: Task, others: Task, target: float | None = None) -> Row:
        timings = race({"ours": ours, "others": others}, self.turns, program=PROGRAM)
        return Row(what, other, timings["ours"], timings["others"], target)

    def limit(self) -> Row:
        """The step against its bare convolutions and batch-norms: at 0.8 the step takes 1.25 times as long."""
        row = self.versus("step", "its bare convolutions and batch-norms", self.task, self._doing("bare"), 0.8)
        share = race({"profile": self._doing("profile")}, turns=1, program=PROGRAM)["profile"].last
        gflop = row.others.first["gflop"]
        return replace(
            row,
            note=f"{gflop / row.ours.least:.0f} GFLOP/s against {gflop / row.others.least:.0f}; "
            f"{100 * share['convolutions']:.0f} % convolutions, {100 * share['batch_norm']:.0f} % batch-norm",
        )

    def released(self, target: float | None = None) -> Row:
        """The step against the released computation, which keeps no freed memory. The note compares their losses."""
        readings = as_released(self.config).model_copy(update={"augment": self.config.augment})
        theirs = replace(self._doing("released"), config=readings.model_dump(), keep_memory=False)
        row = self.versus("step", "released computation", self.task, theirs, target)
        task = replace(self.task, config=readings.model_dump())
        joint = race({"joint": task}, turns=1, program=PROGRAM)["joint"].first
        difference = joint["supervised"] + joint["unsupervised"] - row.others.first["loss"]
        return replace(row, note=f"first loss in joint mode differs by {abs(difference):.1g}")

    def views(self, kind: str, target: float | None = None) -> Row:
        """Our kernel against Pillow: the time for strong or weak views of 448 images, on one thread each."""
        height, width, _ = self.shape
        ours, theirs = (replace(self._doing(f"{kind} views, {by}"), images=448) for by in ("kernel", "Pillow"))
        return self.versus(f"{kind} views of {height}x{width}", "Pillow", ours, theirs, target)

    def settings(self, compiled: bool) -> dict[str, Task]:
        """The same step under other settings."""
        run, device = self.config.run, pick_device(self.config.run.device)
        used = pick_precision(run.precision, device)
        changes: dict[str, dict[str, Any]] = {}
        for name in ("float32", "bfloat16", "float16"):
            try:
                if pick_precision(name, device) != used:
                    changes[f"run.precision={name}"] = {"run.precision": name}
            except UserError:
                continue
        if compiled:
            check_compiler(device)
            changes["run.compile=true"] = {"run.compile": True}
        others = {name: self.changed(**change) for name, change in changes.items()}
        others["freed memory given back"] = replace(self.task, keep_memory=False)
        if device.type == "cpu" and torch.get_num_threads() > 1:
            others["half the threads"] = replace(self.task, threads=torch.get_num_threads() // 2)
        return others

    def methods(self) -> dict[str, Task]:
        """Cheaper steps."""
        others: dict[str, dict[str, Any]] = {"labelled images only": {"method": "supervised"}}
        method = self.config.method
        if isinstance(method, MultiHeadCoTraining):
            same = {"method.heads": method.heads, "method.weak_pass": method.weak_pass}
            others |= {
                f"method={ROUTED}": {"method": ROUTED, **same},
                "method.strong_views=shared": {"method.strong_views": "shared"},
                "one head: FixMatch": {"method.heads": 1},
            }
        return {name: self.changed(**changes) for name, changes in others.items()}

    def comparisons(self, compiled: bool = False, released: float | None = None) -> list[Callable[[], Row]]:
        """All comparisons of the step, each measured when called. `released` is the target for the released code."""
        rows: list[Callable[[], Row]] = [self.limit]
        if _as_released_code_can(self.config.method):
            rows.append(partial(self.released, released))
        others = {**self.settings(compiled), **self.methods()}
        return rows + [partial(self.versus, "step", name, self.task, task) for name, task in others.items()]

    def _doing(self, what: str) -> Task:
        return replace(self.task, what=what)


def _as_released_code_can(method: Method) -> bool:
    """Three heads, each with its own strong view."""
    return isinstance(method, MultiHeadCoTraining) and method.heads == 3 and method.strong_views == "per_head"
