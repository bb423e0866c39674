"""The scripts behind the pictures of the documentation."""

import csv
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
KINDS = {"apple", "banana", "lemon", "mug", "mushroom", "orange", "pear", "strawberry"}


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, FIGURES / script, *arguments]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)


def rows(table: Path) -> list[tuple[str, str]]:
    with table.open(newline="") as lines:
        return [(row["path"], row["label"]) for row in csv.DictReader(lines)]


@pytest.mark.system
def test_made_photos_are_deterministic_and_labelled_as_asked(tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("again", 3), ("other", 4)):
        made = run("made_photos.py", tmp_path / name, "--images", 16, "--labels", 1, "--side", 24, "--seed", seed)
        assert made.returncode == 0, made.stderr
    one, again, other = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("one", "again", "other")
    )
    assert one == again
    assert all(one[name] != other[name] for name in one if name.endswith(".jpg"))

    labels, truth = rows(tmp_path / "one" / "labels.csv"), rows(tmp_path / "one-truth.csv")
    assert Counter(label for _, label in labels) == dict.fromkeys(KINDS, 1)
    assert Counter(label for _, label in truth) == dict.fromkeys(KINDS, 2)
    assert set(labels) < set(truth)
    assert {path for path, _ in truth} == one.keys() - {"labels.csv"}
    for path, _ in truth:
        with Image.open(tmp_path / "one" / path) as image:
            image.load()
            assert (image.format, image.mode) == ("JPEG", "RGB")


def test_more_labels_than_images_are_refused(tmp_path: Path) -> None:
    refused = run("made_photos.py", tmp_path / "none", "--images", 16, "--labels", 3)
    assert refused.returncode == 2
    assert "--images 24 or more" in refused.stderr
    assert not (tmp_path / "none").exists()


def test_the_overview_needs_measured_errors(tmp_path: Path) -> None:
    measured = runpy.run_path(str(FIGURES / "photos.py"))["measured"]
    (tmp_path / "errors.json").write_text('{"logistic regression": 7.5, "co-training": null}')
    with pytest.raises(SystemExit, match=r"errors\.json has no measured error for co-training"):
        measured(tmp_path / "errors.json")
    (tmp_path / "errors.json").write_text('{"logistic regression": 7.5, "co-training": 5}')
    assert measured(tmp_path / "errors.json") == {"logistic regression": 7.5, "co-training": 5}


def test_the_picture_of_the_architecture_is_that_of_the_import_contract() -> None:
    made = runpy.run_path(str(FIGURES / "architecture.py"))
    assert made["picture"]() == (FIGURES / "architecture.svg").read_text(encoding="utf-8"), "run architecture.py again"
    rooms = {name for layer in made["layers"]() for name in layer}
    assert all(made["about"](name) for name in rooms), "every room says in its docstring what it holds"
