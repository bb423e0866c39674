"""Which columns of a table are numbers and which are categories, and the numbers that stand for categories.

A table is anything with named columns: a DataFrame, or a mapping of names to arrays.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotrain.data.feature_table import UNKNOWN, Column, Features
from cotrain.types import UserError

MOST_CATEGORIES = 100  # of a column of words; with more it is taken for text or for names
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}([T ].*)?")
COMMA = re.compile(r"[-+]?\d+,\d+")
LOOKED_AT = 1000  # values of a column, to recognise dates and decimal commas


def is_table(values: Any) -> bool:
    """Whether the columns have names: a DataFrame of any library, or a mapping. A sparse matrix may be a dict, too."""
    if hasattr(values, "tocsr"):
        return False
    return isinstance(values, Mapping) or (hasattr(values, "columns") and hasattr(values, "__getitem__"))


def check_table(table: Any, where: str) -> None:
    """Refuse a table without rows of its own, and one in which a name stands for several columns."""
    if hasattr(table, "collect") and not hasattr(table, "__len__"):
        raise UserError(f"{where} is a {type(table).__name__}, a query without rows; call its collect() first")
    if not is_table(table):
        return
    repeated = [name for name, count in Counter(names_of(table)).items() if count > 1]
    if repeated:
        raise UserError(f"{where} has several columns named {', '.join(map(repr, repeated[:5]))}; rename all but one")


def names_of(table: Any) -> list[str]:
    return [str(name) for name in (table if isinstance(table, Mapping) else table.columns)]


def column_of(table: Any, name: Any) -> NDArray:
    """The values of one column. A categorical one of pandas is read by its values."""
    values = table[name]
    return np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)


def recognised(name: str, values: NDArray, where: str, leave_out: str) -> Column:
    """Numbers, or categories. Dates and text are neither, and the error says what to do."""
    if values.dtype.kind in "iuf":
        return Column(name)
    if values.dtype.kind == "M":
        raise UserError(f"{where}: column {name!r} holds dates; turn them into numbers, such as days, or {leave_out}")
    if values.dtype.kind == "b":
        return Column(name, ("False", "True"))
    words = words_of(values)
    known = words[words != ""]
    if len(known) and all(DATE.fullmatch(word) for word in known[:LOOKED_AT]):
        raise UserError(f"{where}: column {name!r} holds dates; turn them into numbers, such as days, or {leave_out}")
    if len(known) and all(COMMA.fullmatch(word) for word in known[:LOOKED_AT]):
        raise UserError(
            f"{where}: column {name!r} has numbers with a decimal comma, such as {str(known[0])!r}; write them with a "
            f"decimal point, or {leave_out}"
        )
    categories = np.unique(known)
    if len(categories) > MOST_CATEGORIES:
        raise UserError(
            f"{where}: column {name!r} has {len(categories):,} different values, such as {categories[0][:40]!r}: text "
            f"or names, not categories; turn text into numbers by an embedding (docs/guide/features.md), or {leave_out}"
        )
    if not len(categories):
        raise UserError(f"{where}: column {name!r} is empty; {leave_out}")
    return Column(name, tuple(categories.tolist()))


def words_of(values: NDArray) -> NDArray[np.str_]:
    """Values as text; what is missing is empty."""
    if values.dtype.kind == "U":
        return values
    return np.array(["" if is_missing(value) else str(value) for value in values.tolist()], np.str_)


def is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def codes_of(column: Column, values: NDArray, where: str = "the table") -> NDArray[np.float64]:
    """The values of a column as numbers."""
    if column.categories is None:
        try:
            return values.astype(np.float64)
        except (ValueError, TypeError) as error:
            raise UserError(f"{where}: column {column.name!r} holds numbers, but not in every row ({error})") from error
    places = {category: number for number, category in enumerate(column.categories)}
    return np.array([places.get(word, UNKNOWN) for word in words_of(values).tolist()], np.float64)


def features_of(table: Any, where: str, leave_out: str = "leave it out") -> Features:
    """The features of a table, with its columns recognised. Errors say how to leave out a column."""
    check_table(table, where)
    names = list(table if isinstance(table, Mapping) else table.columns)
    columns, values = [], []
    for name in names:
        given = _without_objects(column_of(table, name))
        columns.append(recognised(str(name), given, where, leave_out))
        values.append(codes_of(columns[-1], given, where))
    return Features(np.stack(values, axis=1) if values else np.zeros((0, 0)), tuple(columns))


def coded(table: Any, columns: tuple[Column, ...], where: str = "the table") -> Features:
    """The features of a table, or of an array that has these columns in their order."""
    check_table(table, where)
    if not is_table(table):
        found = table if hasattr(table, "tocsr") else np.asarray(table)
        if found.ndim != 2 or found.shape[1] != len(columns):
            raise UserError(f"{where} must have the shape (n, {len(columns)}), not {tuple(found.shape)}")
        return Features(found.tocsr() if hasattr(found, "tocsr") else found, columns)
    given = {str(name): name for name in (table if isinstance(table, Mapping) else table.columns)}
    if missing := [column.name for column in columns if column.name not in given]:
        raise UserError(f"{where} has no column {', '.join(map(repr, missing[:5]))}, which the model needs")
    values = [codes_of(column, _without_objects(column_of(table, given[column.name])), where) for column in columns]
    return Features(np.stack(values, axis=1), columns)


def _without_objects(values: NDArray) -> NDArray:
    """Numbers that came as Python objects, as numbers."""
    if values.dtype.kind != "O":
        return values
    kinds = {type(value) for value in values.tolist() if not is_missing(value)}
    if kinds and all(issubclass(kind, bool | np.bool_) for kind in kinds):
        return values
    if kinds and all(issubclass(kind, int | float | np.number) for kind in kinds):
        return np.array([np.nan if is_missing(value) else value for value in values.tolist()], np.float64)
    return values
