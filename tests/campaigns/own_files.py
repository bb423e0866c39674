"""Files that cotrain keeps, which may be damaged or a stranger's: how to change each, and everything that reads it."""

import json
import os
import shutil
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

import cotrain
from cotrain.audit.outliers import by_heads, write_belonging
from cotrain.cli.report import report_command
from cotrain.cli.result_table import result_table
from cotrain.comparison.budget import read_plan
from cotrain.config import Config
from cotrain.data.formats.folder import load_folder
from cotrain.data.settings import DataSettings
from cotrain.data.split import read_split
from cotrain.fitting import crossvalidation
from cotrain.fitting.evaluate import evaluate, verdict_of
from cotrain.fitting.findings import SUSPECTS
from cotrain.inference.model import how_calibrated
from cotrain.labelling.events import Refused
from cotrain.labelling.history import LabelHistory
from cotrain.labelling.journal import Journal
from cotrain.labelling.labels_csv import LabelTable
from cotrain.report.doubtful import doubtful_of
from cotrain.runs.checkpoint import read_tensors, write_tensors
from cotrain.runs.result import Result
from cotrain.runs.run import DOES_NOT_BELONG, SUSPECT_LABELS, Run
from cotrain.storage.rows import keep
from cotrain.trunk import runtime
from tests.campaigns import inputs
from tests.labelling.served import photos
from tests.made_up import made_up_run, some_data
from tests.trunk.tiny import QUIET, known, opened, small_data, stored

LABELLED = ("0.png", "sub/1.png", "2.png")
ERROR = {"error": 9.0, "low": 5.0, "high": 14.0}
AGAINST = {"baseline": "labelled_only", "difference": -1.0, "low": -2.0, "high": 0.5, "word": "no clear difference"}
CHECKED = {  # what `fit` finds out by cross-validation and about a folder as it is
    "cross_validation": {
        "images": 12,
        "folds": 2,
        "repeats": 1,
        "errors": {"method": ERROR, "labelled_only": ERROR},
        "against": AGAINST,
    },
    "class_shares": [
        {"class": name, "share": 0.5, "low": 0.4, "high": 0.6, "pseudo_labels": 3} for name in some_data().classes
    ],
    "strangers": {"estimated_share": 0.1, "clear": True, "left_out": 1, "smallest_rate": 0.1, "held_out": True},
    "suspect_labels": {"listed": 3, "disputed": 1, "distrusted": 0, "held_out": True},
}


@cache
def finished() -> Path:
    """A finished run with scores and a baseline."""
    run = made_up_run(Path(tempfile.mkdtemp()) / "run", some_data())
    training = {"seconds": 1.0, "steps": 100, "labels": 12, "seed": 0, "parameters": 99, "versions": {"torch": "2"}}
    measured = evaluate(run, some_data()).model_copy(update={"verdict": verdict_of(run)})
    run.finish(Result.parse({**measured, **training, **CHECKED, "used": "method", "leaks": 0}, run.folder))
    write_belonging(run.belonging_path, by_heads(torch.zeros(1, 2, 2)))
    (run.folder / DOES_NOT_BELONG).write_text("path,row,belongs,class,left_out\n,3,0.05,cat,no\n,4,0.5,dog,no\n")
    (run.folder / SUSPECT_LABELS).write_text(f"{','.join(SUSPECTS)}\n,3,cat,dog,0.1,0.9,yes\n")
    return run.folder


def a_run(folder: Path) -> Path:
    return Path(shutil.copytree(finished(), folder / "run"))


def use_run(folder: Path) -> None:
    """Everything that reads a run folder."""
    run = Run.open(folder)
    if run.result is not None:
        result_table(run, run.result)
    assert isinstance(run.command, str)
    cotrain.load(folder).predict(np.zeros((1, 8, 8, 3), np.uint8))
    how_calibrated(folder)
    doubtful_of(run, some_data())
    report_command(folder)
    evaluate(run, some_data())


def named(name: str, content: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """The name of a file, a line, and its content."""
    return content.map(lambda drawn: name.encode() + b"\n" + drawn)


def run_file(content: bytes, folder: Path) -> None:
    """The name of a file of a run, a line, and its content."""
    name, _, rest = content.partition(b"\n")
    place = a_run(folder)
    (place / name.decode()).write_bytes(rest)
    use_run(place)


def run_files() -> st.SearchStrategy[bytes]:
    place = finished()

    files = ("config.json", "split.json", "result.json", "command.json")
    edited = [named(name, inputs.edited(json.loads((place / name).read_text())).map(inputs.as_json)) for name in files]
    names = (*files, "scores.npz", "model.safetensors", "log.jsonl", "labelled_only/scores.npz")
    names += ("belonging.safetensors", DOES_NOT_BELONG, SUSPECT_LABELS)
    return st.one_of(*edited, *(named(name, inputs.changed((place / name).read_bytes())) for name in names))


def facts(content: bytes, folder: Path) -> None:
    """Facts of a model file, whose digest is right."""
    place = a_run(folder)
    tensors, _ = read_tensors(place / "model.safetensors")
    value = json.loads(content)
    write_tensors(place / "model.safetensors", tensors, value if isinstance(value, dict) else {"facts": value})
    use_run(place)


def model_facts() -> st.SearchStrategy[bytes]:
    return inputs.edited(read_tensors(finished() / "model.safetensors")[1]).map(inputs.as_json)


def scores(content: bytes, folder: Path) -> None:
    run_file(b"scores.npz\n" + content, folder)


def score_arrays() -> st.SearchStrategy[bytes]:
    with np.load(finished() / "scores.npz") as arrays:
        return inputs.npz({key: arrays[key] for key in arrays.files})


def split(content: bytes, folder: Path) -> None:
    (folder / "split.json").write_bytes(content)
    read_split(folder / "split.json").check_usable(some_data())


def splits() -> st.SearchStrategy[bytes]:
    chosen = Run.open(finished()).split
    return inputs.edited({**chosen.model_dump(), "hash": chosen.hash}).map(inputs.as_json)


def graph(content: bytes, folder: Path) -> None:
    """The ONNX graph of a trunk that an earlier run kept: damage costs a new export."""
    trunk = SimpleNamespace(key="a")
    kept = Path(os.environ["COTRAIN_HOME"]) / "trunks" / "a.trunk"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(content)
    whole, before = b"a graph", runtime._graph
    runtime._graph = lambda trunk: whole
    try:
        assert runtime._exported(trunk) == whole  # type: ignore[arg-type]
    finally:
        runtime._graph = before


def journal(content: bytes, folder: Path) -> None:
    """Open it, use its labels, go on labelling and save."""
    (folder / "labels-history.jsonl").write_bytes(content)
    with closing(Journal.open(folder / "labels-history.jsonl")) as opened:
        history = LabelHistory(opened, LabelTable(folder / "labels.csv", folder, LABELLED, DataSettings()))
        history.start({})
        history.save()
        labels = history.labels
        assert all(isinstance(each, dict) for each in (labels.by_name, labels.audit, labels.values, labels.counts))
        for act in (
            lambda: history.label({LABELLED[0]: None}, 1, who="me", how="key"),
            lambda: history.new_class("new", who="you", how="key"),
            lambda: history.undo(who="me", how="key"),
        ):
            try:
                act()
            except Refused as refusal:
                assert str(refusal)
        history.save()


def journals() -> st.SearchStrategy[bytes]:
    events: list[dict[str, Any]] = [
        {"kind": "class", "class": 1, "name": "cat"},
        {"kind": "class", "class": 2, "name": "dog"},
        {"kind": "label", "class": 1, "name": "cat", "images": [*LABELLED[:2]]},
        {"kind": "written", "digest": ""},
        {"kind": "label", "class": 2, "name": "dog", "images": [*LABELLED[1:]], "replaces": True},
        {"kind": "skip", "images": ["other.png"]},
        {"kind": "merge", "class": 2, "into": 1},
        {"kind": "undo", "of": 7},
        {"kind": "rename", "class": 2, "name": "wolf"},
        {"kind": "clear", "images": [LABELLED[2]]},
        {"kind": "name", "name": "Ada"},
    ]
    common = {"time": "2026-01-01T00:00:00.000+00:00", "who": "me", "how": "key"}
    whole = [{"id": number, **common, **event} for number, event in enumerate(events, start=1)]

    def lines(drawn: Any) -> bytes:
        return b"".join(inputs.as_json(event) + b"\n" for event in (drawn if isinstance(drawn, list) else [drawn]))

    return st.one_of(inputs.changed(lines(whole)), inputs.edited(whole).map(lines))


def plan(content: bytes, folder: Path) -> None:
    (folder / "plan.json").write_bytes(content)
    for pace in read_plan(folder / "plan.json").pace.values():
        assert pace.step > 0


def plans() -> st.SearchStrategy[bytes]:
    protocol = {"comparison": {"of": "methods"}, **Config().model_dump(exclude={"method"})}
    paces = {name: {"step": 0.1, "refresh": 0.0} for name in ("mhct", "supervised")}
    return inputs.edited({"protocol": protocol, "budget": 60.0, "pace": paces}).map(inputs.as_json)


def folds(content: bytes, folder: Path) -> None:
    """The finished folds of a cross-validation: damage, or whatever has the right digest, costs training them again."""
    path = folder / crossvalidation.FOLDS
    for write in (path.write_bytes, lambda whole: keep(path, whole, "a split")):
        write(content)
        found = crossvalidation._read(path, "a split", QUIET)
        assert all(isinstance(array, np.ndarray) for array in found.values())


@cache
def photographed() -> tuple[Path, dict[Path, bytes], Tensor]:
    """A folder of photos, the files of its decoded copy, and its pixels."""
    folder = photos(Path(tempfile.mkdtemp()) / "photos", 4)
    pixels = opened_folder(folder)
    (copy,) = (Path(os.environ["COTRAIN_HOME"]) / "images").iterdir()
    return folder, {path: path.read_bytes() for path in copy.iterdir()}, pixels


def opened_folder(folder: Path) -> Tensor:
    return load_folder(folder, DataSettings(), 1.0, QUIET).images[:].clone()  # not a map of the file


def decoded_copy(content: bytes, folder: Path) -> None:
    """The name of a file of a copy, a line, and its content. Whatever happens to it, the images are the same."""
    source, files, pixels = photographed()
    name, _, rest = content.partition(b"\n")
    for path, whole in files.items():
        path.write_bytes(rest if path.name == name.decode() else whole)
    assert torch.equal(opened_folder(source), pixels)


def copied_files() -> st.SearchStrategy[bytes]:
    return st.one_of([named(path.name, inputs.changed(whole)) for path, whole in photographed()[1].items()])


@cache
def featured() -> tuple[Path, dict[str, bytes], Tensor]:
    """A bank, its files, and its features."""
    with known():
        bank = opened(small_data()).bank
    assert bank is not None
    return bank.folder, {path.name: path.read_bytes() for path in bank.folder.iterdir()}, features()


def features() -> Tensor:
    """Those of all images in the first two views."""
    with known():
        data = opened(small_data())
    return torch.cat([torch.from_numpy(stored(data, name, data.train)) for name in ("plain", "weak-0")])


def bank(content: bytes, folder: Path) -> None:
    """The name of a file of a bank, a line, and its content. Whatever happens to it, the features are the same."""
    place, files, expected = featured()
    name, _, rest = content.partition(b"\n")
    (place / name.decode()).write_bytes(rest)
    try:
        assert torch.equal(features(), expected)
    finally:
        for each, whole in files.items():
            (place / each).write_bytes(whole)


def bank_files() -> st.SearchStrategy[bytes]:
    names = ("plain", "plain.index", "weak-0", "weak-0.index")
    return st.one_of([named(name, inputs.changed(featured()[1][name])) for name in names])
