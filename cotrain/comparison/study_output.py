"""The report of a study: a table, a figure, and study.md, which shows both with a description."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from cotrain.comparison.results_table import Table
from cotrain.progress import say
from cotrain.report.figures import Figure
from cotrain.runs.run import as_typed
from cotrain.storage.writing import write_whole

STUDY, RUNS = "study.md", "runs.jsonl"


@dataclass(frozen=True)
class StudyReport:
    folder: Path
    name: str
    heading: str
    difference: str  # from the paper's settings
    table: Table
    figure: Figure
    claims: Sequence[str] = ()  # of the paper, each with whether the runs agree
    runs: Sequence[str] = ()  # lines of runs.jsonl: what the table is made of

    def write(self) -> None:
        self.table.write(self.folder, "table")
        write_whole(self.folder / "figure.png", self.figure.png)
        if self.runs:
            write_whole(self.folder / RUNS, "".join(f"{line}\n" for line in self.runs).encode())
        parts = [
            f"# {self.name}",
            _sentence(self.heading),
            _sentence(self.difference),
            self.table.markdown.rstrip(),
            *(["\n".join(f"- {claim}" for claim in self.claims)] if self.claims else []),
            f"![{self.figure.alt}](figure.png)",
            self.figure.caption,
            f"    {as_typed(shlex.join(sys.argv))}",
        ]
        write_whole(self.folder / STUDY, ("\n\n".join(parts) + "\n").encode())

    def show(self, console: Console) -> None:
        claims = "".join(f"{claim}\n" for claim in self.claims)
        say(console, f"\n{self.heading}\n\n{self.table.text}\n{claims}{self.difference}\n")
        say(console, f"saved in {self.folder}: table.txt, .csv, .md and .tex; figure.png; and study.md with both")


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
