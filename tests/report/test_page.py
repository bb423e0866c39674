"""The page of a run, from runs that nobody trained: what it says, and that nothing in it is anybody else's."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import cotrain
from cotrain import Dataset, UserError
from cotrain.evaluation.verdict import verdict
from cotrain.report.page import Subject, page, show, write_report
from cotrain.runs.run import Run
from cotrain.runs.scores import read_outputs
from tests.made_up import made_up_run, some_data, with_result
from tests.report.reading import Read, read_rows, words

SECTIONS = [
    "verdict",
    "learning",
    "calibration",
    "selective",
    "confusion",
    "classes",
    "heads",
    "folder",
    "images",
    "about",
]


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
    with_result(copy, verdict=said, warnings=["the heads have become <b>alike"])
    read = Read(page([show(Subject(copy, None))]))
    assert "The unlabelled images hurt" in words(read, "verdict")
    assert "The heads have become <b>alike." in words(read, "heads")
    with_result(copy, verdict={"word": "great"})
    with pytest.raises(UserError, match=r"result\.json is damaged: verdict\.labelled_only: field required"):
        show(Subject(Run.open(copy.folder), data))


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
        "share": "every prediction is trusted",
        "percent": "Wrong votes teach wrong labels",
        "learning rate": "how far one step may change the network",
        "Reliability": "below it the network is overconfident, above it underconfident",
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
        confidence, right = 100 * probabilities.max(-1).values, 100 * (probabilities.argmax(-1) == test.labels).double()
        overall = f"Overall confidence {confidence.mean():.1f}\xa0%, accuracy {right.mean():.1f}\xa0%."
        assert sum(f"T = {temperature:.2f}: ECE" in caption and overall in caption for caption in captions) == 1


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
    assert "unlabelled ends at 12; unlabelled, baseline ends at 40" in "".join(
        one["aria-label"] for one in read.all("svg")
    )
    assert "vote right ends at 80" in "".join(one["aria-label"] for one in read.all("svg"))
    for name in ("uncalibrated", "the paper's temperature", "head 3", "Brier"):
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
    worst = max(wrong, key=lambda row: float(probabilities[row].max()))
    alts = [image["alt"] for image in Read(html).all("img")]
    label = data.classes[test.labels[worst]]
    predicted = data.classes[int(probabilities[worst].argmax())]
    confidence = 100 * float(probabilities[worst].max())
    assert alts[0] == f"row {test.rows[worst]}: predicted {predicted}, {confidence:.1f} %; label {label}"
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


def test_one_head_ranks_by_its_least_confident_images(tmp_path: Path, data: Dataset) -> None:
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
        for row in (
            {"step": 100, "<u>$\\frac{$ a\\d": 0.5, "<s>0": 0.5, "worse": float("nan")},
            {"step": 101, "bad": "word"},
        ):
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


def test_without_test_images_it_says_what_cannot_be_known(tmp_path: Path) -> None:
    dataset = some_data(test=0)
    run = made_up_run(tmp_path / "run", dataset, alone=None)
    read = Read(write_report(run, dataset).read_text())
    assert [section["id"] for section in read.all("section")] == SECTIONS
    for section in ("verdict", "calibration", "selective", "confusion", "classes", "heads"):
        assert "so its accuracy on new images is unknown" in words(read, section), section
    assert "Label these next" in words(read, "images")
    assert read_rows(run)


def test_without_a_baseline_only_the_error_is_shown(tmp_path: Path, data: Dataset) -> None:
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
