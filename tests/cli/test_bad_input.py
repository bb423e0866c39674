"""Input that nobody meant: each gets one line and exit code 2, in bounded time."""

import os
from pathlib import Path

import numpy as np
import pytest

from cotrain import recipe_named
from tests.data.photos import flat, save
from tests.processes import Done, here


@pytest.fixture
def cotrain(capsys: pytest.CaptureFixture[str]):
    return lambda *words: here(capsys, *words)


def one_line(done: Done) -> str:
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    return done.stderr


def arrays(path: Path, **more: object) -> Path:
    images = np.random.default_rng(0).integers(0, 255, (20, 8, 8), np.uint8)
    np.savez(path, train_images=images, train_labels=np.arange(20) % 2, **more)
    return path


@pytest.mark.parametrize("minutes", ["inf", "nan", "-1", "0", "1e300"])
def test_a_comparison_takes_a_finite_time(minutes: str, cotrain, tmp_path: Path) -> None:
    line = one_line(cotrain("compare", "digits", "--equal", "time", "--minutes", minutes, "--out", tmp_path / "out"))
    assert "--minutes needs --equal time and a value above 0" in line
    assert not (tmp_path / "out").exists()


def test_a_killed_start_of_a_comparison_is_no_dead_end(tmp_path: Path) -> None:
    from cotrain.storage.writing import make_folder

    (tmp_path / ".plan.json.partial").touch()
    make_folder(tmp_path, {"plan.json"})


def test_names_that_look_like_markup_are_printed_as_they_are(cotrain, tmp_path: Path) -> None:
    described = cotrain("describe", "small32", "--data.labels_file", "[/x]", "--data.path_column", ":smile:[bold]")
    assert described.returncode == 0
    assert "[/x]" in described.stdout and ":smile:[bold]" in described.stdout
    checked = cotrain("data", "check", arrays(tmp_path / "a.npz", classes=np.array(["[/b]", "[red]"])))
    assert "[/b]" in checked.stdout and "[red]" in checked.stdout


@pytest.mark.parametrize("words", [("report", "[/x]"), ("predict", "[/x]", "[1].png")])
def test_names_that_look_like_json_are_names(words: tuple[str, ...], cotrain) -> None:
    assert one_line(cotrain(*words)) == "cotrain: there is no run [/x]\n"


def test_the_number_of_heads_is_bounded(cotrain) -> None:
    assert "method.heads='200000': input should be less than or equal to 100" in one_line(
        cotrain("describe", "cifar10", "--method.heads", "200000")
    )


@pytest.mark.parametrize("setting", ["optim.lr=1e38", "optim.weight_decay=1e300", "optim.steps=" + "9" * 30])
def test_settings_are_numbers_that_can_be_computed_with(setting: str) -> None:
    key, value = setting.split("=")
    with pytest.raises(ValueError, match=f"{key}='{value}'"):
        recipe_named("digits").changed({"optim.kind": "adam", key: value})


def test_classes_with_impossible_characters_are_one_line(cotrain, tmp_path: Path) -> None:
    """numpy reads them, and fails later with a SystemError."""
    impossible = np.array([0x110041, ord("b")], np.uint32).view("<U1")
    path = arrays(tmp_path / "a.npz", classes=impossible)
    assert "`classes` holds text that is not Unicode" in one_line(cotrain("data", "check", path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a" * 100_000, "has a name of 100,000 characters; at most 1000 are allowed"),
        ("a\ud800", "is not valid Unicode"),
    ],
)
def test_class_names_are_text_of_some_length(name: str, message: str, cotrain, tmp_path: Path) -> None:
    path = arrays(tmp_path / "a.npz", classes=np.array([name, "b"]))
    assert message in one_line(cotrain("data", "check", path))
    assert message in one_line(cotrain("data", "show", path, "--out", tmp_path / "sheet.png"))


def test_of_many_classes_only_some_are_listed(cotrain, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (3000, 4, 4), np.uint8)
    np.savez(tmp_path / "a.npz", train_images=images, train_labels=np.arange(3000))
    printed = cotrain("data", "check", tmp_path / "a.npz").stdout
    assert "... and 2,500 more" in printed and "│ 499 " in printed and "│ 500 " not in printed


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders")
def test_pipes_in_the_place_of_files_do_not_block(cotrain, tmp_path: Path) -> None:
    folder = flat(tmp_path / "photos")
    os.mkfifo(folder / "labels.csv")
    assert "labels.csv cannot be read: It is not a regular file" in one_line(cotrain("data", "check", folder))
    os.mkfifo(tmp_path / "a.npz")
    assert "a.npz is not a readable .npz file" in one_line(cotrain("data", "check", tmp_path / "a.npz"))


def test_links_in_a_circle_are_listed_as_unreadable(cotrain, tmp_path: Path) -> None:
    folder = tmp_path / "scans"
    for number in range(24):  # grey and small: no pretrained network has to be prepared
        save(folder / ("cat", "dog")[number % 2] / f"{number}.png", mode="L")
    (folder / "around").symlink_to(folder / "around")
    (folder / "cat" / "around.png").symlink_to(folder / "cat" / "around.png")
    checked = cotrain("data", "check", folder)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "symbolic links" in " ".join(checked.stdout.split())
