"""The paper's studies: what is trained, what the tables show, and how a study is resumed."""

import csv
import io
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from scipy.special import softmax
from sklearn.metrics import log_loss

from cotrain import Config, Dataset, UserError, from_arrays, recipe_named
from cotrain.cli.main import main
from cotrain.cli.study import study_command
from cotrain.comparison.budget import Length
from cotrain.recipes import as_released
from cotrain.runs.run import Run
from cotrain.runs.scores import Outputs
from cotrain.studies import STUDIES, study
from cotrain.studies.base import Scale, StudyOptions
from cotrain.studies.case import CaseResult, result_of
from cotrain.studies.cost import EFFORTS
from cotrain.studies.training import SIZES, Training, differences_from_paper


@pytest.fixture(scope="module", autouse=True)
def impatient() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cotrain.comparison.budget.PATIENCE", 0.0)
        yield


QUICK = {
    "data.labels": 20,
    "optim.steps": 6,
    "optim.labelled": 8,
    "optim.unlabelled": 16,
    "run.report": False,
    "run.evaluate_every": 100,
}


def done(which: str, folder: Path, **changes: Any) -> dict[str, dict[str, str]]:
    """The rows of the table, by their first cell."""
    study(which, out=folder, settings=QUICK | changes.pop("settings", {}), seeds=changes.pop("seeds", 1), **changes)
    rows = csv.DictReader((folder / "table.csv").read_text().splitlines())
    return {next(iter(row.values())): row for row in rows}


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("studies") / "ablation"
    return folder, done("ablation", folder, seeds=2)


def logits_of(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / "scores.npz") as kept:
        return kept["test_logits"].astype(np.float64), kept["test_labels"]


def width_of(path: Path) -> int:
    with Image.open(path) as picture:
        return picture.size[0]


def test_the_ablation_changes_one_thing_each(ablation: tuple[Path, dict[str, dict[str, str]]]) -> None:
    folder, _ = ablation
    whole = Run.open(folder / "whole" / "seed-0")
    expected = {
        "one-head": {"method.heads": 1},
        "one-strong-view": {"method.strong_views": "shared"},
        "no-weak-view": {"method.weak_augment": False},
        "same-start": {"model.head_init": "copied"},
        "no-average": {"optim.ema": 0.0},
        "one-head-again-1": {"method.heads": 1, "run.seed": 1000},
        "one-head-again-2": {"method.heads": 1, "run.seed": 2000},
    }
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"whole", *expected}
    for name, changes in expected.items():
        run = Run.open(folder / name / "seed-0")
        assert run.config == whole.config.changed(changes)
        assert run.split.hash == whole.split.hash
    assert whole.config.method.heads == 3 and whole.config.method.strong_views == "per_head"


def test_the_ensemble_of_one_head_is_that_of_three_networks(ablation: tuple[Path, dict[str, dict[str, str]]]) -> None:
    folder, rows = ablation
    single, ensemble = [], []
    for seed in (0, 1):
        some = [
            logits_of(folder / name / f"seed-{seed}") for name in ("one-head", "one-head-again-1", "one-head-again-2")
        ]
        labels = some[0][1]
        assert all(logits.shape[0] == 1 for logits, _ in some)
        assert not np.array_equal(some[0][0], some[1][0])
        single.append(np.mean([100 * (logits[0].argmax(-1) != labels).mean() for logits, _ in some]))
        together = sum(softmax(logits[0], axis=-1) for logits, _ in some).argmax(-1)
        ensemble.append(100 * (together != labels).mean())
    row = rows["1) one head, 3 times"]
    assert row["single head %"] == f"{np.mean(single):.2f} ± {np.std(single, ddof=1):.2f}"
    assert row["ensemble %"] == f"{np.mean(ensemble):.2f} ± {np.std(ensemble, ddof=1):.2f}"
    assert (row["paper single %"], row["paper ensemble %"], row["n"]) == ("4.43", "4.23", "2")
    assert max(map(len, (folder / "table.txt").read_text().splitlines())) <= 125


def test_the_whole_has_its_runs_errors(ablation: tuple[Path, dict[str, dict[str, str]]]) -> None:
    folder, rows = ablation
    results = [Run.open(folder / "whole" / f"seed-{seed}").result for seed in (0, 1)]
    errors = [result["test_error"] for result in results if result is not None]
    heads = [np.mean(result["head_errors"]) for result in results if result is not None]
    assert rows["Multi-Head Co-Training"]["ensemble %"].startswith(f"{np.mean(errors):.2f} ")
    assert rows["Multi-Head Co-Training"]["single head %"].startswith(f"{np.mean(heads):.2f} ")
    assert rows["Multi-Head Co-Training"]["against the whole"] == ""


def test_the_figure_is_drawn_and_stands_in_the_page_of_the_study(
    ablation: tuple[Path, dict[str, dict[str, str]]],
) -> None:
    folder, rows = ablation
    picture = np.asarray(Image.open(io.BytesIO((folder / "figure.png").read_bytes())).convert("RGB"))
    assert picture.shape[1] > 900
    for colour in ((31, 111, 178), (196, 98, 10)):  # ensemble and single heads
        assert (abs(picture.astype(int) - colour).sum(-1) < 30).sum() > 100
    page = (folder / "study.md").read_text()
    assert "Differs from the paper: digits instead of cifar10; data.labels 20, not 4000; " in page
    assert "optim.steps 6, not 1048576" in page and "optim.unlabelled 16, not 448" in page and "(figure.png)" in page
    assert (folder / "table.md").read_text().rstrip() in page
    assert all(title in page for title in rows)


def test_what_is_done_is_not_done_again_and_seeds_can_be_added(
    ablation: tuple[Path, dict[str, dict[str, str]]],
) -> None:
    folder, _ = ablation
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/seed-*/result.json")}
    assert len(before) == 16
    assert done("ablation", folder, seeds=1)["5) no averaged weights"]["n"] == "1"
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/seed-*/result.json")} == before
    with pytest.raises(UserError, match=r"belongs to another comparison \(optim.lr was 0.1 and is now 0.2\)"):
        done("ablation", folder, settings={"optim.lr": 0.2})


def test_runs_of_other_settings_are_not_taken_for_these(ablation: tuple[Path, dict[str, dict[str, str]]]) -> None:
    folder, _ = ablation
    before = (folder / "table.csv").read_text()
    other = "whole/seed-0 .*: method.normaliser was 'selected' and is now 'batch'; choose another --out"
    with pytest.raises(UserError, match=other):
        done("ablation", folder, settings={"method.normaliser": "batch"})
    assert (folder / "table.csv").read_text() == before


def test_a_study_that_others_have_just_begun_has_no_table_yet(tmp_path: Path) -> None:
    training = Training.of(
        STUDIES["calibration"](), StudyOptions(None, "minutes", out=tmp_path / "out", seeds=1, settings=QUICK)
    )
    comparison = training.comparison
    comparison.plan(Console(quiet=True))
    with ExitStack() as held:
        for contender in comparison.contenders:
            config = contender.config(comparison.base)
            run = Run.create(comparison.run_folder(contender, 0), config, comparison.split(0))
            held.enter_context(run.locked())
        with pytest.raises(
            UserError, match="no case of the study is finished yet; other processes are training its runs"
        ):
            training.run(Console(quiet=True))


def test_a_folder_of_something_else_is_left_alone(
    ablation: tuple[Path, dict[str, dict[str, str]]], tmp_path: Path
) -> None:
    folder, _ = ablation
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(UserError, match=r"comparison\.of was 'ablation' and is now 'heads'"):
        done("heads", folder)
    for which in ("heads", "cost"):
        run = folder / "whole" / "seed-0"
        with pytest.raises(UserError, match="seed-0 is a run; choose another --out"):
            study(which, out=run)
        (tmp_path / "photo.png").touch()
        with pytest.raises(UserError, match=r"holds something else \(photo.png\); choose another --out"):
            study(which, out=tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert not (run / "table.txt").exists() and [path.name for path in tmp_path.iterdir()] == ["photo.png"]


@pytest.mark.parametrize(
    ("which", "key", "value"), [("heads", "method.heads", 3), ("structure", "model.share", "stem")]
)
def test_what_every_case_sets_cannot_be_set(which: str, key: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"study {which} varies {key} itself; leave it out"):
        study(which, settings={key: value}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_case_counts_when_all_its_trainings_are_done(ablation: tuple[Path, dict[str, dict[str, str]]]) -> None:
    folder, _ = ablation
    training = Training.of(STUDIES["ablation"](), StudyOptions(None, "minutes", out=folder, seeds=2, settings=QUICK))
    aside = folder / "one-head-again-2" / "seed-1" / "aside.json"
    result = aside.with_name("result.json").rename(aside)
    written = training.write(training.comparison.plan(Console(quiet=True)))
    result.rename(aside.with_name("result.json"))
    assert written is not None
    assert written.table.columns["n"] == ["2", "1", "2", "2", "2", "2"]


def test_the_legend_does_not_wait_for_the_first_case(ablation: tuple[Path, dict[str, dict[str, str]]]) -> None:
    folder, _ = ablation
    training = Training.of(STUDIES["ablation"](), StudyOptions(None, "minutes", out=folder, seeds=2, settings=QUICK))
    plan = training.comparison.plan(Console(quiet=True))
    first, *others = [result_of(case, training.comparison, plan) for case in training.cases]
    drawn = training.study.figure([replace(first, outputs={}), *others])  # matplotlib's warning would be an error
    [legend] = [axes.get_legend() for axes in drawn.canvas.axes if axes.get_legend()]
    assert [text.get_text() for text in legend.get_texts()] == ["single head", "ensemble"]


def test_a_killed_study_is_resumed(tmp_path: Path) -> None:
    words = ["study", "calibration", "--steps", "60", "--seeds", "1", "--labels", "20", "--out", str(tmp_path / "out")]
    words += [
        "--optim.labelled",
        "8",
        "--optim.unlabelled",
        "16",
        "--run.checkpoint_every",
        "10",
        "--run.report",
        "false",
    ]
    command = [sys.executable, "-m", "cotrain", *words]
    killed = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not list(tmp_path.glob("out/mhct/seed-0/checkpoint/*")):
        assert time.monotonic() < end and killed.poll() is None
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    first = tmp_path / "out" / "fixmatch" / "seed-0" / "result.json"
    finished = first.stat().st_mtime_ns
    assert (tmp_path / "out" / "table.csv").read_text().count("\n") == 4  # what was finished by then
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "2 runs, 1 done" in again.stdout and "goes on" not in again.stderr
    assert first.stat().st_mtime_ns == finished
    assert (tmp_path / "out" / "table.csv").read_text().count("\n") == 7
    assert (tmp_path / "out" / "study.md").read_text().endswith(f"\n    {shlex.join(['cotrain', *words])}\n")


def test_more_heads_have_the_papers_parameters() -> None:
    config = recipe_named("cifar10")
    millions = []
    for case in STUDIES["heads"]().cases(config):
        [contender] = case.contenders
        net = contender.config(config).build_network(classes=10, channels=3)
        millions.append(sum(parameter.numel() for parameter in net.parameters()) / 1e6)
    assert millions == pytest.approx([1.468, 2.585, 3.703, 4.820, 5.938, 7.056, 8.173], abs=5e-4)


def test_heads_are_counted_and_drawn(tmp_path: Path) -> None:
    rows = done("heads", tmp_path / "out", settings={"optim.steps": 2})
    assert [*rows] == ["1", "2", "3", "4", "5", "6", "7"]
    assert [rows[heads]["paper"] for heads in ("1", "2", "3")] == ["4.43", "drawn only", "3.84"]
    for heads in ("1", "7"):
        run = Run.open(tmp_path / "out" / f"heads-{heads}" / "seed-0")
        assert run.config.method.heads == int(heads)
        assert run.result is not None and rows[heads]["parameters"] == f"{run.result['parameters']:,}"
    assert rows["1"]["ensemble %"] == rows["1"]["single head %"]
    assert width_of(tmp_path / "out" / "figure.png") > 700


@pytest.mark.parametrize(
    ("backbone", "cuts", "papers"),
    [
        ("wrn-28-2", ["none", "stem", "group1", "group2", "group3"], "group2"),
        ("resnet18", ["none", "stem", "layer1", "layer2", "layer3", "layer4"], "layer3"),
    ],
)
def test_the_trunk_ends_at_every_stage(backbone: str, cuts: list[str], papers: str) -> None:
    config = recipe_named("cifar10").changed({"model.backbone": backbone})
    cases = STUDIES["structure"]().cases(config)
    assert [case.title for case in cases] == cuts
    assert [case.title for case in cases if case.paper is not None] == [papers]
    assert [case.title for case in cases if case.reference] == [papers]
    counts = [
        sum(
            parameter.numel()
            for parameter in config.changed(case.settings).build_network(classes=10, channels=3).parameters()
        )
        for case in cases
    ]
    assert counts == sorted(counts, reverse=True) and counts[0] > 2 * counts[-1]


def test_structures_are_compared_with_the_papers_cut(tmp_path: Path) -> None:
    rows = done("structure", tmp_path / "out", settings={"optim.steps": 2})
    assert [*rows] == ["none", "stem", "group1", "group2", "group3"]
    assert [name for name, row in rows.items() if not row["against the paper's cut"]] == ["group2"]


def test_calibration_agrees_with_the_saved_scores(tmp_path: Path) -> None:
    rows = done("calibration", tmp_path / "out", settings={"optim.steps": 30})
    assert [*rows] == [
        *("FixMatch", "FixMatch, T = 2", "FixMatch, T fitted"),
        *("co-training", "co-training, T = 2", "co-training, T fitted"),
    ]
    assert [row["paper ECE"] for row in rows.values()] == ["15.61", "5.27", "", "below 15.61", "2.82", ""]
    run = Run.open(tmp_path / "out" / "mhct" / "seed-0")
    assert run.split.valid and run.result is not None
    assert rows["co-training"]["ECE %"] == f"{run.result['ece']:.2f}"
    with np.load(run.scores_path) as kept:
        logits, labels, valid = kept["test_logits"], kept["test_labels"], (kept["valid_logits"], kept["valid_labels"])

    def nll(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
        probabilities = softmax(logits.astype(np.float64) / temperature, axis=-1).mean(axis=0)
        return log_loss(labels, probabilities.clip(1e-12), labels=range(10))

    assert float(rows["co-training"]["NLL"]) == pytest.approx(nll(logits, labels, 1.0), abs=6e-3)
    assert float(rows["co-training, T = 2"]["NLL"]) == pytest.approx(nll(logits, labels, 2.0), abs=6e-3)
    fitted = float(rows["co-training, T fitted"]["temperature"])
    others = (max(1.0, 0.8 * fitted), min(20.0, 1.25 * fitted))
    assert nll(*valid, fitted) <= min(nll(*valid, other) for other in others) + 1e-3


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_fixmatch_is_calibrated_with_the_same_setting_and_its_own_network(preset: str) -> None:
    """The paper narrows the last stage of WRN-28-8 in co-training only; 23.4 M is its count of the whole network."""
    base = recipe_named("cifar100").changed({"method.unsupervised_ramp": 0.8})
    base = as_released(base) if preset == "code" else base
    fixmatch, ours = (case.contenders[0].config(base) for case in STUDIES["calibration"]().cases(base))
    assert (fixmatch.method.name, ours) == ("fixmatch", base)
    for setting in ("unsupervised_ramp", "weak_pass"):
        assert getattr(fixmatch.method, setting) == getattr(ours.method, setting)
    assert fixmatch.model_copy(update={"method": ours.method, "optim": ours.optim}) == ours
    assert fixmatch.optim.lr == 0.03
    counts = [
        sum(parameter.numel() for parameter in config.build_network(classes=100, channels=3).parameters())
        for config in (fixmatch, ours)
    ]
    assert counts[0] == 23_401_012 and counts[1] == pytest.approx(19.96e6, abs=5e3)


def test_the_diagrams_of_the_first_seed_take_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    by_seed = {
        seed: {
            part: Outputs(torch.randn(1, 40, 3, generator=rng), torch.arange(40) % 3, np.arange(40))
            for part in ("test", "valid")
        }
        for seed in range(3)
    }
    found = [
        CaseResult(case, by_seed, 1, Length(1, 1.0, 1.0), "probabilities")
        for case in STUDIES["calibration"]().cases(recipe_named("small32"))
    ]
    fitted: list[torch.Tensor] = []
    monkeypatch.setattr(
        "cotrain.evaluation.calibration.fit_temperature", lambda logits, *rest: fitted.append(logits) or 3.0
    )
    figure = STUDIES["calibration"]().figure(found)
    assert [logits is by_seed[0]["valid"].logits for logits in fitted] == [True, True]
    assert [f"{title}: ECE" in figure.alt for title in ("FixMatch, T fitted", "co-training, T = 2")] == [True, True]


def test_the_published_scale_is_the_papers(toy: Dataset, tmp_path: Path) -> None:
    classes = np.arange(600) % 10
    cifar = replace(
        from_arrays(
            np.zeros((600, 32, 32, 3), np.uint8), classes, test=(np.zeros((10, 32, 32, 3), np.uint8), classes[:10])
        ),
        source="cifar10",
    )
    few = {"data.labels": 100}
    training = Training.of(STUDIES["ablation"](), StudyOptions(cifar, "published", out=tmp_path / "out", settings=few))
    base = training.comparison.base
    assert base == recipe_named("cifar10").changed({"run.baseline": False, **few})
    assert len(training.comparison.seeds) == 5
    assert differences_from_paper(training.study, cifar, base) == "differs from the paper: data.labels 100, not 4000"
    assert differences_from_paper(training.study, cifar, recipe_named("cifar10")) == "as in the paper"
    released = differences_from_paper(training.study, cifar, as_released(recipe_named("cifar10")))
    assert "method.normaliser batch, not selected" in released
    assert released.endswith("; run.ensemble logits, not probabilities")
    hours = Training.of(STUDIES["ablation"](), StudyOptions(cifar, "hours", out=tmp_path / "out", settings=few))
    assert hours.comparison.base.optim == recipe_named("small32").optim
    minutes = Training.of(STUDIES["ablation"](), StudyOptions(cifar, "minutes", out=tmp_path / "out", settings=few))
    assert minutes.comparison.base.optim.steps == 250 and not (tmp_path / "out").exists()


def test_a_setting_of_one_method_is_said_of_that_method(toy: Dataset) -> None:
    data, paper, calibration = replace(toy, source="cifar100"), recipe_named("cifar100"), STUDIES["calibration"]()
    ramp = paper.changed({"method.unsupervised_ramp": 0.8})
    assert differences_from_paper(calibration, data, paper) == "as in the paper"
    assert (
        differences_from_paper(calibration, data, ramp)
        == "differs from the paper: method.unsupervised_ramp 0.8, not 0.0"
    )  # both have it
    ours = paper.changed({"method.unsupervised_weight": 2, "optim.lr": 0.1})
    weight = "method.unsupervised_weight 2.0, not 1.0 (mhct)"
    assert (
        differences_from_paper(calibration, data, ours)
        == f"differs from the paper: {weight}; optim.lr 0.1, not 0.3 (mhct)"
    )
    for_both = differences_from_paper(calibration, data, ours, {"optim.lr": 0.1})
    assert "optim.lr 0.1, not 0.03 (fixmatch); " in for_both and for_both.endswith("optim.lr 0.1, not 0.3 (mhct)")
    theirs = paper.changed({"method": "fixmatch", "method.threshold": 0.5})
    assert (
        differences_from_paper(calibration, data, theirs)
        == "differs from the paper: method.threshold 0.5, not 0.95 (fixmatch)"
    )


def test_what_a_study_varies_is_no_difference(toy: Dataset) -> None:
    data, paper = replace(toy, source="cifar10"), recipe_named("cifar10")
    assert differences_from_paper(STUDIES["heads"](), data, paper.changed({"method.heads": 5})) == "as in the paper"
    assert differences_from_paper(STUDIES["structure"](), data, paper.changed({"model.backbone": "resnet18"})) == (
        "differs from the paper: model.backbone resnet18, not wrn-28-2"
    )


def test_the_command_line_has_every_study_and_scale() -> None:
    known = get_type_hints(study_command)
    assert [*STUDIES] == ["ablation", "calibration", "cost", "heads", "structure"]
    assert get_args(known["scale"]) == get_args(Scale) == (*SIZES,) == (*EFFORTS,)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("study cost digits", "study cost times steps on made-up images: it takes no data, seeds, memory or recipe"),
        ("study cost --memory 1", "it takes no data, seeds, memory or recipe"),
        ("study cost --steps 5 --optim.lr 0.1", "study cost takes no optim.steps: it times the steps of one network"),
        ("study cost --labels 40 --seed 1", "study cost takes no data.labels, run.seed: "),
        ("study cost --method.heads 5", "study cost takes no method.heads: "),
        ("study cost --set method=fixmatch", "study cost takes no method: "),
        ("study cost --run.report false", "study cost takes no run.report: "),
        ("study cost --optim.labeled 5", "unknown setting optim.labeled; did you mean optim.labelled?"),
        ("study ablation --seeds 0", "--seeds 0: there must be one at least"),
        ("study ablation nowhere", "nowhere does not exist"),
        ("study ablation digits --data.test_share 0 --optim.lr -1", "optim.lr='-1': input should be greater than 0"),
        ("study heads --labels 5", "data.labels=5 is fewer than the 10 classes of digits"),
        ("study structure --model.backbone wrn-11-1", "wrn-11-1: the depth must be 6n + 4"),
        ("study sharpness", "there is no study 'sharpness'; there are: ablation, calibration, cost, heads, structure"),
    ],
)
def test_bad_input_is_one_line(
    words: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert expected in printed and printed.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_data_without_test_labels_cannot_be_studied(tiny: Config, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (40, 8, 8)).astype(np.uint8), np.arange(40) % 2
    with pytest.raises(UserError, match=r"no labelled test images; a study needs some: set data\.test_share above 0"):
        study(
            "ablation", from_arrays(images, labels), out=tmp_path / "out", config=tiny, settings={"data.test_share": 0}
        )
    assert not (tmp_path / "out").exists()


def test_there_is_no_such_study() -> None:
    with pytest.raises(
        UserError, match="no study 'sharpness'; there are: ablation, calibration, cost, heads, structure"
    ):
        study("sharpness")
