"""Rows of a table for the report: mistakes, and rows to label next, with the values of their first columns."""

from dataclasses import dataclass

import numpy as np

from cotrain.data import Features
from cotrain.report.pictures import SHOWN, Doubt, Mistake

COLUMNS = 8  # that are shown


@dataclass(frozen=True)
class ShownRow:
    number: int
    words: str
    cells: list[str]


@dataclass(frozen=True)
class ShownRows:
    columns: list[str]  # the first few
    more: int  # columns that are not shown
    mistakes: list[ShownRow]
    label_next: list[ShownRow]


def shown_rows(features: Features, mistakes: list[Mistake], doubts: list[Doubt]) -> ShownRows:
    return ShownRows(
        [column.name for column in features.columns[:COLUMNS]],
        max(0, len(features.columns) - COLUMNS),
        [ShownRow(one.row, one.words, cells_of(features, one.row)) for one in mistakes],
        [ShownRow(one.row, _heads(one), cells_of(features, one.row)) for one in doubts[:SHOWN]],
    )


def cells_of(features: Features, row: int) -> list[str]:
    values = features[np.array([row])][0]
    cells = []
    for column, value in zip(features.columns[:COLUMNS], values[:COLUMNS].tolist(), strict=False):
        known = column.categories is None or 0 <= value < len(column.categories)
        cells.append(
            "" if not known else f"{value:.4g}" if column.categories is None else column.categories[int(value)]
        )
    return cells


def _heads(doubt: Doubt) -> str:
    return " / ".join(doubt.heads)
