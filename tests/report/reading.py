"""Reading the page of a run as a browser does, and what else its tests share."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from cotrain import Dataset
from cotrain.cli.main import main
from cotrain.data import open_data
from cotrain.report.page import Subject, page, show
from cotrain.runs.run import Run

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Read(HTMLParser):
    """Elements with their attributes, and all text by section; tags must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.open: list[str] = []
        self.section = "head"
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag == "section":
            self.section = dict(attributes)["id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text[self.section] = f"{self.text.get(self.section, '')} {data}"

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def words(read: Read, section: str) -> str:
    return " ".join(read.text[section].split())


def read_rows(run: Run) -> list[str]:
    return (run.folder / "label_next.csv").read_text(errors="surrogateescape").splitlines()[1:]


def refused(arguments: list[str], capsys) -> str:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("cotrain: ") and line.count("\n") == 1
    return line


def saved(data: Dataset, path: Path) -> Dataset:
    """The same from a file, where a run finds them again."""
    images, labels = data.images.numpy(), data.labels.numpy()
    arrays = {"train_images": images[data.train], "train_labels": labels[data.train]}
    np.savez(path, **arrays, test_images=images[data.test], test_labels=labels[data.test])
    return open_data(path)


def copy_of(run: Run, folder: Path) -> Run:
    shutil.copytree(run.folder, folder)
    return Run.open(folder)


def shown(run: Run, **how: int) -> Read:
    return Read(page([show(Subject(run, None), **how)]))


def table_of(html: str, name: str) -> list[list[str]]:
    """Cells of the table of that name."""
    (table,) = re.findall(rf'<table[^>]*data-of="{name}">(.*?)</table>', html, re.S)
    rows = [re.findall(r"<t[hd].*?</t[hd]>", row, re.S) for row in re.findall(r"<tr>.*?</tr>", table, re.S)]
    return [[" ".join(re.sub(r"<.*?>", "", cell).split()) for cell in row] for row in rows]
