"""`cotrain report` and the page that `fit` writes: files, data that moved, mistakes of the user."""

import json
import shlex
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import cotrain
from cotrain import Config, Dataset, UserError, recipe_named
from cotrain.cli.main import main
from cotrain.cli.report import data_of
from cotrain.data import open_data
from cotrain.report.page import Subject, pictures, show, write_report
from cotrain.runs.run import Run
from cotrain.runs.scores import read_outputs, write_outputs
from tests.made_up import made_up_run, some_data
from tests.report.reading import Read, copy_of, read_rows, refused, saved, words

pytestmark = pytest.mark.usefixtures("unrendered")  # test_page.py and test_browser.py have the figures


def test_damaged_scores_are_named(run: Run, data: Dataset, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "run")
    copy = Run.open(tmp_path / "run")
    test = read_outputs(copy.scores_path)["test"]
    for broken in (
        replace(test, logits=test.logits[..., :2]),
        replace(test, logits=test.logits[:, :5]),
        replace(test, labels=test.labels + 7),
        replace(test, logits=test.logits * float("nan")),
        replace(test, logits=test.logits[:2]),
        replace(test, logits=test.logits.long()),
        replace(test, labels=test.labels.double()),
        replace(test, rows=test.rows + 1),
    ):
        write_outputs(copy.scores_path, {"test": broken})
        with pytest.raises(UserError, match=r"scores\.npz (does not belong to this (run|model)|is damaged)"):
            show(Subject(copy, data))


def test_data_that_moved_or_changed_are_a_reason_not_an_error(tmp_path: Path) -> None:
    noise, path = some_data(test=0), tmp_path / "noise.npz"
    np.savez(path, train_images=noise.images.numpy(), train_labels=noise.labels.numpy())
    run = made_up_run(tmp_path / "run", open_data(path), alone=None)
    found, reason = data_of(run)
    assert found is not None and reason == ""
    path.rename(tmp_path / "moved.npz")
    assert data_of(run) == (None, f"The data are no longer at {path}; use --data to say where they are now.")
    found, reason = data_of(run, data=str(tmp_path / "moved.npz"))
    assert found is not None and reason == ""
    np.savez(path, train_images=255 - noise.images.numpy(), train_labels=noise.labels.numpy())
    found, reason = data_of(run)
    assert found is None and "is not the data" in reason
    path.write_bytes(b"not an archive")
    assert data_of(run)[0] is None
    with pytest.raises(UserError, match="is not the data"):
        data_of(run, data="digits")


def test_the_command(run: Run, data: Dataset, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run.folder, "run")
    Path("run/report.html").write_text("an older page")
    main(["report", "run"])  # its data came as arrays and are gone
    assert "no images; The run was trained on arrays" in capsys.readouterr().out
    assert "No images are shown" in Path("run/report.html").read_text()
    shutil.copy("run/report.html", "report.html")
    main(["report", "run", "run"])  # one of ours may be written anew
    assert "2 runs -> report.html" in capsys.readouterr().out
    Path("notes.html").write_text("<p>mine")
    assert "notes.html exists already and was not written by cotrain" in refused(
        ["report", "run", "--out", "notes.html"], capsys
    )
    assert Path("notes.html").read_text() == "<p>mine"
    images, labels = data.images.numpy(), data.labels.numpy()
    np.savez(
        "moved.npz",
        train_images=images[data.train],
        train_labels=labels[data.train],
        test_images=images[data.test],
        test_labels=labels[data.test],
    )
    assert "moved.npz is not the data run was made from" in refused(["report", "run", "--data", "moved.npz"], capsys)


def test_several_runs_have_their_images_to_label_next(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [made_up_run(Path(name), saved(some_data(seed=seed), tmp_path / f"{seed}.npz"), alone=None)
            for seed, name in enumerate(("one", "two"))]  # fmt: skip
    gone = made_up_run(Path("gone"), some_data(seed=2), alone=None)
    main(["report", "one", "two", "gone"])
    said = words(Read(Path("report.html").read_text()), "images")
    assert said.count("label_next.csv in the run folder lists") == 2
    for run in runs:
        assert {int(line.split(",")[1]) for line in read_rows(run)} == {*run.split.unlabelled} - {*run.split.labelled}
    assert not (gone.folder / "label_next.csv").exists()
    assert "gone: no images; The run was trained on arrays" in capsys.readouterr().out
    listed = runs[0].folder.joinpath("label_next.csv").read_bytes()
    main(["report", "one"])
    assert runs[0].folder.joinpath("label_next.csv").read_bytes() == listed


def test_data_are_opened_once_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that share their data are shown from one copy; of others, no more than two are in memory at a time."""
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        data = saved(some_data(seed=seed), tmp_path / f"{seed}.npz")
        made_up_run(Path(f"run{seed}"), data, alone=None)
        made_up_run(Path(f"other{seed}"), data, alone=None, changes={"data.labels": 6, "data.valid_share": 0.2})
    opened: list[weakref.ref[Dataset]] = []
    alive = []

    def watched(*args, **settings) -> Dataset:
        found = open_data(*args, **settings)
        opened.append(weakref.ref(found))
        alive.append(sum(one() is not None for one in opened))
        return found

    monkeypatch.setattr("cotrain.cli.report.open_data", watched)
    main(["report", *(f"{kind}{seed}" for seed in range(3) for kind in ("run", "other"))])
    assert len(opened) == 3 and max(alive) <= 2


def test_mistakes_of_the_user_are_one_line(run: Run, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    without_page = shutil.ignore_patterns("report.html")
    shutil.copytree(run.folder, "half", ignore=without_page)
    Path("half/result.json").unlink()
    assert "half is not finished: it has no result.json" in refused(["report", "half"], capsys)
    assert "there is no run absent" in refused(["report", "absent"], capsys)
    assert "report needs one or more run folders" in refused(["report"], capsys)
    shutil.copytree(run.folder, "old", ignore=without_page)
    Path("old/scores.npz").unlink()
    assert "scores.npz is missing or damaged" in refused(["report", "old"], capsys)
    for bins in ("0", "101", "-1"):
        assert f"--bins {bins}: the number of confidence bins must be between 1 and 100" in refused(
            ["report", "old", "--bins", bins], capsys
        )
    assert not any(Path(folder, "report.html").exists() for folder in (".", "half", "old"))


def test_fit_writes_the_page_and_report_writes_it_again(tmp_path: Path, toy: Dataset, tiny: Config) -> None:
    short = {"optim.steps": 2, "run.log_every": 1}
    fitted = cotrain.fit(toy, out=tmp_path / "run", config=tiny, settings={**short, "run.report": True})
    read = Read((fitted.folder / "report.html").read_text())
    assert f"{fitted.result['test_error']:.2f} %" in words(read, "verdict")
    assert len(read.all("img")) > 20 and (fitted.folder / "label_next.csv").exists()
    labels = fitted.result["labels_by_class"]
    assert labels == [4, 4] and "| above | 4 |" in (fitted.folder / "README.md").read_text()
    listed = (fitted.folder / "label_next.csv").read_bytes()
    (fitted.folder / "label_next.csv").unlink()
    (fitted.folder / "report.html").unlink()
    again = Read(write_report(Run.open(fitted.folder), toy).read_text())
    assert (fitted.folder / "label_next.csv").read_bytes() == listed
    assert again.text == read.text


def test_images_of_other_channels_are_left_out_but_listed(tmp_path: Path) -> None:
    grey = some_data()
    images = torch.cat([grey.images, grey.images[..., :1]], dim=-1)
    four = cotrain.from_arrays(
        images[grey.train], grey.labels[grey.train], test=(images[grey.test], grey.labels[grey.test])
    )
    assert not pictures.can_be_drawn(four)
    run = made_up_run(tmp_path / "run", four)
    read = Read(write_report(run, four).read_text())
    assert "Images with 4 channels cannot be drawn" in words(read, "images")
    assert read.all("img") == []
    unlabelled = set(run.split.unlabelled) - set(run.split.labelled)
    assert f"label_next.csv in the run folder lists {len(unlabelled)} of them" in words(read, "images")
    assert {int(line.split(",")[1]) for line in read_rows(run)} == unlabelled


def test_a_table_of_labels_that_moved_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    noise = some_data(test=0)
    Path("photos").mkdir()
    for row, image in enumerate(noise.images):
        Image.fromarray(image.numpy()).save(f"photos/{row}.png")
    names = [f"{row}.png,{noise.classes[label]}\n" for row, label in enumerate(noise.labels)]
    Path("labels.csv").write_text("path,label\n" + "".join(names))
    changes = {"data.labels_file": str(tmp_path / "labels.csv"), "data.size": 8}
    settings = recipe_named("digits").changed(changes).data
    made_up_run(tmp_path / "run", open_data(tmp_path / "photos", settings), alone=None, changes=changes)
    Path("labels.csv").rename("moved.csv")
    main(["report", "run"])
    assert "no images; The data cannot be used" in capsys.readouterr().out
    assert "<img" not in Path("run/report.html").read_text()
    main(["report", "run", "--labels", "moved.csv"])
    assert len(Read(Path("run/report.html").read_text()).all("img")) > 10
    assert "absent.csv" in refused(["report", "run", "--labels", "absent.csv"], capsys)


@pytest.mark.parametrize(
    ("started", "typed"),
    [
        ("/home/me/lib/cotrain/__main__.py fit 'my photos' --steps 5", "cotrain fit 'my photos' --steps 5"),
        ("'/my home/cotrain/__main__.py' fit digits", "cotrain fit digits"),
        ("/home/me/.venv/bin/cotrain fit digits", "cotrain fit digits"),
        ("cotrain fit digits", "cotrain fit digits"),
        ("/home/me/train.py --fast", "/home/me/train.py --fast"),
        ("/home/me/other/__main__.py fit", "/home/me/other/__main__.py fit"),
        ("half a 'quote", "half a 'quote"),
        ("", ""),
    ],
)
def test_the_command_can_be_pasted(started: str, typed: str, run: Run, tmp_path: Path) -> None:
    copy = copy_of(run, tmp_path / "run")
    (copy.folder / "command.json").write_text(json.dumps(started))
    assert show(Subject(copy, None)).facts["command"] == typed


def test_a_run_that_is_not_finished_says_how_to_continue(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    run = made_up_run(Path("half"), saved(some_data(), tmp_path / "images.npz"), alone=None)
    (run.folder / "result.json").unlink()
    line = refused(["report", "half"], capsys)
    assert line.endswith(f"resume with: cotrain fit {shlex.quote(str(tmp_path / 'images.npz'))} --out half --resume\n")
    run.model_path.unlink()
    assert "--out half --resume" in refused(["predict", "half", "x.png"], capsys)
