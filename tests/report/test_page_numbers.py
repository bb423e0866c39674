"""The numbers on the page of a run are those of its scores, its log and `predict`."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

import cotrain
from cotrain import Dataset, methods
from cotrain.cli.main import main
from cotrain.evaluation.calibration import fit_temperature
from cotrain.inference.prediction_table import rows_of
from cotrain.inference.streaming import RECORD, Predicted
from cotrain.report.curves import SHARES
from cotrain.report.page import Subject, page, pictures, show, write_report
from cotrain.runs.run import Run
from cotrain.runs.scores import read_outputs
from tests.made_up import made_up_run, rewritten, some_data, some_logits, with_result
from tests.report.reading import Read, copy_of, shown, table_of, words

pytestmark = pytest.mark.usefixtures("unrendered")  # test_page.py and test_browser.py have the figures


def test_made_up_heads_know_what_they_are_said_to(data: Dataset) -> None:
    labels = data.labels[data.test]
    sure = some_logits(labels, 3, 1.0).mean(0).argmax(-1)
    assert (sure == labels).float().mean() > 0.9


def test_the_budget_of_the_labelled_only_network_is_said(run: Run, tmp_path: Path) -> None:
    copy = copy_of(run, tmp_path / "run")
    assert "trained for the same 100 steps, not for the same time" in words(shown(copy), "verdict")
    assert "for the baseline (the same network on labelled images only)" in words(shown(copy), "verdict")
    log = [{"step": 50, "seconds": 2.0}, {"step": 100, "seconds": 4.0}, {"step": 100, "unlabelled_error": 40.0}]
    copy.baseline_folder.joinpath("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    assert "the same 100 steps (0:04 for the baseline, 0:11 for this run), not" in words(shown(copy), "verdict")
    with_result(copy, labelled_only_seconds=7.0)
    assert "the same 100 steps (0:07 for the baseline, 0:11 for this run), not" in words(shown(copy), "verdict")


def test_a_longer_baseline_that_the_run_starts_from_is_said(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", some_data(test=60), changes={"run.baseline_factor": 4, "run.warm_start": True})
    with_result(run, labelled_only_seconds=7.0)
    said = words(shown(run), "verdict")
    assert "The baseline was trained for 400 steps and this run for 100 (0:07 for the baseline, 0:11 for" in said
    assert "This run starts from the baseline's weights, so part of the difference may come from longer" in said
    assert "same 100 steps" not in said


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_table_of_answers_is_what_predict_would_do(share: float, tmp_path: Path) -> None:
    data = some_data(test=60)
    run = made_up_run(tmp_path / "run", data, changes={"data.valid_share": share})
    parts = read_outputs(run.scores_path)
    temperature = fit_temperature(parts["valid"].logits, parts["valid"].labels, "probabilities") if share else 1.0
    text = page([show(Subject(run, None))])
    said = words(Read(text), "selective")
    assert (
        (f"fitted on {len(run.split.valid)} validation images (T = {temperature:.2f})" in said)
        == (share > 0)
        == ("uncalibrated (T = 1)" not in said)
    )
    heads, *rows = table_of(text, "answered")
    assert heads == ["probability at least", "answered", "wrong", "error", "upper bound"]
    labels = parts["test"].labels
    probabilities = (parts["test"].logits.double() / temperature).softmax(-1).mean(0)
    sure, guess = probabilities.max(-1)
    predicted = Predicted(np.array([(0, 3, p, np.nan) for p in sure.tolist()], RECORD), {})
    assert [row[0] for row in rows].count("any") == 1 and len(rows) == 5
    for probability, of_all, wrong, error, most in rows:
        below = 0.0 if probability == "any" else float(probability)
        table = rows_of([str(row) for row in range(60)], predicted, ["any"], below)
        kept = [int(row["path"]) for row in table if row["defer"] == "no"]
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
        rewritten(run, {**of_before, **stored})
        read = shown(run)
        selective = words(read, "selective")
        images, calibration = f"fitted on {len(run.split.valid)} validation images", words(read, "calibration")
        assert f"those of predict : with the temperature {images} ({said})" in selective
        assert f"Fitted temperature, {said}: ECE" in calibration
        assert f"The temperature was {images}. " in calibration
        assert "images measured here" not in calibration
        assert said == f"T = {cotrain.load(run.folder).temperature}"
    rewritten(run, of_before)
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
    assert "Each head's error on validation images" in words(read, "learning")
    assert any(
        one.startswith("Line chart of error (%) over 100 steps. validation ends at 10; unlabelled") for one in drawn
    )


def test_votes_without_known_labels(run: Run, tmp_path: Path) -> None:
    copy = copy_of(run, tmp_path / "run")
    copy.log_path.write_text('{"step": 100, "heads_disagree": 4.0, "vote_selected": 70.0}\n')
    read = shown(copy)
    assert "a pseudo-label for 70.0 % of the unlabelled images, and for" in words(read, "heads")
    assert "How many of these labels are right is unknown" in words(read, "learning")
    copy.log_path.write_text(copy.log_path.read_text() + '{"step": 100, "valid_error": 9.0, "vote_right": 88.0}\n')
    read = shown(copy)
    assert "a pseudo-label for 70.0 % of the unlabelled images, and for" in words(read, "heads")
    assert "How many are right was measured on validation images" in words(read, "learning")


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
    assert "is unknown without true labels" not in words(read, "learning")


def test_votes_that_select_nothing_are_not_of_unknown_labels(run: Run, tmp_path: Path) -> None:
    copy = copy_of(run, tmp_path / "run")
    row = {"step": 100, "unlabelled_error": 66.0, "heads_disagree": 99.0, "vote_selected": 0.0, "head_1_error": 70.0}
    copy.log_path.write_text(json.dumps(row) + "\n")
    read = shown(copy)
    assert "labels only the evaluation uses" in words(read, "learning")
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
        return float(re.search(r"uncalibrated 1\.00 \S+ % \S+ % (\S+) %", words(read, "calibration"))[1])

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


def test_pictures_and_rows_have_the_probability_that_predict_has(tmp_path: Path) -> None:
    data = some_data(test=60)
    run = made_up_run(tmp_path / "run", data, changes={"data.valid_share": 0.3}, result={"temperature": 3.0})
    test, words_of = read_outputs(run.scores_path)["test"], []
    text = page([show(Subject(run, data))])
    said = cotrain.load(run.folder).predict(data.images[np.asarray(run.split.unlabelled)])
    confidence = dict(zip(run.split.unlabelled, said.probabilities.max(axis=1), strict=True))
    write_report(run, data)
    rows = [*csv.DictReader((run.folder / "label_next.csv").read_text().splitlines())]
    assert len(rows) > 5
    for row in rows:
        assert float(row["probability"]) == pytest.approx(confidence[int(row["row"])], abs=1e-6)
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
