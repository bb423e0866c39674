"""Jobs of many images, for the tests of `cotrain predict`."""

import csv
from pathlib import Path

IMAGES = 600
BATCH = 50


def words(folder: Path, out: Path, *more: str) -> list[str]:
    return ["predict", str(folder / "run"), str(folder / "photos"), "--out", str(out), *more]


def rows(table: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(table.decode().splitlines()))
