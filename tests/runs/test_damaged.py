"""Run folders that are damaged, edited, or a stranger's: every mistake is one line that names the file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cotrain
from cotrain import Config, Dataset, UserError, from_arrays, recipe_named
from cotrain.cli.report import report_command
from cotrain.cli.result_table import result_table
from cotrain.data import draw_split
from cotrain.fitting.evaluate import evaluate
from cotrain.report.doubtful import Doubtful, doubtful_of
from cotrain.runs.checkpoint import read_tensors, write_tensors
from cotrain.runs.log import read_log
from cotrain.runs.result import Result
from cotrain.runs.run import DOES_NOT_BELONG, SUSPECT_LABELS, Run
from cotrain.training.checks import check_trainable
from cotrain.training.experiment import Experiment, Prepared
from cotrain.training.state import restore, save
from tests.made_up import made_up_run, some_data

DEEP = "[" * 50_000 + "]" * 50_000


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_run(tmp_path_factory.mktemp("made") / "run", some_data()).folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def used(folder: Path) -> None:
    """Everything that reads a run without its data."""
    run = Run.open(folder)
    assert run.result is not None and isinstance(run.command, str) and run.packages is not None
    cotrain.load(folder)
    report_command(folder)


def test_a_whole_run_can_be_used(folder: Path) -> None:
    used(folder)


@pytest.mark.parametrize("content", ["", "null", "[]", "3", '"text"', DEEP, '{"a": ' + DEEP + "}", "{}", "[[1], 2]"])
@pytest.mark.parametrize("name", ["config.json", "split.json", "result.json", "command.json", "packages.json"])
def test_files_with_other_content_are_named(name: str, content: str, folder: Path) -> None:
    harmless = (name, content) in {("command.json", '"text"'), ("packages.json", "{}"), ("config.json", "{}")}
    (folder / name).write_text(content)
    if not harmless:
        with pytest.raises(UserError, match=name):
            used(folder)


RESULTS = {
    "test_error": 1e300,
    "median_test_error": "ten",
    "temperature": 1e-300,
    "calibration": {"ensemble": {"fitted": {"temperature": 1e300}}},
    "used": "another",
    "verdict": {"word": "helped"},
    "cross_validation": {"errors": []},
    "warnings": 3,
    "seconds": 1e300,
    "agreement": "all",
    "versions": ["torch"],
    "temperature_fitted_on": 7,
    "leaks": 2**70,
    "test_interval": [1.0],
    "recalls": [{"images": 3, "recall": 100.0, "low": 40.0, "high": 100.0}],  # of which class?
    "class_shares": [{"share": 0.5, "low": 0.4, "high": 0.6, "pseudo_labels": 3}],
}
SHARE = {"class": "cat", "share": 0.5, "low": 0.4, "high": 0.6, "pseudo_labels": 3}


@pytest.mark.parametrize(("key", "value"), RESULTS.items())
def test_a_result_with_a_wrong_type_is_named(key: str, value: Any, folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, key: value}))
    with pytest.raises(UserError, match=rf"result\.json is damaged: {key}.*; delete it and add --resume"):
        used(folder)


def test_shares_of_other_classes_are_named(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "class_shares": [SHARE]}))
    with pytest.raises(UserError, match=r"result\.json is damaged: class_shares has 1 of 3 classes"):
        used(folder)


def test_recalls_without_their_mean_are_named(folder: Path) -> None:
    recall = {"class": "cat", "images": 3, "recall": 100.0, "low": 40.0, "high": 100.0}
    (folder / "result.json").write_text(json.dumps({"test_error": 1.0, "recalls": [recall]}))
    with pytest.raises(UserError, match=r"result\.json is damaged: .*no balanced_error; delete it and add --resume"):
        used(folder)


@pytest.mark.parametrize("key", ["test_images", "head_errors", "agreement", "seed"])
def test_a_result_without_a_number_that_is_shown_is_named(key: str, folder: Path) -> None:
    run = Run.open(folder)
    whole = {**evaluate(run, some_data()), "seconds": 1.0, "steps": 9, "labels": 12, "seed": 0}
    result_table(run, Result.parse(whole, folder))
    with pytest.raises(UserError, match=rf"result\.json is damaged: it has no {key}; delete it and add --resume"):
        result_table(run, Result.parse({name: value for name, value in whole.items() if name != key}, folder))


@pytest.mark.parametrize("rows", [[2**70], [-1], [10**6], ["a"], 3])
def test_a_split_with_impossible_rows_is_refused(rows: Any, folder: Path) -> None:
    split = json.loads((folder / "split.json").read_text())
    (folder / "split.json").write_text(json.dumps({**split, "unlabelled": rows}))
    with pytest.raises(UserError, match="split"):
        evaluate(Run.open(folder), some_data())


@pytest.mark.parametrize(
    "line", [DEEP, '{"step": "a"}', '{"step": 101, "lr": "high"}', "[]", '{"step": ' + "9" * 400 + "}"]
)
def test_a_log_ends_before_its_first_damaged_line(line: str, folder: Path) -> None:
    whole = read_log(folder / "log.jsonl")
    with open(folder / "log.jsonl", "a") as file:
        file.write(line + '\n{"step": 102}\n')
    assert read_log(folder / "log.jsonl") == whole
    used(folder)


FACTS: dict[str, Any] = {
    "config": [],
    "classes": [],
    "size": ["8", 8],
    "channels": 10**9,
    "mean": [0.5],
    "std": [0.0, 0.0, 0.0],
    "trunk": 3,
}


@pytest.mark.parametrize(("key", "value"), FACTS.items())
def test_a_model_with_wrong_facts_and_a_right_digest_is_named(key: str, value: Any, folder: Path) -> None:
    tensors, facts = read_tensors(folder / "model.safetensors")
    write_tensors(folder / "model.safetensors", tensors, {**facts, key: value})
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        cotrain.load(folder)
    without = {name: fact for name, fact in facts.items() if name != key}
    write_tensors(folder / "model.safetensors", tensors, without)
    if key != "trunk":
        with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
            cotrain.load(folder)


@pytest.mark.parametrize("size", [[16384, 16384], [2048, 2049]])
def test_a_model_of_images_that_no_memory_holds_is_named(size: list[int], folder: Path) -> None:
    tensors, facts = read_tensors(folder / "model.safetensors")
    write_tensors(folder / "model.safetensors", tensors, {**facts, "size": size})
    with pytest.raises(UserError, match=rf"model\.safetensors.*{size[0]}x{size[1]}"):
        cotrain.load(folder)
    data = {**facts["config"], "data": {**facts["config"]["data"], "size": f"{size[0]}x{size[1]}"}}
    write_tensors(folder / "model.safetensors", tensors, {**facts, "config": data})
    with pytest.raises(UserError, match=r"model\.safetensors.*data\.size"):
        cotrain.load(folder)


def test_images_that_no_memory_holds_are_not_trained_on(tmp_path: Path) -> None:
    images = np.zeros((4, 2048, 2049), np.uint8)
    large = from_arrays(images, [0, 1, 0, 1], test=(images[:2], [0, 1]), name="large")
    with pytest.raises(UserError, match=r"large has images of 2048x2049 pixels.*data\.size"):
        check_trainable(Prepared(recipe_named("digits"), large))


Change = Callable[[dict[str, torch.Tensor], str], object]
CHANGES: dict[str, Change] = {
    "missing": lambda tensors, name: tensors.pop(name),
    "other shape": lambda tensors, name: tensors.update({name: torch.zeros(3, 1, 2)}),
    "other type": lambda tensors, name: tensors.update({name: tensors[name].to(torch.complex64)}),
    "unknown": lambda tensors, name: tensors.update({f"{name}.more": tensors[name]}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=[*CHANGES])
def test_a_model_with_other_tensors_is_named(change: Change, folder: Path) -> None:
    tensors, facts = read_tensors(folder / "model.safetensors")
    change(tensors, next(iter(tensors)))
    write_tensors(folder / "model.safetensors", tensors, facts)
    with pytest.raises(UserError, match=r"model\.safetensors"):
        cotrain.load(folder)


@pytest.mark.parametrize("header", ["[]", "{}", '{"digest": 3, "facts": {}}', DEEP])
def test_a_model_with_another_header_is_named(header: str, folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    save_file(load_file(path), path, {"cotrain": header})
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        cotrain.load(folder)


@pytest.fixture(scope="module")
def started(toy: Dataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Dataset]:
    """A run with a checkpoint, of a method with memory."""
    config = cotrain.recipe_named("digits").changed({"data.labels": 8, "method": "comatch", "optim.steps": 2})
    run = Run.create(tmp_path_factory.mktemp("started") / "run", config, draw_split(toy, config.data, 0))
    state = Experiment(config, toy, run.split, torch.device("cpu")).start().state
    for parameter in state.net.parameters():
        state.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    save(state, run)
    return run, toy


def restored(started: tuple[Run, Dataset], change: Callable[[dict[str, torch.Tensor], dict[str, Any]], object]) -> None:
    run, dataset = started
    whole = run.checkpoints.newest()
    assert whole is not None
    content = whole.read_bytes()
    try:
        tensors, facts = read_tensors(whole)
        change(tensors, facts)
        write_tensors(whole, tensors, facts)
        state = Experiment(run.config, dataset, run.split, torch.device("cpu")).start().state
        list(restore(state, run, *read_tensors(whole)))
    finally:
        whole.write_bytes(content)


def test_a_whole_checkpoint_is_restored(started: tuple[Run, Dataset]) -> None:
    restored(started, lambda tensors, facts: None)


@pytest.mark.parametrize("key", ["step", "seconds", "split", "config", "scaler", "threads", "processes"])
@pytest.mark.parametrize("value", [None, "text", -1, [], {"a": {}}])
def test_a_checkpoint_with_wrong_facts_is_named(key: str, value: Any, started: tuple[Run, Dataset]) -> None:
    with pytest.raises(UserError, match=r"step-00000000\.safetensors"):
        restored(started, lambda tensors, facts: facts.update({key: value}))


@pytest.mark.parametrize("part", ["net", "average", "optimizer", "memory"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=[*CHANGES])
def test_a_checkpoint_with_other_tensors_is_named(change: Change, part: str, started: tuple[Run, Dataset]) -> None:
    if part == "optimizer" and change is CHANGES["missing"]:
        pytest.skip("SGD has no tensor for a weight without a gradient")

    def changed(tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
        change(tensors, next(name for name in tensors if name.startswith(f"{part}.")))

    with pytest.raises(UserError, match=r"step-00000000\.safetensors"):
        restored(started, changed)


def test_a_killed_start_is_no_dead_end(toy: Dataset, tiny: Config, tmp_path: Path) -> None:
    (tmp_path / ".split.json.partial").touch()
    (tmp_path / ".config.json.0a0a0a0a-1-0123456789abcdef.partial").touch()
    run = Run.create(tmp_path, tiny, draw_split(toy, tiny.data, 0))
    assert Run.open(tmp_path).split.hash == run.split.hash


@pytest.mark.parametrize("left", [".split.json.partial", "split.json"])
def test_there_is_nothing_to_resume_in_what_a_killed_start_left(left: str, toy: Dataset, tmp_path: Path) -> None:
    (tmp_path / left).touch()
    with pytest.raises(UserError, match="has nothing to resume yet; omit --resume to start the run"):
        cotrain.fit(toy, out=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("array", "whole"),
    [
        (np.zeros((3, 4, 2), np.float32), True),
        (np.zeros((0, 4, 2), np.float32), False),
        (np.zeros((3, 5, 2), np.float32), False),
        (np.zeros((4, 2), np.float32), False),
        (np.zeros((), np.float32), False),
        (np.zeros((3, 4, 2)), False),
        (np.full((3, 4, 2), np.nan, np.float32), False),
    ],
)
def test_damaged_logits_of_a_fold_are_not_used(array: np.ndarray, whole: bool) -> None:
    from cotrain.fitting.crossvalidation import _are_logits

    assert _are_logits(array, (4, 2)) == whole


HEADING = b"row,belongs,class\n"


@pytest.mark.parametrize(
    "content",
    [b"row\n0\n", HEADING + b"x,0.01,a\n", HEADING + b"999,0.01,a\n", HEADING + b"0,0.01\n", b"row\n" + b"1" * 200_000],
)
def test_a_damaged_list_is_named(content: bytes, folder: Path) -> None:
    """The last one is a csv.Error, which is no ValueError."""
    result = json.loads((folder / "result.json").read_text())
    facts = {"strangers": {"estimated_share": 0.1, "left_out": 0, "smallest_rate": 0.1, "held_out": True}}
    facts |= {"suspect_labels": {"listed": 0, "disputed": 0, "distrusted": 0, "held_out": True}}
    (folder / "result.json").write_text(json.dumps({**result, **facts}))
    for name in (DOES_NOT_BELONG, SUSPECT_LABELS):
        (folder / name).write_bytes(b"row,belongs,class\n")
    assert doubtful_of(Run.open(folder), some_data()) == Doubtful([], [])
    (folder / DOES_NOT_BELONG).write_bytes(content)
    with pytest.raises(UserError, match=r"does_not_belong\.csv is damaged .*; delete result\.json"):
        doubtful_of(Run.open(folder), some_data())
