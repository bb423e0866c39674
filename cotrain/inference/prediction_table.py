"""The table of predictions: its rows, their order, and how they are written as CSV or Parquet."""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from cotrain.inference.streaming import UNREADABLE, Predicted, joined
from cotrain.storage.cells import class_cell, csv_line, safe, safe_path
from cotrain.types import UserError

Row = dict[str, str | int | float]
Write = Callable[[Sequence[Row]], object]
COLUMNS = ("class", "probability", "heads_agree", "error")
PATH, ROW = "path", "row"  # the first column: files, or rows of a table by their number
BELONGS = "belongs"
UNKNOWN = "unknown"  # the class of an image that belongs to none
PARQUET = ".parquet"
ROWS_AT_ONCE = 1024
ROWS_PER_GROUP = 16 * ROWS_AT_ONCE  # in a Parquet file


def columns(below: float | None, first: str = PATH, *, belongs: bool = False) -> list[str]:
    """There is a column `defer` if images below some probability are deferred to a person.

    There is a column `belongs` if the model can say how far an image looks like one of a class.
    """
    known = [first, *COLUMNS[:-1], BELONGS, COLUMNS[-1]] if belongs else [first, *COLUMNS]
    return known if below is None else [*known, "defer"]


def rows_of(
    paths: Sequence[str],
    predicted: Predicted,
    classes: Sequence[str],
    below: float | None,
    first: str = PATH,
    unknown: float = 0.0,
) -> list[Row]:
    """One row per file. The row of an unreadable file has an `error`, and a person should always look at it.

    An image that belongs to a class with a p-value below `unknown` gets no class, and a person should look at it too.
    """
    rows: list[Row] = []
    for number, (path, record) in enumerate(zip(paths, predicted.records.tolist(), strict=True)):
        label, heads_agree, probability, belongs = record
        row: Row = {first: path, "class": "", "probability": "", "heads_agree": "", BELONGS: ""}
        strange = belongs < unknown
        if label == UNREADABLE:
            row["error"] = f"unreadable: {predicted.errors[number]}"
        else:
            name = UNKNOWN if strange else classes[label]
            row |= {"class": name, "probability": probability, "heads_agree": heads_agree, "error": ""}
            row[BELONGS] = "" if math.isnan(belongs) else round(belongs, 6)  # it has the precision of a float32
        if below is not None:
            row["defer"] = "yes" if label == UNREADABLE or strange or probability < below else "no"
        rows.append(row)
    return rows


def is_unknown(row: Row, unknown: float) -> bool:
    belongs = row[BELONGS]
    return isinstance(belongs, float) and belongs < unknown


Stored = Callable[[], Iterator[Predicted]]  # all predictions in the order of the paths, from the first one again


def in_order_of_paths(
    paths: Sequence[str], stored: Stored, classes: Sequence[str], first: str = PATH, unknown: float = 0.0
) -> Iterator[list[Row]]:
    done = 0
    for predicted in stored():
        for start in range(0, len(predicted), ROWS_AT_ONCE):
            some = predicted[start : start + ROWS_AT_ONCE]
            yield rows_of(paths[done : done + len(some)], some, classes, None, first, unknown)
            done += len(some)


def least_confident_first(
    paths: Sequence[str], stored: Stored, classes: Sequence[str], below: float, first: str = PATH, unknown: float = 0.0
) -> Iterator[list[Row]]:
    """Unreadable files, then images of no class, then the others by probability; ties keep the order of the paths.

    Sorting takes about 50 bytes of memory per image.
    """
    done = 0
    for predicted in stored():
        bad = sorted(predicted.errors)
        errors = {number: predicted.errors[row] for number, row in enumerate(bad)}
        unreadable = Predicted(predicted.records[bad], errors)
        yield rows_of([paths[done + row] for row in bad], unreadable, classes, below, first)
        done += len(predicted)
    records = joined([Predicted(predicted.records, {}) for predicted in stored()]).records
    order = by_confidence(records)
    order = order[np.argsort(~(records["belongs"][order] < unknown), kind="stable")]
    for start in range(0, len(order), ROWS_AT_ONCE):
        some = order[start : start + ROWS_AT_ONCE]
        readable = Predicted(records[some], {})
        yield rows_of([paths[row] for row in some.tolist()], readable, classes, below, first, unknown)


def by_confidence(records: NDArray[np.void]) -> NDArray[np.int64]:
    """The numbers of the readable files, least confident first."""
    readable = np.flatnonzero(records["label"] != UNREADABLE)
    return readable[np.argsort(records["probability"][readable], kind="stable")]


def csv_writer(file: TextIO, names: Sequence[str]) -> Write:
    """Write the header, and return a function that writes rows with probabilities rounded to six digits."""
    file.write(csv_line(names))

    def write(rows: Sequence[Row]) -> None:
        cells = map(_as_cells, rows)
        file.writelines(csv_line(row.get(name, "") for name in names) for row in cells)

    return write


def _as_cells(row: Row) -> Row:
    """Probabilities rounded, and no text that a spreadsheet would take for a formula."""
    shown = {name: row.get(name, "") for name in ("probability", BELONGS)}
    rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in shown.items()}
    texts = {} if PATH not in row else {PATH: safe_path(str(row[PATH]))}
    texts |= {"class": "" if row["error"] else class_cell(str(row["class"])), "error": safe(str(row["error"]))}
    return {**row, **texts, **rounded}


def open_table(file: IO[bytes], suffix: str, names: Sequence[str]) -> AbstractContextManager[Write]:
    """A table with these columns in a new file; what it yields writes rows."""
    return _parquet(file, names) if suffix == PARQUET else _csv(file, names)


@contextmanager
def _csv(file: IO[bytes], names: Sequence[str]) -> Iterator[Write]:
    text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
    try:
        yield csv_writer(text, names)
        text.flush()
    finally:
        text.detach()  # the file stays open


@contextmanager
def _parquet(file: IO[bytes], names: Sequence[str]) -> Iterator[Write]:
    """Row groups have a fixed number of rows, so the file does not depend on how the rows arrive."""
    pyarrow = import_pyarrow()
    types = {"probability": pyarrow.float64(), BELONGS: pyarrow.float64(), "heads_agree": pyarrow.int32()}
    schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in names])
    waiting: list[Row] = []

    def group(rows: Sequence[Row]) -> Any:
        return pyarrow.table({name: [_value(row[name]) for row in rows] for name in names}, schema=schema)

    with pyarrow.parquet.ParquetWriter(file, schema) as writer:

        def write(rows: Sequence[Row]) -> None:
            waiting.extend(rows)
            while len(waiting) >= ROWS_PER_GROUP:
                writer.write_table(group(waiting[:ROWS_PER_GROUP]))
                del waiting[:ROWS_PER_GROUP]

        yield write
        if waiting:
            writer.write_table(group(waiting))


def _value(value: str | int | float) -> str | int | float | None:
    """Empty cells are null. Parquet's strings are Unicode, so other bytes of a file name are escaped."""
    if value == "":
        return None
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def import_pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(
            "a .parquet file needs the package pyarrow: pip install 'cotrain[parquet]', or choose an --out that ends "
            "in .csv"
        ) from error
    return pyarrow
