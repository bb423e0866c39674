"""A console whose lines go to the page instead of a terminal."""

import io
from collections.abc import Callable
from typing import TextIO, cast

from rich.console import Console

WIDE = 400  # characters; the page wraps lines itself


class _Lines(io.TextIOBase):
    """A file that hands every complete line to a function."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._text, self._say = "", say

    def write(self, text: str) -> int:
        *lines, self._text = (self._text + text).split("\n")
        for line in filter(str.strip, lines):
            self._say(line.strip())
        return len(text)


def console_of_lines(say: Callable[[str], None]) -> Console:
    return Console(file=cast(TextIO, _Lines(say)), width=WIDE, color_system=None, force_terminal=False)
