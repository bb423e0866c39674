"""`cotrain data`, and training on a folder, as a person meets them."""

import hashlib
import io
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from cotrain import Config, Dataset, UserError, fit, open_data, recipe_named
from cotrain.augment import draw_strong, draw_weak
from cotrain.augment.views import pixels
from cotrain.cli.main import main as cli
from cotrain.data import draw_split, fetch

QUICK = ["--steps", "6", "--optim.labelled", "8", "--optim.unlabelled", "16", "--method.heads", "3", "--no-baseline"]
QUICK += ["--run.report", "false"]


def cotrain(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    """Exit code, output, error output."""
    try:
        cli([str(word) for word in words])
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out, captured.err


@pytest.fixture
def photos(tmp_path: Path, toy: Dataset, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy images as files with a labels.csv: 20 labelled, 20 test, 60 without a label."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos"
    (folder / "test").mkdir(parents=True)
    rows = ["path,label"]
    for row in range(100):
        name = f"{row}.png" if row < 80 else f"test/{row}.png"
        Image.fromarray(toy.images[row, :, :, 0].numpy()).save(folder / name)
        if row < 20 or row >= 80:
            rows.append(f"{name},{toy.classes[int(toy.labels[row])]}")
    (folder / "labels.csv").write_text("\n".join(rows))
    return folder


def test_check_says_what_is_there_and_what_fit_would_do(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "torn.png").write_bytes(b"")
    (photos / "copy.png").write_bytes((photos / "test" / "90.png").read_bytes())
    code, said, _ = cotrain(capsys, "data", "check", photos)
    assert code == 0
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for line in (
        "│ layout │ a folder with labels in labels.csv │",
        "│ images │ 101 │",
        "│ image sizes │ 8x8 (101) │",
        "│ colour modes │ L (101) │",
        "│ network input │ 8x8, grey │",
        "│ above │ 10 │ 0 │ 0 │ 10 │",
        "│ below │ 10 │ 0 │ 0 │ 10 │",
        "│ unlabelled │ 0 │ 61 │ 0 │ 0 │",
        "│ total │ 20 │ 61 │ 0 │ 20 │",
        "│ unreadable files │ 1 │ torn.png: the file is empty │",
        "│ duplicate images │ 1 │ copy.png = test/90.png │",
        "│ test images also in the training set │ 1 │ test/90.png │",
        "│ train on │ 20 labelled and 81 unlabelled images │",
        "│ test on │ 20 images │",
    ):
        assert line in lines, (line, said)
    assert "are also training images, so the error is too optimistic" in " ".join(said.split())


def test_check_says_why_fit_would_refuse(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for row in range(30, 45):
        (photos / f"{row}.png").write_bytes(b"")
    code, said, error = cotrain(capsys, "data", "check", photos)
    assert code == 2
    assert "30.png: the file is empty" in said
    assert "cotrain: fit would refuse: 15 of the 100 images in" in error
    code, said, error = cotrain(capsys, "data", "check", photos, "--skip-unreadable", "--labels", "30")
    assert code == 2
    assert "fit would refuse: data.labels=30, but photos has only 20 labelled training images" in error
    assert cotrain(capsys, "data", "check", photos, "--skip-unreadable")[0] == 0
    assert cotrain(capsys, "fit", photos, *QUICK)[0] == 2
    assert not (photos.parent / "runs").exists()


def test_check_takes_arrays_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = cotrain(capsys, "data", "check", "digits")
    assert code == 0
    assert "scikit-learn's handwritten digits" in said
    assert "no horizontal flips" in said


def test_a_folder_is_trained_on_evaluated_and_predicted(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, error = cotrain(capsys, "fit", photos, *QUICK, "--out", "run")
    assert (code, error) == (0, "")
    assert said.startswith("photos: a folder with labels in labels.csv; 2 classes; images as 8x8 (--size), in memory\n")
    assert "20 labelled, 80 unlabelled and 20 test images" in said
    result = json.loads(Path("run/result.json").read_text())
    assert result["leaks"] == 0
    code, again, _ = cotrain(capsys, "evaluate", "run")
    assert re.search(rf"ensemble of 3 heads +│ {result['test_error']:.2f} % ", again)
    photos.rename("moved")
    code, _, error = cotrain(capsys, "evaluate", "run")
    assert code == 2 and "are no longer at" in error and "pass their new location with --data" in error
    assert cotrain(capsys, "evaluate", "run", "--data", "moved")[0] == 0
    assert "100 images, 0 unreadable" in cotrain(capsys, "predict", "run", "moved", "--out", "preds.csv")[1]


def test_images_on_disk_train_the_same_network(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cotrain(capsys, "fit", photos, *QUICK, "--out", "memory")[0] == 0
    _, said, _ = cotrain(capsys, "fit", photos, *QUICK, "--out", "disk", "--memory", "0")
    assert "images as 8x8 (--size), read from disk during training" in said
    ours, theirs = load_file("disk/model.safetensors"), load_file("memory/model.safetensors")
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert cotrain(capsys, "evaluate", "disk", "--memory", "0")[0] == 0


def test_a_run_goes_on_only_with_the_same_files_and_size(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cotrain(capsys, "fit", photos, *QUICK, "--size", "12", "--out", "run")[0] == 0
    Path("run/result.json").unlink()
    assert cotrain(capsys, "fit", photos, "--out", "run", "--resume")[0] == 0
    code, _, error = cotrain(capsys, "fit", photos, "--out", "run", "--resume", "--size", "8")
    assert code == 2 and "is not the data run was made from" in error
    Path("run/result.json").unlink()
    (photos / "33.png").unlink()
    code, _, error = cotrain(capsys, "fit", photos, "--out", "run", "--resume")
    assert code == 2 and "is not the data run was made from" in error


def test_a_split_is_a_file_that_is_never_overwritten(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = cotrain(capsys, "data", "split", photos, "--labels", "6", "--seed", "3", "--out", "six.json")
    assert code == 0
    split = json.loads(Path("six.json").read_text())
    assert said.startswith("photos-6-equal-seed3, hash ") and len(split["labelled"]) == 6
    code, _, error = cotrain(capsys, "data", "split", photos, "--out", "six.json")
    assert code == 2 and "six.json already exists, and a split is never overwritten" in error
    assert cotrain(capsys, "fit", photos, *QUICK, "--split", "six.json", "--out", "run")[0] == 0
    assert {**json.loads(Path("run/split.json").read_text()), "hash": split["hash"]} == split
    assert cotrain(capsys, "fit", photos, "--out", "run", "--resume")[0] == 0
    cotrain(capsys, "data", "split", photos, "--labels", "6", "--seed", "4", "--out", "other.json")
    code, _, error = cotrain(capsys, "fit", photos, "--out", "run", "--resume", "--split", "other.json")
    assert code == 2 and "run uses split" in error
    code, _, error = cotrain(capsys, "fit", "digits", "--split", "six.json")
    assert code == 2 and "digits is not the data split photos-6-equal-seed3 was made from" in error
    code, _, error = cotrain(capsys, "fit", photos, "--split", "six.json", "--labels", "10")
    assert code == 2 and "both a split and data.labels were given" in error
    Path("other.json").write_text("{}")
    code, _, error = cotrain(capsys, "fit", photos, "--split", "other.json")
    assert code == 2 and "other.json is not a split" in error
    Path("other.json").write_text(json.dumps({**split, "test": split["labelled"]}))
    code, _, error = cotrain(capsys, "fit", photos, "--split", "other.json")
    assert code == 2 and "other.json was edited after it was written" in error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labelled": ()}, "has no labelled or no unlabelled images"),
        ({"unlabelled": (0, 9999)}, "has rows outside toy"),
        ({"labelled": (-3, 0)}, "has rows outside toy"),
        ({"test": (0, 1)}, "both trains and tests on row 0"),
    ],
)
def test_a_split_that_makes_no_sense_is_refused(tmp_path: Path, toy: Dataset, tiny: Config, change, message) -> None:
    split = draw_split(toy, tiny.data, 0).model_copy(update=change)
    with pytest.raises(UserError, match=message):
        fit(toy, out=tmp_path / "run", config=tiny, split=split)
    assert not (tmp_path / "run").exists()


def test_a_table_elsewhere_is_found_from_elsewhere(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "labels.csv").rename("mine.csv")
    assert cotrain(capsys, "fit", "photos", "--labels", "mine.csv", *QUICK, "--out", "run")[0] == 0
    run = Path("run").resolve()
    (photos / "empty").mkdir()
    monkeypatch.chdir(photos / "empty")
    assert cotrain(capsys, "evaluate", run)[0] == 0
    (photos.parent / "mine.csv").rename("moved.csv")
    assert "there is no label table" in cotrain(capsys, "evaluate", run)[2]
    assert cotrain(capsys, "evaluate", run, "--labels", "moved.csv")[0] == 0
    (run / "result.json").unlink()
    assert cotrain(capsys, "fit", photos, "--labels", "moved.csv", "--out", run, "--resume")[0] == 0


def test_names_that_are_no_text_are_shown_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (b"caf\xe9", b"tea"):
        folder = os.path.join(os.fsencode(tmp_path), name)
        os.mkdir(folder)
        for number in range(3):
            pixels = np.full((8, 8), 40 * number + len(name), np.uint8)
            Image.fromarray(pixels).save(os.path.join(folder, b"%d.png" % number).decode(errors="surrogateescape"))
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="utf-8", errors="strict", write_through=True))
    cli(["data", "check", str(tmp_path)])
    assert b"caf\xe9" in output.getvalue()


def tile_at(sheet: np.ndarray, x: int, y: int) -> np.ndarray:
    return sheet[y : y + 96 : 12, x : x + 96 : 12, 0]


def test_a_sheet_shows_every_class_with_its_views(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = cotrain(capsys, "data", "show", photos, "--each", "3", "--out", "sheet.png")
    assert code == 0 and said.endswith("-> sheet.png\n")
    sheet = np.asarray(Image.open("sheet.png").convert("RGB"))
    tile, gap = 96, 4
    left = 16 + 150
    original = sheet[16 + 44 : 16 + 44 + tile, left : left + tile, 0].reshape(8, 12, 8, 12)
    assert (original == original[:, :1, :, :1]).all(), "an original is enlarged by a whole factor"
    files = [np.asarray(Image.open(path)) for path in photos.glob("*.png")]
    assert any(np.array_equal(original[:, 0, :, 0], file) for file in files)
    shown = [tile_at(sheet, left + offset, 16 + 44) for offset in (0, 100 + 16, 200 + 16, 300 + 32, 400 + 32, 500 + 32)]
    dataset, policy = open_data(photos), recipe_named("small32").augment
    rng = np.random.default_rng(0)
    first = next(row for row in range(100) if np.array_equal(dataset.images[row, ..., 0], shown[0]))
    groups = [dataset.train[dataset.labels[dataset.train].numpy() == label] for label in (0, 1, -1)]
    rows = np.concatenate([np.sort(rng.permutation(group)[:3]) for group in groups])
    assert rows[0] == first
    for views, tiles, draw in ((2, shown[1:3], draw_weak), (3, shown[3:], draw_strong)):
        expected = pixels(dataset.images, np.repeat(rows, views), draw(policy, views * 9, 8, 8, rng), policy)
        assert all(np.array_equal(tile, view[..., 0]) for tile, view in zip(tiles, expected[:views], strict=True))
    assert sheet.shape[0] == 16 + 44 + 9 * (tile + gap) + 3 * 16, "two classes and the unlabelled, three images each"
    assert "already exists" in cotrain(capsys, "data", "show", photos, "--out", "sheet.png")[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fit absent/", "absent/ does not exist; data are a folder of images"),
        ("fit photos --size huge", "data.size='huge': value error, must be one side, such as 64"),
        ("fit photos --labels gone.csv", "there is no label table gone.csv"),
        ("fit digits --data.labels_file x.csv", "data.labels_file is for a folder of images"),
        ("data check absent.npz", "absent.npz does not exist"),
        ("data fetch imagenet", "unknown dataset imagenet; choose one of: cifar10"),
        ("data fetch miniimagenet", "miniimagenet has no public download"),
        ("fit svhn", "download it with `cotrain data fetch svhn`"),
        ("data show digits --out s.png --each 0", "Must be >= 1"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    photos: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    code, said, error = cotrain(capsys, *words.split())
    assert (code, said) == (2, "")
    assert message in error and error.count("\n") == 1


def test_fetch_says_where_the_files_are(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"official"
    (photos / "official.bin").write_bytes(content)
    remote = fetch.RemoteFile((photos / "official.bin").as_uri(), hashlib.sha256(content).hexdigest(), len(content))
    monkeypatch.setitem(fetch.FETCHABLE, "cifar10", (remote,))
    code, said, error = cotrain(capsys, "data", "fetch", "cifar10", "--into", photos)
    assert (code, said, error) == (0, f"official.bin: already downloaded\ncifar10 is in {photos}\n", "")
