"""Rows of a table for the report: mistakes, and rows to label next, with the values of their first columns."""

from dataclasses import dataclass

import numpy as np

from cotrain.data import Features
from cotrain.report.pictures import SHOWN, Doubt, Mistake

COLUMNS = 8  # that are shown


@dataclass(frozen=True)
class ShownRow:
    number: int
    words: list[str]  # what is said of it
    cells: list[str]


@dataclass(frozen=True)
class ShownRows:
    columns: list[str]  # the first few
    more: int  # columns that are not shown
    mistakes: list[ShownRow]
    label_next: list[ShownRow]


def shown_rows(features: Features, mistakes: list[Mistake], doubts: list[Doubt]) -> ShownRows:
    def row(one: Mistake | Doubt, more: str) -> ShownRow:
        predicted = f"{one.predicted},\N{NO-BREAK SPACE}{100 * one.probability:.1f}\N{NO-BREAK SPACE}%"
        return ShownRow(one.row, [predicted, more], cells_of(features, one.row))

    return ShownRows(
        [column.name for column in features.columns[:COLUMNS]],
        max(0, len(features.columns) - COLUMNS),
        [row(one, one.label) for one in mistakes],
        [row(one, _heads(one)) for one in doubts[:SHOWN]],
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
    """Each head's class, or that they predict the same one."""
    if len(set(doubt.heads)) > 1:
        return " / ".join(doubt.heads)
    return "agree" if len(doubt.heads) > 1 else ""
