"""The ablation: what is trained, what its table says of it, and how it goes on."""

import io
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from scipy.special import softmax

from cotrain import UserError
from cotrain.comparison.case import result_of
from cotrain.comparison.studies import STUDIES, study
from cotrain.comparison.study import StudyOptions
from cotrain.comparison.training_study import Training
from cotrain.runs.run import Run
from tests.comparison.studies.quick import QUICK, done, logits_of
from tests.few_digits import few_digits

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("known_pace")]


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("studies") / "ablation"
    return folder, done("ablation", folder, seeds=2)


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
    assert "optim.steps 3, not 1048576" in page and "optim.unlabelled 16, not 448" in page and "(figure.png)" in page
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
        STUDIES["calibration"](), StudyOptions(few_digits(), "minutes", out=tmp_path / "out", seeds=1, settings=QUICK)
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


def test_a_case_counts_when_all_its_trainings_are_done(ablation: tuple[Path, dict[str, dict[str, str]]]) -> None:
    folder, _ = ablation
    training = Training.of(
        STUDIES["ablation"](), StudyOptions(few_digits(), "minutes", out=folder, seeds=2, settings=QUICK)
    )
    aside = folder / "one-head-again-2" / "seed-1" / "aside.json"
    result = aside.with_name("result.json").rename(aside)
    written = training.write(training.comparison.plan(Console(quiet=True)))
    result.rename(aside.with_name("result.json"))
    assert written is not None
    assert written.table.columns["n"] == ["2", "1", "2", "2", "2", "2"]


def test_the_legend_does_not_wait_for_the_first_case(ablation: tuple[Path, dict[str, dict[str, str]]]) -> None:
    folder, _ = ablation
    training = Training.of(
        STUDIES["ablation"](), StudyOptions(few_digits(), "minutes", out=folder, seeds=2, settings=QUICK)
    )
    plan = training.comparison.plan(Console(quiet=True))
    first, *others = [result_of(case, training.comparison, plan) for case in training.cases]
    drawn = training.study.figure([replace(first, outputs={}), *others])  # matplotlib's warning would be an error
    [legend] = [axes.get_legend() for axes in drawn.canvas.axes if axes.get_legend()]
    assert [text.get_text() for text in legend.get_texts()] == ["single head", "ensemble"]


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
        with pytest.raises(UserError, match=r"contains other files \(photo.png\); choose another --out"):
            study(which, out=tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert not (run / "table.txt").exists() and [path.name for path in tmp_path.iterdir()] == ["photo.png"]
