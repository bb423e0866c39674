"""Tables of features in files: .csv and .tsv, .parquet, and .npz with the keys X and y.

The target is the column of labels; where it is empty or -1, the row is unlabelled.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from cotrain.data.columns import coded, features_of, words_of
from cotrain.data.dataset import UNLABELLED, Dataset, check_known
from cotrain.data.feature_arrays import dataset_of, numbers_of
from cotrain.data.feature_files import Table, read_csv, read_npz, read_parquet
from cotrain.data.feature_table import Column, Features
from cotrain.data.format import DataFormat, Request
from cotrain.data.label_table import LABEL_NAMES, listed
from cotrain.data.layout import class_order
from cotrain.data.settings import DataSettings
from cotrain.storage.cells import NO_LABEL
from cotrain.types import Unit, UserError

READERS = {".csv": read_csv, ".tsv": read_csv, ".parquet": read_parquet}
NPZ, VALUES = ".npz", "X"
MANY = 20  # different values of a target, from which on it may be an index or a measurement
ONLY_IMAGES = ("labels_file", "path_column", "label_column", "size")


class Tables(DataFormat):
    order = 15
    listed = "a table (.csv, .parquet or .npz with X and y)"

    def recognises(self, source: str) -> bool:
        path = Path(source)
        return path.is_file() and (path.suffix.lower() in READERS or (path.suffix == NPZ and has_features(path)))

    def open(self, request: Request) -> Dataset:
        settings, path = request.settings, request.path
        for key in ONLY_IMAGES:
            if getattr(settings, key) is not None:
                raise UserError(f"data.{key} is for images; {path} is a table (--target names its column of labels)")
        features, labels = _read(path, settings, None)
        test = 0
        if settings.test_file is not None:
            more, more_labels = _read(Path(settings.test_file), settings, features.columns)
            features, labels, test = features.followed_by(more), [*labels, *more_labels], len(more)
        return replace(_checked(path, features, labels, test), source=str(path.resolve()))


def has_features(path: Path) -> bool:
    """Whether an .npz file has a matrix X rather than images."""
    try:
        with ZipFile(path) as file:
            return f"{VALUES}.npy" in file.namelist()
    except (OSError, BadZipFile):
        return False


def read_features(path: Path, columns: tuple[Column, ...]) -> Features:
    """The rows of a file as features with these columns, such as those of a trained model."""
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    table = _table(path)
    features = _of_arrays(path, table, columns) if path.suffix == NPZ else coded(table, columns, str(path))
    features.check_finite(str(path))
    return features


def _read(path: Path, settings: DataSettings, columns: tuple[Column, ...] | None) -> tuple[Features, list[str | None]]:
    """The features and labels of a file; `columns` are those of the training rows, if these are test rows."""
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    table = _table(path)
    target = _target_of(path, table, settings.target)
    if path.suffix == NPZ:
        features = _of_arrays(path, table, columns)
    elif columns is not None:
        features = coded(table, columns, str(path))
    else:
        left_out = (target, *_ignored(path, table, settings.ignore))
        rest = {name: values for name, values in table.items() if name not in left_out}
        if not rest:
            raise UserError(f"{path} has no columns besides the target {target!r}")
        features = features_of(rest, str(path), "leave it out: --ignore NAME")
    labels = labels_of(path, target, np.ravel(table[target]))
    if len(labels) != len(features):
        raise UserError(f"{path}: {VALUES} has {len(features)} rows, but {target} has {len(labels)}")
    return features, labels


def _table(path: Path) -> Table:
    if path.suffix == NPZ:
        arrays = read_npz(path)
        if VALUES not in arrays:
            raise UserError(f"{path} has no {VALUES}; it contains {', '.join(arrays) or 'nothing'}")
        return arrays
    if path.suffix.lower() not in READERS:
        raise UserError(f"{path} is not a table; tables are .csv, .tsv, .parquet and .npz files")
    return READERS[path.suffix.lower()](path)


def _of_arrays(path: Path, arrays: Table, columns: tuple[Column, ...] | None) -> Features:
    """The matrix of an .npz file. The optional key `columns` has the names of its columns."""
    values = numbers_of(str(path), arrays[VALUES])
    if columns is not None:
        return coded(values, columns, str(path))
    names = words_of(arrays["columns"]).tolist() if "columns" in arrays else range(values.shape[1])
    if len(names) != values.shape[1]:
        raise UserError(f"{path} has {len(names)} names in `columns` for {values.shape[1]} columns of {VALUES}")
    return Features(values, tuple(Column(str(name)) for name in names))


def _checked(path: Path, features: Features, labels: list[str | None], test: int) -> Dataset:
    features.check_finite(str(path))
    classes = class_order(labels)
    number: dict[str | None, int] = {name: index for index, name in enumerate(classes)}
    codes = np.array([number.get(label, UNLABELLED) for label in labels], np.int64)
    check_known(f"{path.name} (--target)", codes[: len(codes) - test], classes, Unit.ROW)
    for row in np.flatnonzero(codes[len(codes) - test :] == UNLABELLED)[:1]:
        raise UserError(f"test row {row} has no label; only training rows may be unlabelled")
    numbers = len(features.columns) - len(features.categorical)
    kinds = [(numbers, "of numbers"), (len(features.categorical), "of categories")]
    counted = [f"{count:,} {'column' if count == 1 else 'columns'} {kind}" for count, kind in kinds if count]
    layout = f"a table of {' and '.join(counted)}"
    dataset = dataset_of(features, codes, classes, name=path.stem, test=test)
    notes = tuple(_constant(features, dataset.train))
    return replace(dataset, hashes=features.hashes(), layout=layout, notes=notes)


def labels_of(path: Path, target: str, values: NDArray) -> list[str | None]:
    """The class of each row; None: unlabelled. A target that cannot be one of classes is an error."""
    words = [_word(word) for word in words_of(values).tolist()]
    labels = [None if word in NO_LABEL or word == str(UNLABELLED) else word for word in words]
    known = [label for label in labels if label is not None]
    different = set(known)
    if len(different) > MANY and any(_is_fraction(label) for label in different):
        raise UserError(
            f"{path}: the target {target!r} has {len(different):,} different numbers, some with fractions: a "
            "measurement, not classes; divide it into a few ranges first"
        )
    if len(different) == len(known) > MANY:
        raise UserError(
            f"{path}: the target {target!r} has a different value in each of its {len(known):,} labelled rows: an "
            "index, not classes"
        )
    return labels


def _word(text: str) -> str:
    """1.0 is 1: columns of numbers with empty cells are often written so."""
    text = text.strip()
    return text[:-2] if text.endswith(".0") and text[:-2].lstrip("-").isdigit() else text


def _is_fraction(text: str) -> bool:
    try:
        return not float(text).is_integer()
    except (ValueError, OverflowError):
        return False


def _target_of(path: Path, table: Table, target: str | None) -> str:
    if target is None:
        found = [name for name in table if name.strip().casefold() in LABEL_NAMES]
        if len(found) != 1:
            raise UserError(f"{path}: name the column of labels by --target; its columns are: {listed([*table])}")
        return found[0]
    if target not in table:
        near = get_close_matches(target, table, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"{path} has no column {target!r}; {hint}its columns are: {listed([*table])}")
    return target


def _ignored(path: Path, table: Mapping[str, NDArray], ignore: str | None) -> list[str]:
    names = [] if ignore is None else [name.strip() for name in ignore.split(",")]
    for name in names:
        if name not in table:
            raise UserError(f"{path} has no column {name!r} to ignore; its columns are: {listed([*table])}")
    return names


def _constant(features: Features, rows: NDArray[np.int64]) -> Iterable[str]:
    first = features[rows[:1]][0]
    varies = np.zeros(len(first), np.bool_)
    for block in features.blocks(rows):
        varies |= (features[block] != first).any(axis=0)
    if len(same := np.flatnonzero(~varies)):
        more = f" and {len(same) - 3:,} more" if len(same) > 3 else ""
        names = ", ".join(features.columns[place].name for place in same[:3])
        yield f"the same in every row, so that they say nothing: column {names}{more}"
