"""Names that a file system or a history can hold, and what a spreadsheet makes of a file."""

import os

from hypothesis import strategies as st

FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
CLASSES = [
    "nan",
    "NaN",
    "",
    "-1",
    "7",
    "unlabelled",
    "=1+1",
    "'=x",
    "a\rb",
    "a\r\nb",
    " a ",
    "e\u0301",
    '\'"x"',
    "a,b",
    '"',
]
NAMES = st.sampled_from(CLASSES) | st.text(max_size=12)  # of classes
SPECIAL = st.text(st.sampled_from("=+-@\t\r\n'\" ,;|.\\\u0301\xe9e"), min_size=1, max_size=6)


def _decoded(name: bytes) -> str:
    return os.fsdecode(name)


BYTES = st.binary(min_size=1, max_size=8).map(lambda name: name.replace(b"\0", b"x").replace(b"/", b"y")).map(_decoded)
PATHS = (
    SPECIAL | BYTES | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1)
).filter(lambda name: name not in (".", ".."))


def as_a_spreadsheet_reads_it(text: str, delimiter: str = ",") -> list[list[str]]:
    """Cells by the rules of RFC 4180, for which a carriage return, a line feed or both end a line outside quotes."""
    rows, row, cell, quoted, at = list[list[str]](), list[str](), "", False, 0
    while at < len(text):
        letter = text[at]
        if quoted:
            if letter != '"':
                cell += letter
            elif text[at + 1 : at + 2] == '"':
                cell, at = cell + '"', at + 1
            else:
                quoted = False
        elif letter == '"' and not cell:
            quoted = True
        elif letter == delimiter:
            row, cell = [*row, cell], ""
        elif letter in "\r\n":
            rows, row, cell = [*rows, [*row, cell]], [], ""
            at += text[at : at + 2] == "\r\n"
        else:
            cell += letter
        at += 1
    assert not (row or cell or quoted), "the last line is not complete"
    return rows
