"""Reads the files of tables: column names to arrays. What a column means is decided elsewhere."""

import struct
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from cotrain.data.label_table import guess_delimiter, records_of, text_of
from cotrain.data.memory import check_room
from cotrain.storage.reading import array_in, decoded, reason
from cotrain.storage.regular import open_regular
from cotrain.types import UserError

Table = dict[str, NDArray]
LOCAL_HEADER = 30  # bytes of a zip member's header before its name
UNCOMPRESSED = "save it with np.savez, which does not compress, so that it is read from disk"
READ_LATER = np.lib.format.read_array_header_2_0


def read_csv(path: Path) -> Table:
    """Columns of numbers where every cell is a number or empty, otherwise of text. The first line has the names."""
    text = text_of(path)
    records = list(records_of(path, text, guess_delimiter(text, [])))
    if len(records) < 2:
        raise UserError(f"{path} has no rows below its first line, which holds the names of the columns")
    names, rows = [cell.strip() for cell in records[0][1]], records[1:]
    _check_names(path, names)
    for line, cells in rows:
        if len(cells) != len(names):
            raise UserError(f"{path}, line {line} has {len(cells)} cells, but the first line has {len(names)}")
    return {name: _parsed([cells[place] for _, cells in rows]) for place, name in enumerate(names)}


def _check_names(path: Path, names: list[str]) -> None:
    if all(_is_number(name) for name in names):
        raise UserError(f"{path} has numbers in its first line; it must hold the names of the columns")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{path} has two columns named {twice[0]!r}; rename one of them")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _parsed(cells: list[str]) -> NDArray:
    try:
        return np.array([cell if cell.strip() else "nan" for cell in cells], np.str_).astype(np.float64)
    except ValueError:
        return np.array([cell.strip() for cell in cells], np.str_)


def read_parquet(path: Path) -> Table:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path} needs the package pyarrow: pip install 'cotrain[parquet]'") from error
    try:
        with open_regular(path) as file:
            table = decoded(lambda: pyarrow.parquet.read_table(file))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a readable Parquet file ({reason(error)})") from error
    if table.num_rows == 0 or table.num_columns == 0:
        raise UserError(f"{path} has {table.num_rows} rows and {table.num_columns} columns; both are needed")
    for field in table.schema:
        if pyarrow.types.is_nested(field.type) or pyarrow.types.is_binary(field.type):
            raise UserError(
                f"{path}: column {field.name!r} holds {field.type}, neither numbers nor words; leave it out"
            )
    return {field.name: _values(table.column(field.name), field.type) for field in table.schema}


def _values(column: Any, kind: Any) -> NDArray:
    """Dictionaries are decoded first: pyarrow gives a null of a dictionary the last of its values."""
    return (column.cast(kind.value_type) if hasattr(kind, "value_type") else column).to_numpy()


def read_npz(path: Path) -> dict[str, Any]:
    """Its arrays. Those that are not compressed are mapped, not read: `np.savez` writes such files."""
    try:
        with open_regular(path) as file:
            return decoded(lambda: _arrays(path, file))
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a readable .npz file of plain arrays ({reason(error)})") from error


def _arrays(path: Path, file: IO[bytes]) -> dict[str, Any]:
    with zipfile.ZipFile(file) as archive:
        members = [each for each in archive.infolist() if each.filename.endswith(".npy")]
    packed = [each for each in members if each.compress_type != zipfile.ZIP_STORED]
    check_room(str(path), sum(each.file_size for each in packed) / 1e9, UNCOMPRESSED)
    found = {
        each.filename.removesuffix(".npy"): mapped(file, each)
        for each in members
        if each.compress_type == zipfile.ZIP_STORED
    }
    if packed:
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            names = [each.filename.removesuffix(".npy") for each in packed]
            found |= {name: array_in(arrays, name) for name in names}
    return found


def mapped(file: IO[bytes], member: zipfile.ZipInfo) -> NDArray:
    """An uncompressed array inside an .npz file, as a memory map."""
    file.seek(member.header_offset)
    header = file.read(LOCAL_HEADER)
    name, extra = struct.unpack("<HH", header[26:30])
    file.seek(name + extra, 1)
    read = np.lib.format.read_array_header_1_0 if np.lib.format.read_magic(file) == (1, 0) else READ_LATER
    shape, fortran, dtype = read(file)
    offset = file.tell()
    if dtype.hasobject:
        raise ValueError(f"{member.filename} holds Python objects")
    if 0 in shape or not shape:
        return np.zeros(shape, dtype)
    return np.memmap(file, dtype, "r", offset, shape, "F" if fortran else "C")
