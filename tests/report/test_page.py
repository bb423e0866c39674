"""The page of a run, from runs that nobody trained: what it says, and that nothing in it is anybody else's."""

import csv
import json
import re
import shutil
import weakref
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import binomtest

import cotrain
from cotrain import Config, Dataset, UserError, methods, recipe_named
from cotrain.cli.main import main
from cotrain.cli.report import data_of
from cotrain.data import open_data
from cotrain.evaluation.calibration import fit_temperature
from cotrain.evaluation.predict import deferred
from cotrain.evaluation.verdict import verdict
from cotrain.report.curves import SHARES
from cotrain.report.page import Subject, page, pictures, show, write_report
from cotrain.runs.run import Run
from cotrain.runs.scores import read_outputs, write_outputs
from tests.made_up import made_up_run, some_data, some_logits

SECTIONS = ["verdict", "learning", "calibration", "selective", "confusion", "classes", "heads", "images", "about"]
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


@pytest.fixture(scope="module")
def data() -> Dataset:
    return some_data()


@pytest.fixture(scope="module")
def run(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_up_run(tmp_path_factory.mktemp("report") / "run", data)


@pytest.fixture(scope="module")
def html(run: Run, data: Dataset) -> str:
    return write_report(run, data).read_text()


def test_sections_come_in_order_with_the_verdict_first(html: str, run: Run) -> None:
    read = Read(html)
    assert [section["id"] for section in read.all("section")] == SECTIONS
    parts = [read_outputs(folder / "scores.npz")["test"] for folder in (run.folder, run.baseline_folder)]
    expected = verdict(*parts, "probabilities")
    assert expected.word == "helped"
    found = words(read, "verdict")
    assert "The unlabelled images helped" in found
    for number in (expected.labelled_only, expected.error):
        assert f"{number:.2f} %" in found
    for number in (expected.difference, expected.low, expected.high):
        assert f"{number:+.2f}".replace("-", "\N{MINUS SIGN}") in found
    assert "60 test images" in found


def test_verdict_and_warnings_in_the_result_are_taken(run: Run, data: Dataset, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "run", ignore=shutil.ignore_patterns("log.jsonl"))
    copy = Run.open(tmp_path / "run")
    said = {"labelled_only": 3.0, "error": 4.0, "difference": 1.0, "low": 0.5, "high": 1.5, "word": "hurt"}
    copy.finish({**copy.result, "verdict": said, "warnings": ["the heads have become <b>alike"]})
    read = Read(page([show(Subject(copy, None))]))
    assert "The unlabelled images hurt" in words(read, "verdict")
    assert "The heads have become <b>alike." in words(read, "heads")
    copy.finish({**copy.result, "verdict": {"word": "great"}})
    with pytest.raises(UserError, match=r"result\.json is damaged: its verdict"):
        show(Subject(copy, data))


def test_nothing_comes_from_elsewhere(html: str) -> None:
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", html.replace("base64,", "")) == []
    assert "url(http" not in html and "@import" not in html
    read = Read(html)
    for tag, attributes in read.elements:
        for name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/png;base64,", "#")), (tag, name, value)
        assert not any(name.startswith("on") for name in attributes), tag
    assert read.all("link") == read.all("iframe") == []
    assert len(read.all("script")) == 1


def test_every_picture_has_a_text_and_every_figure_a_caption(html: str) -> None:
    read = Read(html)
    assert len(read.all("img")) > 20
    assert all(image["alt"].strip() for image in read.all("img"))
    drawn = read.all("svg")
    assert len(drawn) == len(read.all("figure")) == len(read.all("figcaption")) >= 7
    assert all(one["role"] == "img" and len(one["aria-label"]) > 20 for one in drawn)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html, re.S)
    hints = {
        "error (%)": "lower is better",
        "loss": "should fall or level off",
        "share": "every guess is believed",
        "percent": "Wrong votes teach wrong things",
        "learning rate": "how far one step may change the network",
        "Reliability": "below it the network is too sure, above it not sure enough",
        "answered": "The lower the curve, the better",
    }
    found = []
    for one, caption in zip(drawn, captions, strict=True):
        alt = one["aria-label"].removeprefix("Line chart of ").removeprefix("the error among the ")
        (kind,) = (kind for kind in hints if alt.startswith(kind))
        assert hints[kind] in caption, kind
        found.append(kind)
    assert found.count("Reliability") == 2 and {*found} == {*hints}


def test_captions_of_reliability_have_the_numbers(html: str, run: Run) -> None:
    test = read_outputs(run.scores_path)["test"]
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html, re.S)
    for temperature in (1.0, 2.0):
        probabilities = (test.logits / temperature).double().softmax(-1).mean(0)
        sure, right = 100 * probabilities.max(-1).values, 100 * (probabilities.argmax(-1) == test.labels).double()
        whole = f"On the whole {sure.mean():.1f}\xa0% sure and {right.mean():.1f}\xa0% right."
        assert sum(f"T = {temperature:.2f}: ECE" in caption and whole in caption for caption in captions) == 1


def test_ids_are_unique_and_used_ones_exist(html: str) -> None:
    ids = [attributes["id"] for _, attributes in Read(html).elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', html))
    assert len(used) > len(SECTIONS) and used <= set(ids)


def test_figures_have_no_colour_of_their_own(html: str) -> None:
    drawn = "".join(re.findall(r"<svg.*?</svg>", html, re.S))
    assert "var(--first)" in drawn and "var(--ink)" in drawn
    assert re.findall(r"#[0-9a-f]{6}\b", re.sub(r'(?:href="|url\()#\w+', "", drawn)) == []


def test_what_the_sections_say(html: str, run: Run) -> None:
    read = Read(html)
    assert "supervised ends at 0.09" in "".join(one["aria-label"] for one in read.all("svg"))
    assert "unlabelled ends at 12; unlabelled, labelled only ends at 40" in "".join(
        one["aria-label"] for one in read.all("svg")
    )
    assert "vote right ends at 80" in "".join(one["aria-label"] for one in read.all("svg"))
    for name in ("as it is", "the paper's temperature", "head 3", "Brier"):
        assert name in words(read, "calibration")
    assert "No temperature was fitted" in words(read, "calibration")
    assert "AURC of this run" in words(read, "selective")
    assert [table.get("class") for table in read.all("table")].count("confusion") == 1
    assert "owl 0 " in words(read, "classes")  # no test image of the last class
    assert "3 of 3" in words(read, "heads") and "80.0 % of the unlabelled images" in words(read, "heads")
    assert "a pseudo-label for 90.0 % of the unlabelled images (80.0 % of these labels are right), and for" in words(
        read, "heads"
    )
    about = words(read, "about")
    for fact in ("cotrain fit noise", "123,456", run.split.hash, "torch 2.13.0", "optim.lr", "0:11 for 100 steps"):
        assert fact in about


def test_images_are_the_most_confident_mistakes_and_those_to_label_next(html: str, run: Run, data: Dataset) -> None:
    test = read_outputs(run.scores_path)["test"]
    probabilities = test.logits.double().softmax(-1).mean(0)
    wrong = [row for row in range(60) if probabilities[row].argmax() != test.labels[row]]
    surest = max(wrong, key=lambda row: float(probabilities[row].max()))
    alts = [image["alt"] for image in Read(html).all("img")]
    label = data.classes[test.labels[surest]]
    said = data.classes[int(probabilities[surest].argmax())]
    sure = 100 * float(probabilities[surest].max())
    assert alts[0] == f"row {test.rows[surest]}: predicted {said}, {sure:.1f} %; label {label}"
    with open(run.folder / "label_next.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [*rows[0]] == ["path", "row", "class", "probability", "heads_agree", "disagreement"]
    found = [int(row["row"]) for row in rows]
    assert set(found) == set(run.split.unlabelled) - set(run.split.labelled)
    amounts = [float(row["disagreement"]) for row in rows]
    assert amounts == sorted(amounts, reverse=True) and amounts[0] > 0
    assert f"row {found[0]}: heads predict" in "\n".join(alts)
    logits = cotrain.load(run.folder).logits(data.images, np.array(found[:1])).double()
    p = logits.softmax(-1)[:, 0].numpy()
    mean = p.mean(0)
    assert amounts[0] == pytest.approx(-(mean * np.log(mean)).sum() + (p * np.log(p)).sum(1).mean(), abs=1e-5)


def test_one_head_is_asked_what_it_is_least_sure_of(tmp_path: Path, data: Dataset) -> None:
    run = made_up_run(tmp_path / "run", data, changes={"method": "fixmatch"})
    read = Read(write_report(run, data).read_text())
    assert "This network has a single head" in words(read, "heads")
    assert "least confident (highest entropy)" in words(read, "images")


def test_names_are_escaped(tmp_path: Path) -> None:
    evil = (
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(2)>',
        "$\\frac{$ & 'x'",
        "{{ 7 * 7 }}",
        "\udcff日本",
    )
    dataset = some_data(evil)
    files = tuple(f"<b>{row}</b>\udcfe.png" for row in range(len(dataset.images)))
    dataset = replace(dataset, paths=files)
    run = made_up_run(tmp_path / "<i>run", dataset)
    with open(run.log_path, "a") as log:
        row = {"step": 100, "<u>$\\frac{$ a\\d": 0.5, "<s>0": 0.5, "bad": "word", "worse": float("nan")}
        log.write(json.dumps(row) + "\n")
    text = write_report(run, dataset).read_text()
    read = Read(text)
    assert "<b>" in words(read, "images") and "<i>run" in words(read, "head")
    assert re.findall(r"<b>\d+</b>|<i>run", text) == []
    assert "<u>$" in words(read, "learning")
    assert {"u", "s"} & {tag for tag, _ in read.elements} == set()
    assert len(read.all("script")) == 1
    assert all("onerror" not in image for image in read.all("img"))
    assert "<script>alert(1)</script>" in words(read, "classes")
    assert "{{ 7 * 7 }}" in words(read, "classes")
    assert (run.folder / "label_next.csv").read_bytes().count(b"\xfe.png") == len(read_rows(run)) > 0


def read_rows(run: Run) -> list[str]:
    return (run.folder / "label_next.csv").read_text(errors="surrogateescape").splitlines()[1:]


def test_without_test_images_it_says_what_cannot_be_known(tmp_path: Path) -> None:
    dataset = some_data(test=0)
    run = made_up_run(tmp_path / "run", dataset, alone=None)
    read = Read(write_report(run, dataset).read_text())
    assert [section["id"] for section in read.all("section")] == SECTIONS
    for section in ("verdict", "calibration", "selective", "confusion", "classes", "heads"):
        assert "so its accuracy on new images is unknown" in words(read, section), section
    assert "Label these next" in words(read, "images")
    assert read_rows(run)


def test_without_a_labelled_only_network_the_error_stands_alone(tmp_path: Path, data: Dataset) -> None:
    read = Read(write_report(made_up_run(tmp_path / "run", data, alone=None), None, without="Gone.").read_text())
    assert "no labelled-only baseline was trained" in words(read, "verdict")
    assert "No images are shown. Gone." in words(read, "images")
    assert read.all("img") == []
    assert not (tmp_path / "run/label_next.csv").exists()


@pytest.mark.parametrize(("kind", "images"), [("sure", 1), ("undecided", 60), ("right", 60)])
def test_all_predictions_equal(kind: str, images: int, tmp_path: Path) -> None:
    dataset = some_data(test=images)
    logits = {
        "sure": torch.tensor([0.0, 0.0, 90.0]).expand(3, images, 3),
        "undecided": torch.zeros(3, images, 3),
        "right": 50 * torch.nn.functional.one_hot(dataset.labels[dataset.test], 3).float().expand(3, images, 3),
    }[kind]
    read = Read(page([show(Subject(made_up_run(tmp_path / "run", dataset, logits=logits.clone()), None))]))
    assert [section["id"] for section in read.all("section")] == SECTIONS
    said = " ".join([*read.text.values(), *(one["aria-label"] for one in read.all("svg"))])
    assert re.findall(r"\b(nan|inf)\b", said) == []
    assert ("All test images were classified correctly" in words(read, "confusion")) == (kind == "right")


def test_one_image_in_each_bin(tmp_path: Path) -> None:
    dataset = some_data(test=7)
    wanted = torch.tensor([0.36, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95])
    probabilities = torch.stack([wanted, (1 - wanted) / 2, (1 - wanted) / 2], dim=-1)
    run = made_up_run(tmp_path / "run", dataset, logits=probabilities.log().expand(3, 7, 3).clone())
    found = show(Subject(run, None)).results
    assert found.images == 7
    right = (dataset.labels[dataset.test] == 0).double()
    gap = 100 * (right - wanted).abs().mean().item()
    assert found.calibrated[0].numbers.ece == pytest.approx(gap, abs=1e-4)
    assert found.calibrated[0].numbers.adaptive_ece == pytest.approx(gap, abs=1e-4)


def test_two_hundred_classes_are_a_picture(tmp_path: Path) -> None:
    dataset = some_data(tuple(f"class {number}" for number in range(200)), test=400)
    run = made_up_run(tmp_path / "run", dataset)
    path = write_report(run, dataset)
    read = Read(path.read_text())
    assert any(one["aria-label"].startswith("Confusion matrix of 200 classes") for one in read.all("svg"))
    assert not any(table.get("class") == "confusion" for table in read.all("table"))
    assert "class 199" in words(read, "classes")
    assert path.stat().st_size < 1_000_000


def test_several_runs_side_by_side(run: Run, data: Dataset, tmp_path: Path) -> None:
    other = some_data(("sun", "moon"), seed=1)
    second = made_up_run(tmp_path / "second", other, right=0.5, alone=0.9)
    read = Read(page([show(Subject(run, data)), show(Subject(second, other))]))
    assert [section["id"] for section in read.all("section")] == SECTIONS
    assert "do not have the same classes" in words(read, "verdict")
    for word in ("helped", "hurt"):
        assert words(read, "verdict").count(f"The unlabelled images {word}") == 1
    assert read.all("table")[0]["id"] == "compared"
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    twice = Read(page([show(Subject(run, None))] * 2))
    assert "do not have the same" not in words(twice, "verdict")


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


def refused(arguments: list[str], capsys) -> str:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("cotrain: ") and line.count("\n") == 1
    return line


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
    assert "notes.html exists already" in refused(["report", "run", "--out", "notes.html"], capsys)
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


def saved(data: Dataset, path: Path) -> Dataset:
    """The same from a file, where a run finds them again."""
    images, labels = data.images.numpy(), data.labels.numpy()
    arrays = {"train_images": images[data.train], "train_labels": labels[data.train]}
    np.savez(path, **arrays, test_images=images[data.test], test_labels=labels[data.test])
    return open_data(path)


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
    assert "half is not finished: there is no result.json" in refused(["report", "half"], capsys)
    assert "there is no run absent" in refused(["report", "absent"], capsys)
    assert "report needs one or more run folders" in refused(["report"], capsys)
    shutil.copytree(run.folder, "old", ignore=without_page)
    Path("old/scores.npz").unlink()
    assert "scores.npz is missing or damaged" in refused(["report", "old"], capsys)
    for bins in ("0", "101", "-1"):
        assert f"--bins {bins}: there must be between 1 and 100" in refused(["report", "old", "--bins", bins], capsys)
    assert not any(Path(folder, "report.html").exists() for folder in (".", "half", "old"))


def test_fit_writes_the_page_and_report_writes_it_again(tmp_path: Path, toy: Dataset, tiny: Config) -> None:
    short = {"optim.steps": 2, "run.log_every": 1}
    fitted = cotrain.fit(toy, out=tmp_path / "run", config=tiny, settings={**short, "run.report": True})
    read = Read((fitted.folder / "report.html").read_text())
    assert f"{fitted.result['test_error']:.2f} %" in words(read, "verdict")
    assert len(read.all("img")) > 20 and (fitted.folder / "label_next.csv").exists()
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
    assert "Images of 4 channels cannot be drawn" in words(read, "images")
    assert read.all("img") == []
    unlabelled = set(run.split.unlabelled) - set(run.split.labelled)
    assert f"label_next.csv in the run folder lists {len(unlabelled)} of them" in words(read, "images")
    assert {int(line.split(",")[1]) for line in read_rows(run)} == unlabelled


def test_made_up_heads_know_what_they_are_said_to(data: Dataset) -> None:
    labels = data.labels[data.test]
    sure = some_logits(labels, 3, 1.0).mean(0).argmax(-1)
    assert (sure == labels).float().mean() > 0.9


def copy_of(run: Run, folder: Path) -> Run:
    shutil.copytree(run.folder, folder)
    return Run.open(folder)


def shown(run: Run, **how: int) -> Read:
    return Read(page([show(Subject(run, None), **how)]))


def test_the_budget_of_the_labelled_only_network_is_said(run: Run, tmp_path: Path) -> None:
    copy = copy_of(run, tmp_path / "run")
    assert "trained for the same 100 steps, not for the same time" in words(shown(copy), "verdict")
    log = [{"step": 50, "seconds": 2.0}, {"step": 100, "seconds": 4.0}, {"step": 100, "unlabelled_error": 40.0}]
    copy.baseline_folder.joinpath("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    assert "the same 100 steps (0:04 for the baseline, 0:11 for this run), not" in words(shown(copy), "verdict")
    copy.finish({**copy.result, "labelled_only_seconds": 7.0})
    assert "the same 100 steps (0:07 for the baseline, 0:11 for this run), not" in words(shown(copy), "verdict")


def table_of(html: str, name: str) -> list[list[str]]:
    """Cells of the table of that name."""
    (table,) = re.findall(rf'<table[^>]*data-of="{name}">(.*?)</table>', html, re.S)
    rows = [re.findall(r"<t[hd].*?</t[hd]>", row, re.S) for row in re.findall(r"<tr>.*?</tr>", table, re.S)]
    return [[" ".join(re.sub(r"<.*?>", "", cell).split()) for cell in row] for row in rows]


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_table_of_answers_is_what_predict_would_do(share: float, tmp_path: Path) -> None:
    data = some_data(test=60)
    run = made_up_run(tmp_path / "run", data, changes={"data.valid_share": share})
    parts = read_outputs(run.scores_path)
    temperature = fit_temperature(parts["valid"].logits, parts["valid"].labels, "probabilities") if share else 1.0
    text = page([show(Subject(run, None))])
    said = words(Read(text), "selective")
    assert (
        (f"fitted on validation images (T = {temperature:.2f})" in said)
        == (share > 0)
        == ("uncalibrated (T = 1)" not in said)
    )
    heads, *rows = table_of(text, "answered")
    assert heads == ["probability at least", "answered", "wrong", "error", "upper bound"]
    labels = parts["test"].labels
    probabilities = (parts["test"].logits.double() / temperature).softmax(-1).mean(0)
    sure, guess = probabilities.max(-1)
    table = [{"path": str(row), "probability": p.item(), "error": ""} for row, p in enumerate(sure)]
    assert [row[0] for row in rows].count("any") == 1 and len(rows) == 5
    for probability, of_all, wrong, error, most in rows:
        below = 0.0 if probability == "any" else float(probability)
        kept = [int(row["path"]) for row in deferred(table, below) if row["defer"] == "no"]
        mistakes = int((guess[kept] != labels[kept]).sum())
        assert wrong == f"{mistakes} of {len(kept)}"
        assert of_all == f"{100 * len(kept) / 60:.0f} %"
        assert error == f"{100 * mistakes / len(kept):.2f} %"
        exact = binomtest(mistakes, len(kept), alternative="less").proportion_ci(0.95, method="exact").high
        assert most == f"{100 * exact:.2f} %"
    assert [of_all for _, of_all, *_ in rows] == ["100 %", "95 %", "90 %", "80 %", "50 %"]


def test_the_temperature_is_the_one_that_predict_has(tmp_path: Path) -> None:
    """It was fitted once; a result of before may have another than today's fit, at another place."""
    run = made_up_run(tmp_path / "run", some_data(test=60), changes={"data.valid_share": 0.3})
    of_before = {key: value for key, value in run.result.items() if key != "temperature"}
    for stored, said in (
        ({"temperature": 3.21}, "T = 3.21"),
        ({"calibration": {"ensemble": {"fitted": {"temperature": 4.56}}}}, "T = 4.56"),
    ):
        run.finish({**of_before, **stored})
        read = shown(run)
        selective = words(read, "selective")
        assert f"those of predict : with the temperature fitted on validation images ({said})" in selective
        assert f"Temperature fitted on valid images, {said}: ECE" in words(read, "calibration")
        assert said == f"T = {cotrain.load(run.folder).temperature}"
    run.finish(of_before)
    read = shown(run)
    assert "those of predict : uncalibrated (T = 1)" in words(read, "selective")
    assert cotrain.load(run.folder).temperature == 1
    assert "No temperature was fitted" in words(read, "calibration")


def test_only_shares_are_drawn_as_shares(run: Run, tmp_path: Path) -> None:
    copy = copy_of(run, tmp_path / "run")
    rows = [{"step": step, "rotation": 0.4, "entropy": 0.2, "selected": 0.6, "labelled": 0.3} for step in (50, 100)]
    copy.log_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = {one["aria-label"] for one in shown(copy).all("svg")}
    assert "Line chart of share over 100 steps. selected ends at 0.6; labelled ends at 0.3." in drawn
    assert "Line chart of value over 100 steps. rotation ends at 0.4; entropy ends at 0.2." in drawn


def test_names_of_shares_are_those_that_methods_watch() -> None:
    """Whatever a method watches is drawn; what is called a share here is the mean of a mask there."""
    text = "".join(path.read_text() for path in Path(methods.__file__).parent.glob("*.py"))
    for name in SHARES:
        assert re.search(rf'"{name}": \w+(\.float\(\))?\.mean\(\)', text), name


def test_heads_errors_over_training_have_a_figure(run: Run, tmp_path: Path) -> None:
    copy = copy_of(run, tmp_path / "run")
    rows = [
        {"step": 50, "valid_error": 20.0, "head_1_error": 22.0, "head_2_error": 30.0},
        {"step": 50, "unlabelled_error": 50.0, "head_1_error": 51.0, "head_2_error": 52.0},
        {"step": 100, "valid_error": 10.0, "head_1_error": 12.0, "head_2_error": 13.0},
    ]
    copy.log_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = shown(copy)
    drawn = {one["aria-label"] for one in read.all("svg")}
    assert "Line chart of error of a head (%) over 100 steps. head 1 ends at 12; head 2 ends at 13." in drawn
    assert "Each head's error on valid images" in words(read, "learning")
    assert any(one.startswith("Line chart of error (%) over 100 steps. valid ends at 10; unlabelled") for one in drawn)


def test_votes_without_known_labels(run: Run, tmp_path: Path) -> None:
    copy = copy_of(run, tmp_path / "run")
    copy.log_path.write_text('{"step": 100, "heads_disagree": 4.0, "vote_selected": 70.0}\n')
    read = shown(copy)
    assert "a pseudo-label for 70.0 % of the unlabelled images, and for" in words(read, "heads")
    assert "How many of those are right cannot be known" in words(read, "learning")
    copy.log_path.write_text(copy.log_path.read_text() + '{"step": 100, "valid_error": 9.0, "vote_right": 88.0}\n')
    read = shown(copy)
    assert "a pseudo-label for 70.0 % of the unlabelled images, and for" in words(read, "heads")
    assert "How many are right is told by valid images" in words(read, "learning")


@pytest.mark.parametrize("method", ["mhct", "deep_cotraining"])
def test_two_heads_do_not_vote(method: str, data: Dataset, tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", data, changes={"method": method, "method.heads": 2})
    rows = [{"step": step, "unlabelled_error": 9.0, "heads_disagree": 4.0, "head_1_error": 9.5} for step in (50, 100)]
    run.log_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = shown(run)
    assert "All heads agree on" in words(read, "heads")
    assert "The vote of the other heads" not in words(read, "heads")
    assert "Line chart of percent over 100 steps. heads disagree ends at 4." in {
        one["aria-label"] for one in read.all("svg")
    }
    assert "how often the heads disagree" in words(read, "learning")
    assert "cannot be known" not in words(read, "learning")


def test_votes_that_select_nothing_are_not_of_unknown_labels(run: Run, tmp_path: Path) -> None:
    copy = copy_of(run, tmp_path / "run")
    row = {"step": 100, "unlabelled_error": 66.0, "heads_disagree": 99.0, "vote_selected": 0.0, "head_1_error": 70.0}
    copy.log_path.write_text(json.dumps(row) + "\n")
    read = shown(copy)
    assert "labels only the evaluation knows" in words(read, "learning")
    assert "a pseudo-label for 0.0 % of the unlabelled images, and for" in words(read, "heads")


def test_images_to_label_next_are_not_promised_too_much(
    run: Run, data: Dataset, html: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = words(Read(html), "images")
    assert "on which the heads disagree most" in said
    assert "even if all heads predict the same class" in said and "may help most" in said
    assert "were searched" not in said
    monkeypatch.setattr(pictures, "LOOKED_AT", 5)
    unlabelled = len({*run.split.unlabelled} - {*run.split.labelled})
    said = words(Read(page([show(Subject(run, data))])), "images")
    assert f"5 of the {unlabelled} unlabelled images were searched, evenly spaced" in said


def test_each_head_is_shown_with_every_temperature(tmp_path: Path) -> None:
    data = some_data(test=60)
    run = made_up_run(tmp_path / "run", data, changes={"data.valid_share": 0.3})
    parts = read_outputs(run.scores_path)
    fitted = fit_temperature(parts["valid"].logits, parts["valid"].labels, "probabilities")
    heads, *rows = table_of(page([show(Subject(run, None))]), "ece-of-heads")
    assert heads == ["head", "T = 1.00", "T = 2.00", f"T = {fitted:.2f}, fitted"]
    assert [row[0] for row in rows] == ["head 1", "head 2", "head 3", "ensemble"]
    test = parts["test"]
    for number, (_, *eces) in enumerate(rows[:3]):
        for temperature, ece in zip((1.0, 2.0, fitted), eces, strict=True):
            sure, said = (test.logits[number].double() / temperature).softmax(-1).max(-1)
            right = (said == test.labels).double()
            bins = [(sure > low / 10) & (sure <= (low + 1) / 10) for low in range(10)]
            gaps = [abs(right[one].sum() - sure[one].sum()).item() for one in bins]
            assert float(ece.split()[0]) == pytest.approx(100 * sum(gaps) / len(right), abs=0.01)


def test_the_number_of_bins_is_chosen(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ece(read: Read) -> float:
        return float(re.search(r"as it is 1\.00 \S+ % \S+ % (\S+) %", words(read, "calibration"))[1])

    monkeypatch.chdir(tmp_path)
    copy_of(run, Path("run"))
    main(["report", "run", "--bins", "1"])
    one = Read(Path("run/report.html").read_text())
    assert "over 1 bin of equal width" in words(one, "calibration")
    test = read_outputs(run.scores_path)["test"]
    probabilities = test.logits.double().softmax(-1).mean(0)
    right = (probabilities.argmax(-1) == test.labels).double()
    assert ece(one) == pytest.approx(100 * abs(right.mean() - probabilities.max(-1).values.mean()).item(), abs=0.01)
    main(["report", "run"])
    ten = Read(Path("run/report.html").read_text())
    assert "over 10 bins of equal width" in words(ten, "calibration")
    assert ece(ten) > ece(one)
    main(["report", "run", "run", "--bins", "3"])
    assert "over 3 bins of equal width" in words(Read(Path("report.html").read_text()), "calibration")


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


def test_pictures_and_rows_have_the_probability_that_predict_has(tmp_path: Path) -> None:
    data = some_data(test=60)
    run = made_up_run(tmp_path / "run", data, changes={"data.valid_share": 0.3}, result={"temperature": 3.0})
    test, words_of = read_outputs(run.scores_path)["test"], []
    text = page([show(Subject(run, data))])
    said = cotrain.load(run.folder).predict(data.images[np.asarray(run.split.unlabelled)])
    sureness = dict(zip(run.split.unlabelled, said.probabilities.max(axis=1), strict=True))
    write_report(run, data)
    rows = [*csv.DictReader((run.folder / "label_next.csv").read_text().splitlines())]
    assert len(rows) > 5
    for row in rows:
        assert float(row["probability"]) == pytest.approx(sureness[int(row["row"])], abs=1e-6)
    raw = test.logits.double().softmax(-1).mean(0)
    classes, hot = raw.argmax(-1), (test.logits.double() / 3).softmax(-1).mean(0)
    for place in (classes != test.labels).nonzero()[:, 0].tolist():
        words_of.append(f"{100 * hot[place, classes[place]]:.1f} %; label {data.classes[test.labels[place]]}")
    assert words_of and all(text.count(each) for each in words_of)


def test_a_run_without_measured_errors_says_why(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "run")
    copy = Run.open(tmp_path / "run")
    why = "No error was measured during training. To measure it, provide validation images"
    assert why not in words(Read(page([show(Subject(copy, None))])), "learning")
    copy.log_path.write_text('{"step": 10, "supervised": 1.0, "lr": 0.1}\n')
    assert why in words(Read(page([show(Subject(copy, None))])), "learning")


def test_a_run_that_is_not_finished_says_how_to_go_on(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    run = made_up_run(Path("half"), saved(some_data(), tmp_path / "images.npz"), alone=None)
    (run.folder / "result.json").unlink()
    line = refused(["report", "half"], capsys)
    assert line.endswith(f"go on with: cotrain fit {tmp_path / 'images.npz'} --out half --resume\n")
    run.model_path.unlink()
    assert "--out half --resume" in refused(["predict", "half", "x.png"], capsys)
