"""Files that people give: how to read each. Only a `UserError` may come of it, or for images an `Unreadable`."""

import io
import zipfile
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from cotrain.data.decode import Unreadable, peek, read_image
from cotrain.data.feature_files import read_csv, read_npz, read_parquet
from cotrain.data.formats.cifar import load_cifar
from cotrain.data.formats.npz import load_npz
from cotrain.data.formats.svhn import load_svhn
from cotrain.data.label_table import match, read_sheet
from cotrain.model.weights import read_weights
from tests.campaigns import inputs


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


def weights(content: bytes, folder: Path) -> None:
    (folder / "a.safetensors").write_bytes(content)
    read_weights(folder / "a.safetensors")
