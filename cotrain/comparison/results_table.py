"""A small table of strings, as text, CSV, Markdown and LaTeX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotrain.storage.cells import csv_line, safe
from cotrain.storage.writing import write_whole

LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$", "→": r"$\to$"}


@dataclass(frozen=True)
class Table:
    columns: Mapping[str, Sequence[str]]  # heading -> one cell per row

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return list(zip(*self.columns.values(), strict=True))

    @property
    def text(self) -> str:
        """Columns are padded to their widest cell."""
        widths = [max(map(len, (heading, *cells))) for heading, cells in self.columns.items()]
        lines = [[*self.columns], ["-" * width for width in widths], *self.rows]
        return "".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"
            for line in lines
        )

    @property
    def csv(self) -> str:
        return "".join(csv_line(map(_for_spreadsheets, line)) for line in ([*self.columns], *self.rows))

    @property
    def markdown(self) -> str:
        lines = [[*self.columns], ["---"] * len(self.columns), *self.rows]
        return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)

    @property
    def latex(self) -> str:
        lines = [" & ".join(map(_for_latex, line)) + r" \\" for line in ([*self.columns], *self.rows)]
        kinds = "l" + "r" * (len(self.columns) - 1)
        body = "\n".join([lines[0], r"\hline", *lines[1:]])
        return f"\\begin{{tabular}}{{{kinds}}}\n\\hline\n{body}\n\\hline\n\\end{{tabular}}\n"

    def write(self, folder: Path, name: str) -> None:
        """Write NAME.txt, .csv, .md and .tex."""
        formats = {"txt": self.text, "csv": self.csv, "md": self.markdown, "tex": self.latex}
        for ending, content in formats.items():
            write_whole(folder / f"{name}.{ending}", content.encode())


def _for_spreadsheets(cell: str) -> str:
    """A difference such as +0.5 (-0.1 to 1.1) is text, not a formula."""
    try:
        float(cell)
    except ValueError:
        return safe(cell)
    return cell


def _for_latex(cell: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in cell)
