"""The command line as a person meets it: real processes, their output and exit codes."""

import csv
import json
import os
import re
import sys
from pathlib import Path
from signal import SIGINT

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from cotrain.cli import main as command_line
from cotrain.cli.main import main
from cotrain.data import open_data
from cotrain.runs.log import read_log
from tests.processes import Done, Running
from tests.processes import run as cotrain

SMALL = ["--labels", "20", "--steps", "4", "--optim.labelled", "8", "--optim.unlabelled", "16", "--run.log_every", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def fitted(folder: Path) -> Done:
    return cotrain("fit", "digits", *SMALL, cwd=folder)


def test_fit_prints_plain_lines_and_a_table_when_there_is_no_terminal(fitted, folder: Path) -> None:
    assert (fitted.returncode, fitted.stderr) == (0, "")
    heading = "20 labelled, 1,297 unlabelled and 500 test images; wrn-10-1, 3 heads, on cpu -> runs/digits"
    assert fitted.stdout.splitlines()[0] == heading
    assert "mhct, 3 heads: step 4/4" in fitted.stdout
    assert "\x1b" not in fitted.stdout
    for row in (
        "baseline (labelled images only)",
        "head 1",
        "head 3",
        "ensemble of 3 heads",
        "95 % confidence interval",
        "all heads agree",
        "training time",
        "seed",
        "run folder",
        "runs/digits/report.html",
    ):
        assert row in fitted.stdout


def test_result_json_has_what_it_promises(fitted, folder: Path) -> None:
    result = json.loads((folder / "runs/digits/result.json").read_text())
    assert (result["steps"], result["seed"], result["labels"], result["test_images"]) == (4, 0, 20, 500)
    assert len(result["head_errors"]) == 3
    assert 0 <= result["test_error"] <= 100
    assert 0 <= result["labelled_only_error"] <= 100
    log = read_log(folder / "runs/digits/labelled_only/log.jsonl")
    seconds = max(row["seconds"] for row in log if "seconds" in row)
    assert seconds > 0 and result["labelled_only_seconds"] == pytest.approx(seconds, abs=0.1)  # it is rounded
    assert 0 <= result["agreement"] <= 1
    assert result["command"].endswith("fit digits " + " ".join(SMALL))
    assert set(result["versions"]) == {"cotrain", "python", "torch", "numpy", "pillow", "numba"}
    split = json.loads((folder / "runs/digits/split.json").read_text())
    assert len(split["labelled"]) == 20


def test_nothing_in_a_run_is_a_pickle(fitted, folder: Path) -> None:
    files = [path for path in (folder / "runs/digits").rglob("*") if path.is_file()]
    readers = {
        ".json": lambda path: json.loads(path.read_text()),
        ".jsonl": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
        ".safetensors": load_file,
        ".npz": lambda path: dict(np.load(path, allow_pickle=False)),
        ".html": lambda path: path.read_text(),
        ".csv": lambda path: path.read_text(),
        ".md": lambda path: path.read_text(),
    }
    for path in files:
        if path.name == ".lock":
            assert path.read_bytes() == b""
        else:
            assert readers[path.suffix](path), path
    assert {path.suffix for path in files} == {*readers, ""}


def test_a_second_fit_gets_a_folder_of_its_own(fitted, folder: Path) -> None:
    again = cotrain("fit", "digits", *SMALL, "--no-baseline", "--run.report", "false", cwd=folder)
    assert again.returncode == 0
    assert "runs/digits-2" in again.stdout
    assert "baseline:" not in again.stdout
    assert json.loads((folder / "runs/digits-2/result.json").read_text())["labelled_only_error"] is None


def test_evaluate_finds_the_errors_of_the_result(fitted, folder: Path) -> None:
    evaluated = cotrain("evaluate", "runs/digits", cwd=folder)
    result = json.loads((folder / "runs/digits/result.json").read_text())
    assert re.search(rf"ensemble of 3 heads +│ {result['test_error']:.2f} % ", evaluated.stdout)


def test_evaluate_refuses_other_data(fitted, folder: Path) -> None:
    np.savez(folder / "other.npz", train_images=np.zeros((4, 16, 16), np.uint8), train_labels=[0, 1, 0, 1])
    refused = cotrain("evaluate", "runs/digits", "--data", "other.npz", cwd=folder)
    assert refused.returncode == 2
    assert "is not the data runs/digits was made from" in refused.stderr


def test_the_baseline_is_shown_with_its_time(fitted) -> None:
    (line,) = [line for line in fitted.stdout.splitlines() if "labelled images only" in line]
    assert re.search(r"\d+\.\d\d % \(same 4 steps, in 0:\d\d\) ", line)


def test_a_longer_baseline_that_the_run_starts_from_is_shown(fitted, folder: Path) -> None:
    words = ["--run.baseline_factor", "2", "--run.warm_start", "true", "--run.report", "false", "--out", "runs/longer"]
    said = cotrain("fit", "digits", *SMALL, *words, cwd=folder).stdout
    assert re.search(r"images only\) +│ \d+\.\d\d % \(8 steps, in 0:\d\d\) ", said)
    assert "longer training included" in " ".join(said.replace("│", " ").split())


def test_training_on_labelled_images_only_is_labelled_as_such(fitted, folder: Path) -> None:
    words = ["--method", "supervised", "--run.report", "false", "--out", "runs/alone"]
    alone = cotrain("fit", "digits", *SMALL, *words, cwd=folder)
    again = cotrain("evaluate", "runs/alone", cwd=folder)
    for shown in (alone, again):
        assert shown.returncode == 0
        (line,) = [line for line in shown.stdout.splitlines() if "labelled images only" in line]
        assert re.search(r"\d+\.\d\d % ", line)
        for words in (
            "not trained",
            "baseline",
            "labelled and unlabelled images",
            "no clear difference",
            "all heads agree",
        ):
            assert words not in shown.stdout
    assert "baseline:" not in alone.stdout


def test_predict_writes_a_row_for_every_file(fitted, folder: Path) -> None:
    digits = open_data("digits")
    (folder / "new/deeper").mkdir(parents=True)
    for row, name in enumerate(["a.png", "deeper/b c.png", "ünïcode.png"]):
        Image.fromarray(digits.images[row, :, :, 0].numpy()).resize((40, 30)).save(folder / "new" / name)
    (folder / "new/broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    (folder / "new/notes.txt").write_text("not an image")
    done = cotrain("predict", "runs/digits", "new", "new/absent.jpg", "--out", "preds.csv", cwd=folder)
    raw = "probabilities are not calibrated: the run has no validation images to fit a temperature on; "
    assert (done.returncode, done.stderr) == (0, f"{raw}train with data.valid_share=0.2 to hold some out\n")
    assert re.fullmatch(r"5 images, 2 unreadable -> preds.csv \([\d,]+ images per second\)\n", done.stdout)
    with open(folder / "preds.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [
        "new/a.png", "new/broken.png", "new/deeper/b c.png", "new/ünïcode.png", "new/absent.jpg"
    ]  # fmt: skip
    for row in rows:
        if row["error"]:
            assert row["error"].startswith("unreadable: ")
            assert row["class"] == row["probability"] == ""
        else:
            assert row["class"] in digits.classes
            assert 0.1 <= float(row["probability"]) <= 1
            assert 0 <= int(row["heads_agree"]) <= 3
    again = cotrain("predict", "runs/digits", "new/a.png", "--out", "preds.csv", cwd=folder)
    assert again.returncode == 2
    assert "preds.csv already exists" in again.stderr
    printed = cotrain("predict", "runs/digits", "new/a.png", cwd=folder)
    assert printed.stdout.splitlines()[0] == "path,class,probability,heads_agree,belongs,error"
    assert printed.stdout.splitlines()[1].startswith("new/a.png,")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fit digits --optim.lrr 3", "did you mean optim.lr?"),
        ("fit digits --optim.lr=-1", "optim.lr='-1': input should be greater than 0"),
        ("fit digits --optim.lr", "optim.lr=''"),
        ("fit digits --data.valid-share 2", "data.valid_share='2': input should be less than"),
        ("fit digits --method mhtc", "there is no method 'mhtc'; there are: mhct"),
        ("fit digits --recipe foo", "there is no recipe 'foo'; the recipes are: digits, small32, routed32, photos"),
        ("fit nowhere.npz", "nowhere.npz does not exist"),
        ("fit digits --labels 5", "data.labels=5 is fewer than the 10 classes"),
        ("fit digits --set lr", "--set lr: write KEY=VALUE"),
        ("fit digits --preset released", 'Choose from: "paper", "code"'),
        ("fit digits --resume", "--resume needs --out"),
        ("fit digits --resume --out absent", "there is no run absent"),
        ("fit digits --run.device warp", "run.device='warp' cannot be used here"),
        ("fit digits --model.share group9", "choose one of: none, stem, group1, group2, group3"),
        ("fit digits --augment.crop 0.05", "images of 16x16 are too small for augment.crop=0.05"),
        ("fit", "name the data to train on"),
        ("fit --resume", "--resume needs --out"),
        ("fitt digits", "fitt"),
        ("evaluate absent", "there is no run absent"),
        ("predict absent image.png", "there is no run absent"),
        ("predict absent", "predict needs image files"),
        ("report absent", "there is no run absent"),
        ("report", "report needs one or more run folders"),
        ("describe nothing", "there is no recipe 'nothing'"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(words: str, message: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        main(words.split())
    assert exit.value.code == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.startswith("cotrain: ")
    assert line.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("recipe", "numbers"),
    [
        ("cifar10", ("350,032", "1,117,578", "3,702,766", "1,344", "1,856")),
        ("cifar100", ("5,515,216", "4,814,436", "19,958,524", "1,856")),
        ("miniimagenet", ("2,782,784", "8,445,028", "28,117,868", "576", "832")),
    ],
)
def test_describe_counts_parameters_and_images(recipe: str, numbers: tuple[str, ...], capsys) -> None:
    main(["describe", recipe])
    printed = capsys.readouterr().out
    assert all(number in printed for number in numbers)
    assert "--optim.lr" in printed


def test_help_shows_every_setting(capsys) -> None:
    main(["fit", "--help"])
    printed = capsys.readouterr().out
    for key in (
        "--data.labels",
        "--augment.cutout",
        "--model.backbone",
        "--method.weak_pass",
        "--optim.lr",
        "--run.seed",
    ):
        assert key in printed


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def interrupted_twice() -> None:
    """A command that gets Ctrl-C, and another one while the line about the first is being printed."""
    reported = command_line._end

    def interrupted(*said: object) -> None:
        os.kill(os.getpid(), SIGINT)
        reported(*said)

    command_line.app, command_line._end = interrupt, interrupted
    sys.argv = ["cotrain", "describe"]
    main()


@pytest.mark.system
def test_more_interruptions_change_neither_line_nor_exit_code() -> None:
    done = Running(interrupted_twice).wait()
    assert (done.returncode, done.stderr) == (130, "cotrain: interrupted\n")


def test_an_interruption_while_an_error_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "_end", interrupt)
    with pytest.raises((SystemExit, KeyboardInterrupt)) as end:
        main(["describe", "nothing-of-this-name"])
    assert end.value.args == (130,)
