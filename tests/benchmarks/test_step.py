"""The benchmark measures what it claims: the same step, the released computation, the bare operations."""

import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.step.__main__ import advice, shown
from benchmarks.step.bare import Bare
from benchmarks.step.pillow import normalised_by_pillow, recipes
from benchmarks.step.table import Bench, Row
from benchmarks.step.worker import released
from cotrain import recipe_named
from cotrain.augment import PRESETS, draw_strong, normalised
from cotrain.comparison.race import Timing, race
from cotrain.comparison.step_worker import Task, drawn, made_up_images, training_steps
from cotrain.config.recipes import as_released
from cotrain.training.allocator import keep_freed_memory
from cotrain.training.step import autocast
from tests.processes import Running

CONFIG = recipe_named("small32").changed({"optim.labelled": 6, "optim.unlabelled": 10, "optim.steps": 50})


def test_the_released_computation_has_our_loss_in_joint_mode() -> None:
    config = as_released(CONFIG).changed({"method.unsupervised_ramp": 0})
    task = Task(config.model_dump(), images=200)
    ours, theirs = training_steps(task, config), released(task, config)
    for tolerance in (1e-5, 1e-5, 1e-3):  # roundings differ with the memory layout, and grow from step to step
        losses = ours(1)
        assert losses["supervised"] + losses["unsupervised"] == pytest.approx(theirs(1)["loss"], rel=tolerance)


@pytest.mark.parametrize("preset", PRESETS)
def test_pillow_races_with_the_same_views(preset: str) -> None:
    policy, images, rows = PRESETS[preset], torch.from_numpy(made_up_images(40, 32, 32, 3)), np.arange(40)
    draw = draw_strong(policy, 40, 32, 32, np.random.default_rng(0))
    mean, std = [0.5, 0.4, 0.3], [0.25, 0.2, 0.3]
    theirs = normalised_by_pillow(images, rows, recipes(draw), policy, mean, std)
    torch.testing.assert_close(theirs, normalised(images, rows, draw, policy, mean, std), rtol=1e-5, atol=1e-5)


def test_bare_operations_are_those_of_the_step() -> None:
    task = Task(CONFIG.model_dump(), images=200)
    training = drawn(task, CONFIG).start()
    counter = FlopCounterMode(display=False)

    def step() -> None:
        with counter:
            training.update(training.source.batch(0))

    bare = Bare.record(training.state.net, step, autocast(CONFIG, training.source.device))
    of_convolutions = sum(
        flops for operation, flops in counter.get_flop_counts()["Global"].items() if "convolution" in str(operation)
    )
    assert bare.gflop == pytest.approx(of_convolutions / 1e9, rel=1e-6)
    norms = sum(isinstance(call.layer, torch.nn.BatchNorm2d) for call in bare.calls)
    assert norms == 2 * (4 + 3 * 3), "two passes: two units of the trunk, one and the classifier's in each head"
    bare.run()


@pytest.mark.system
def test_workers_take_turns_and_report_their_times() -> None:
    task = Task(CONFIG.model_dump(), images=200, threads=1)
    timings = race(
        {"step": task, "labelled": replace(task, config=CONFIG.changed({"method": "supervised"}).model_dump())}, 4, 0.1
    )
    assert [len(timing.seconds) for timing in timings.values()] == [4, 4]
    assert timings["labelled"].least < timings["step"].least
    assert timings["step"].first["unsupervised"] > 0
    assert "unsupervised" not in timings["labelled"].first
    assert 0.1 < timings["step"].memory < 5


def a_row(other: str, ours: float, others: float) -> Row:
    return Row("step", other, *(Timing([2 * value, value], 1.0, {}, {}) for value in (ours, others)), note="a note")


def test_advice_names_what_is_clearly_faster_and_nothing_else() -> None:
    bench = Bench(CONFIG)
    rows = [a_row("bare", 1.0, 0.9), a_row("run.precision=bfloat16", 1.0, 0.5), a_row("run.compile=true", 1.0, 0.97)]
    lines = list(advice(bench, rows))
    assert lines[0] == "recommended: --run.precision bfloat16 (2.00 times as fast)"
    assert lines[-1].startswith("50 steps of 1.5 s take 1:15 here")
    assert "the current settings; none of 1 others" in next(advice(bench, [rows[0], rows[2]]))
    assert "1.00" not in "".join(shown(rows[1]))
    assert "0.50 (0.50)" in "".join(shown(rows[1]))
    cheaper = advice(bench, [*rows, a_row("method=mhct_routed", 1.0, 0.5)])
    assert any(line.startswith("cheaper: --method mhct_routed takes 1/2.0 of the time;") for line in cheaper)


def test_cheaper_steps_are_of_the_same_heads() -> None:
    tasks = Bench(CONFIG.changed({"method.heads": 5, "method.weak_pass": "joint"})).methods()
    routed = tasks["method=mhct_routed"].config["method"]
    assert (routed["name"], routed["heads"], routed["weak_pass"]) == ("mhct_routed", 5, "joint")


@pytest.mark.system
def test_a_setting_that_a_worker_cannot_have_is_one_line() -> None:
    task = Task(CONFIG.changed({"run.precision": "float16", "run.device": "cpu"}).model_dump(), images=200)
    with pytest.raises(ValueError, match="float16 is for GPUs"):
        race({"step": task})


def grow_and_free(keep: bool) -> None:
    """Prints whether 200 MB stay with the process that has freed them."""
    assert not keep or keep_freed_memory()
    before = megabytes()
    tensor = torch.ones(50_000_000)
    del tensor
    print(megabytes() - before > 150)


def megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.system
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked")
def test_freed_memory_is_kept_when_asked() -> None:
    for keep in (True, False):
        done = Running(grow_and_free, keep).wait()
        assert (done.returncode, done.stdout) == (0, f"{keep}\n"), done.stderr


@pytest.mark.slow
def test_the_command_measures_everything_and_advises() -> None:
    changes = ["--set", "optim.labelled=4", "--set", "optim.unlabelled=4", "--size", "16", "--turns", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.step", *changes], capture_output=True, text=True, timeout=900
    )
    assert (done.returncode, done.stderr) == (0, "")
    for name in (
        "bare convolutions",
        "released computation",
        "routed",
        "FixMatch",
        "strong views of 16x16",
        "recommended",
    ):
        assert name in done.stdout
