"""Cells of CSV files that a spreadsheet must not take for formulas, and that are read back as they were."""

import re

FORMULA = r"[=+\-@\t\r]"


def safe(text: str) -> str:
    """The text with an apostrophe before it if a spreadsheet would take it for a formula: '=SUM for =SUM."""
    return f"'{text}" if re.match(rf"'*{FORMULA}", text) else text


def from_safe(cell: str) -> str:
    """The text that `safe` made this cell of."""
    return cell[1:] if re.match(rf"'+{FORMULA}", cell) else cell


def safe_path(path: str) -> str:
    """The same for a relative path, which means the same with ./ before it."""
    return f"./{path}" if re.match(FORMULA, path) else path
