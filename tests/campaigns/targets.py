"""What is fuzzed: for each kind of input, how to draw one and how to use it. Only a `UserError` may come of it."""

import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

import cotrain
from cotrain.cli.report import report_command
from cotrain.cli.result_table import result_table
from cotrain.comparison.budget import read_plan
from cotrain.config import Config, settings_of
from cotrain.data.cifar import load_cifar
from cotrain.data.decode import FORMATS, Unreadable, peek, read_image
from cotrain.data.folder import load_folder
from cotrain.data.npz import load_npz
from cotrain.data.reading import read_csv, read_npz, read_parquet
from cotrain.data.settings import DataSettings
from cotrain.data.split import read_split
from cotrain.data.svhn import load_svhn
from cotrain.data.table import match, read_sheet
from cotrain.evaluation.evaluate import evaluate, verdict_of
from cotrain.evaluation.outliers import by_heads, write_belonging
from cotrain.evaluation.predict import how_calibrated
from cotrain.features import runtime
from cotrain.labelling.book import Book
from cotrain.labelling.events import Refused
from cotrain.labelling.journal import Journal
from cotrain.labelling.table import LabelTable
from cotrain.model.weights import read_weights
from cotrain.pipeline.findings import SUSPECTS
from cotrain.report.doubtful import doubtful_of
from cotrain.runs.checkpoint import read_tensors, write_tensors
from cotrain.runs.run import DOES_NOT_BELONG, SUSPECT_LABELS, Run
from tests.campaigns import inputs
from tests.features.tiny import QUIET, known, opened, small_data, stored
from tests.labelling.served import photos, serving
from tests.made_up import made_up_run, some_data

ASKED = ("state", "next", "grid", "card/0", "look/all")
CHANGED = ("label", "clear", "skip", "class", "rename", "merge", "undo")  # not finish, which trains
PATHS = ["/", "/page/page.js", "/page/..", "/image/0", "/image/99", *(f"/api/{name}" for name in ASKED + CHANGED)]

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


@dataclass(frozen=True)
class Target:
    inputs: Callable[[], st.SearchStrategy[bytes]]
    use: Callable[[bytes, Path], object]  # the input, and a folder that is empty and thrown away


def table(content: bytes, folder: Path) -> None:
    path = folder / "labels.csv"
    path.write_bytes(content)
    match(read_sheet(path).rows, ["0.png", "sub/1.png", "2.png"], table=path, folder=folder)


def image(content: bytes, folder: Path) -> None:
    (folder / "a").write_bytes(content)
    for read in (peek, lambda path: read_image(path, 8, 8, 3), lambda path: read_image(path, 300, 20, 1)):
        try:
            read(folder / "a")
        except Unreadable as error:
            assert str(error)


def npz(content: bytes, folder: Path) -> None:
    (folder / "a.npz").write_bytes(content)
    load_npz(folder / "a.npz")


def columns(content: bytes, folder: Path) -> None:
    """A table of numbers; the first line says of which kind."""
    kind, _, rest = content.partition(b"\n")
    path = folder / f"a.{kind.decode()}"
    path.write_bytes(rest)
    {"csv": read_csv, "npz": read_npz, "parquet": read_parquet}[kind.decode()](path)


def tables_of_numbers() -> st.SearchStrategy[bytes]:
    import pyarrow.parquet

    parquet = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"a": [1.0, None, 3.0], "b": ["x", "y", None]}), parquet)
    stored = inputs.zipped(
        {"x.npy": inputs.npy(np.zeros((3, 2))), "y.npy": inputs.npy(np.arange(3))}, zipfile.ZIP_STORED
    )
    text = b"a,b,label\n1,2.5,x\n3,,y\n"
    packed = inputs.npz({"x": np.zeros((3, 2)), "y": np.array([0, 1, -1])})
    kinds = {"csv": inputs.changed(text), "parquet": inputs.changed(parquet.getvalue())}
    kinds["npz"] = st.one_of(inputs.changed(stored), packed)
    return st.one_of([each.map(lambda drawn, kind=kind: kind.encode() + b"\n" + drawn) for kind, each in kinds.items()])


def archive(content: bytes, folder: Path) -> None:
    (folder / "cifar-10-python.tar.gz").write_bytes(content)
    load_cifar(folder / "cifar-10-python.tar.gz")


def mat(content: bytes, folder: Path) -> None:
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (folder / name).write_bytes(content)
    load_svhn(folder)


@cache
def finished() -> Path:
    """A finished run with scores and a baseline."""
    run = made_up_run(Path(tempfile.mkdtemp()) / "run", some_data())
    training = {"seconds": 1.0, "steps": 100, "labels": 12, "seed": 0, "parameters": 99, "versions": {"torch": "2"}}
    run.finish(
        {
            **evaluate(run, some_data()),
            **training,
            **CHECKED,
            "verdict": verdict_of(run),
            "used": "method",
            "leaks": 0,
        }
    )
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


def run_file(content: bytes, folder: Path) -> None:
    """The name of a file of a run, a line, and its content."""
    name, _, rest = content.partition(b"\n")
    place = a_run(folder)
    (place / name.decode()).write_bytes(rest)
    use_run(place)


def run_files() -> st.SearchStrategy[bytes]:
    place = finished()

    def named(name: str, content: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
        return content.map(lambda drawn: name.encode() + b"\n" + drawn)

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


def weights(content: bytes, folder: Path) -> None:
    (folder / "a.safetensors").write_bytes(content)
    read_weights(folder / "a.safetensors")


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
        book = Book(opened, LabelTable(folder / "labels.csv", folder, LABELLED, DataSettings()))
        book.start({})
        book.save()
        labels = book.labels
        assert all(isinstance(each, dict) for each in (labels.by_name, labels.audit, labels.conflicts, labels.counts))
        for act in (
            lambda: book.label({LABELLED[0]: None}, 1, who="me", how="key"),
            lambda: book.new_class("new", who="you", how="key"),
            lambda: book.undo(who="me", how="key"),
        ):
            try:
                act()
            except Refused as refusal:
                assert str(refusal)
        book.save()


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


@cache
def photographed() -> tuple[Path, Path, Tensor]:
    """A folder of photos, its decoded copy, and its pixels."""
    folder = photos(Path(tempfile.mkdtemp()) / "photos", 4)
    pixels = opened_folder(folder)
    (copy,) = (Path(os.environ["COTRAIN_HOME"]) / "images").iterdir()
    return folder, copy, pixels


def opened_folder(folder: Path) -> Tensor:
    return load_folder(folder, DataSettings(), 1.0, QUIET).images[:].clone()  # not a map of the file


def decoded_copy(content: bytes, folder: Path) -> None:
    """Whatever happens to the copy, the images are those of the files."""
    source, copy, pixels = photographed()
    copy.write_bytes(content)
    assert torch.equal(opened_folder(source), pixels)


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
    def named(name: str, whole: bytes) -> st.SearchStrategy[bytes]:
        return inputs.changed(whole).map(lambda drawn: name.encode() + b"\n" + drawn)

    names = ("plain", "plain.sums", "weak-0", "weak-0.sums", "hashes", "facts.json")
    return st.one_of([named(name, featured()[1][name]) for name in names])


def setting(content: bytes, folder: Path) -> None:
    changes = json.loads(content)
    config = cotrain.recipe_named("digits").changed(changes)
    json.dumps(config.model_dump(), allow_nan=False)


def settings() -> st.SearchStrategy[bytes]:
    keys = st.sampled_from([key for key, _, _, _ in settings_of(Config())])
    words = st.sampled_from(["none", "true", "1e38", "nan", "-inf", "0", "-1", "9" * 30, "[/x]", "mhct", "lite0", "{"])
    return st.dictionaries(keys, st.one_of(inputs.values, words), min_size=1, max_size=3).map(inputs.as_json)


@cache
def served() -> Any:
    """A server that stays open until this process ends."""
    torch.set_num_threads(1)
    known().__enter__()
    return serving(photos(Path(tempfile.mkdtemp()) / "photos", 6)).__enter__()


def http(content: bytes, folder: Path) -> None:
    asked = json.loads(content)
    headers = {name.replace("-", "_"): value for name, value in asked["headers"].items()}
    body = None if asked["method"] in ("GET", "HEAD") else asked["body"].encode(errors="surrogatepass")
    answer = served().client.request(asked["method"], asked["path"] + asked["query"], body, **headers)
    assert answer.status < 500, (answer.status, answer.body)
    assert b"Traceback" not in answer.body


TARGETS = {
    "table": Target(inputs.tables, table),
    **{
        f"image-{format.lower()}": Target(lambda format=format: inputs.one_of(inputs.image(format)), image)
        for format in FORMATS
    },
    "image-modes": Target(
        lambda: inputs.one_of(
            *(inputs.image("PNG", mode) for mode in ("RGBA", "P", "LA", "1", "I;16")),
            inputs.image("TIFF", compression="tiff_lzw"),
            inputs.image("GIF", save_all=True),
        ),
        image,
    ),
    "npz": Target(
        lambda: inputs.npz(
            {
                "train_images": np.zeros((4, 8, 8), np.uint8),
                "train_labels": np.array([[0], [1], [0], [-1]]),
                "classes": np.array(["a", "b"]),
            }
        ),
        npz,
    ),
    "columns": Target(tables_of_numbers, columns),
    "archive": Target(inputs.cifar, archive),
    "mat": Target(inputs.svhn, mat),
    "run": Target(run_files, run_file),
    "facts": Target(model_facts, facts),
    "scores": Target(score_arrays, scores),
    "weights": Target(lambda: inputs.changed((finished() / "model.safetensors").read_bytes()), weights),
    "split": Target(splits, split),
    "graph": Target(lambda: inputs.changed(bytes(range(256)) * 4), graph),
    "plan": Target(plans, plan),
    "journal": Target(journals, journal),
    "copy": Target(lambda: inputs.changed(photographed()[1].read_bytes()), decoded_copy),
    "bank": Target(bank_files, bank),
    "setting": Target(settings, setting),
    "http": Target(lambda: inputs.requests(PATHS), http),
}
