"""Tables in files: which columns are what, and what is wrong with them."""

import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cotrain import Dataset, UserError, open_data
from cotrain.data.columns import MOST_CATEGORIES
from cotrain.data.feature_files import read_npz
from cotrain.data.formats.tables import read_features
from cotrain.data.settings import DataSettings

ROWS = [
    ("1.5", "blue", "3", "yes", "cat"),
    ("2.5", "red", "4", "no", "dog"),
    ("3.5", "", "5", "no", ""),
    ("4.5", "red", "6", "yes", "-1"),
]
HEADER = ("size", "colour", "legs", "tame", "kind")


def written(path: Path, rows: list[tuple[str, ...]] = ROWS, header: tuple[str, ...] = HEADER) -> Path:
    path.write_text("\n".join(",".join(row) for row in (header, *rows)) + "\n")
    return path


def opened(path: Path, **settings: str) -> Dataset:
    return open_data(path, DataSettings(**settings))


def check(dataset: Dataset) -> None:
    assert [(column.name, column.categories) for column in dataset.images.columns] == [
        ("size", None),
        ("colour", ("blue", "red")),
        ("legs", None),
        ("tame", ("no", "yes")),
    ]
    assert dataset.images[:].tolist() == [[1.5, 0, 3, 1], [2.5, 1, 4, 0], [3.5, -1, 5, 0], [4.5, 1, 6, 1]]
    assert dataset.classes == ("cat", "dog")
    assert dataset.labels.tolist() == [0, 1, -1, -1]


def test_csv(tmp_path: Path) -> None:
    check(opened(written(tmp_path / "t.csv"), target="kind"))
    text = (tmp_path / "t.csv").read_text().replace(",", "\t")
    (tmp_path / "t.tsv").write_text(text)
    check(opened(tmp_path / "t.tsv", target="kind"))


def test_parquet(tmp_path: Path) -> None:
    table = pa.table(
        {
            "size": [1.5, 2.5, 3.5, 4.5],
            "colour": pa.array(["blue", "red", None, "red"]).dictionary_encode(),
            "legs": [3, 4, 5, 6],
            "tame": ["yes", "no", "no", "yes"],
            "kind": ["cat", "dog", None, "-1"],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    check(opened(tmp_path / "t.parquet", target="kind"))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_is_mapped_unless_it_is_compressed(tmp_path: Path, save: object) -> None:
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    save(tmp_path / "t.npz", X=x, y=np.r_[np.arange(10) % 2, np.full(10, -1)], columns=["a", "b", "c"])
    dataset = opened(tmp_path / "t.npz")
    assert np.array_equal(dataset.images[:], x.astype(np.float64))
    assert [column.name for column in dataset.images.columns] == ["a", "b", "c"]
    assert dataset.classes == ("0", "1")
    assert (dataset.labels == -1).sum() == 10
    assert isinstance(dataset.images.values, np.memmap) == (save is np.savez)


def test_mapped_arrays_are_the_ones_that_numpy_reads(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "c": np.array(["x"]),
    }
    np.savez(tmp_path / "t.npz", **arrays)
    found = read_npz(tmp_path / "t.npz")
    assert {name: array.tolist() for name, array in found.items()} == {k: v.tolist() for k, v in arrays.items()}


def test_test_rows_come_from_a_file_of_their_own(tmp_path: Path) -> None:
    written(tmp_path / "t.csv")
    header = ("kind", "tame", "size", "legs", "colour", "other")
    written(tmp_path / "test.csv", [("dog", "no", "9", "8", "green", "?")], header)
    dataset = opened(tmp_path / "t.csv", target="kind", test_file=str(tmp_path / "test.csv"))
    assert dataset.test.tolist() == [4]
    assert dataset.images[dataset.test].tolist() == [[9, -1, 8, 0]]
    written(tmp_path / "test.csv", [("", "no", "9", "8", "green", "?")], header)
    with pytest.raises(UserError, match="test row 0 has no label"):
        opened(tmp_path / "t.csv", target="kind", test_file=str(tmp_path / "test.csv"))


def test_labels_that_are_numbers_are_read_as_classes(tmp_path: Path) -> None:
    written(tmp_path / "t.csv", [("1", "10"), ("2", "9"), ("3", ""), ("4", "-1")], ("a", "label"))
    dataset = opened(tmp_path / "t.csv")
    assert dataset.classes == ("9", "10")
    assert dataset.labels.tolist() == [1, 0, -1, -1]


def test_a_constant_column_is_noted_and_a_column_can_be_left_out(tmp_path: Path) -> None:
    rows = [(*row, "2020-01-01", "same") for row in ROWS]
    path = written(tmp_path / "t.csv", rows, (*HEADER, "date", "constant"))
    with pytest.raises(UserError, match=r"'date' holds dates.*--ignore"):
        opened(path, target="kind")
    dataset = opened(path, target="kind", ignore="date")
    assert dataset.notes == ("the same in every row, so that they say nothing: column constant",)


def many(first: str, second: str) -> list[tuple[str, str]]:
    return [(first.format(number), second.format(number)) for number in range(MOST_CATEGORIES + 1)]


@pytest.mark.parametrize(
    ("header", "rows", "settings", "words"),
    [
        (HEADER, ROWS, {}, "name the column of labels by --target; its columns are: size, colour"),
        (HEADER, ROWS, {"target": "kin"}, "no column 'kin'; did you mean 'kind'?"),
        (HEADER, ROWS, {"target": "kind", "ignore": "siz"}, "no column 'siz' to ignore"),
        (HEADER, ROWS, {"target": "kind", "size": "8"}, "data.size is for images"),
        (HEADER, [(*row[:4], "") for row in ROWS], {"target": "kind"}, "no training row has a label"),
        (HEADER, [(*row[:4], "cat") for row in ROWS], {"target": "kind"}, "at least two classes"),
        (HEADER, [*ROWS, ("", "red", "1", "no", "cat")], {"target": "kind"}, "'size' is empty .NaN. in row 4"),
        (HEADER, [*ROWS, ("inf", "red", "1", "no", "cat")], {"target": "kind"}, "'size' is infinite in row 4"),
        (HEADER, [*ROWS, ("1", "red", "1", "cat")], {"target": "kind"}, "line 6 has 4 cells"),
        (("a", "a"), [("1", "2")], {"target": "a"}, "two columns named 'a'"),
        (("1", "2"), [("1", "2")], {"target": "1"}, "numbers in its first line"),
        (("a", "label"), [], {}, "no rows below its first line"),
        (("a", "label"), many("{}", "{}"), {}, "a different value in each of its 101 labelled rows: an index"),
        (("a", "label"), many("{}", "{}.5"), {}, "a measurement, not classes"),
        (("text", "label"), many("word {}", "x"), {}, "text or names, not categories; turn text into numbers"),
        (("label",), [("a",), ("b",)], {}, "no columns besides the target"),
        (("a", "label"), [('"1,5"', "x"), ('"-2,25"', "y")], {}, "'a' has numbers with a decimal comma, such as '1,5'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, header: tuple[str, ...], rows: list, settings: dict[str, str], words: str
) -> None:
    with pytest.raises(UserError, match=words) as error:
        opened(written(tmp_path / "t.csv", rows, header), **settings)
    assert "\n" not in str(error.value)


def test_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"no table")
    with pytest.raises(UserError, match="not a readable Parquet file"):
        opened(tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", X=np.zeros((3, 2)), y=[0, 1])
    with pytest.raises(UserError, match="X has 3 rows, but y has 2"):
        opened(tmp_path / "t.npz")
    with zipfile.ZipFile(tmp_path / "t.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("X.npy", b"no array")
    with pytest.raises(UserError, match=r"not a readable .npz file of plain arrays .X is not an array"):
        opened(tmp_path / "t.npz")
    np.savez(tmp_path / "t.npz", X=np.zeros((3, 2)))
    with pytest.raises(UserError, match="name the column of labels"):
        opened(tmp_path / "t.npz")


def test_other_columns_than_the_models(tmp_path: Path) -> None:
    dataset = opened(written(tmp_path / "t.csv"), target="kind")
    written(tmp_path / "new.csv", [("1.5", "blue", "yes")], ("size", "colour", "tame"))
    with pytest.raises(UserError, match=r"new\.csv has no column 'legs', which the model needs"):
        read_features(tmp_path / "new.csv", dataset.images.columns)
    written(tmp_path / "new.csv", [("big", "blue", "1", "yes")], ("size", "colour", "legs", "tame"))
    with pytest.raises(UserError, match="'size' holds numbers, but not in every row"):
        read_features(tmp_path / "new.csv", dataset.images.columns)
