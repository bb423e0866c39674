"""A comparison: what it trains, what it keeps, what it says, and how it goes on."""

import json
import shlex
import shutil
import statistics
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP
from typing import Any

import pytest
from rich.console import Console
from scipy.stats import ttest_rel

import cotrain
from cotrain import Config, Dataset, UserError, open_data, recipe_named
from cotrain.comparison.budget import Length, read_plan
from cotrain.comparison.compare import Comparison, contenders
from cotrain.comparison.results_table import Table
from cotrain.comparison.statistics import interval, paired, spread
from cotrain.methods import METHODS
from cotrain.runs.log import read_log
from cotrain.runs.run import Run, as_typed
from cotrain.training.timing import Pace
from tests import processes
from tests.comparison.quick import command, compare, rows
from tests.few_digits import few_digits_file
from tests.processes import Signal

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "out"
    compare(out, "--methods", "mhct,fixmatch,mhct:strong_views=shared", "--seeds", "2")
    return out


def test_every_method_is_trained_on_the_same_splits(compared: Path) -> None:
    runs = {
        (name, seed): Run.open(compared / name / f"seed-{seed}")
        for name in ("mhct", "fixmatch", "mhct,strong_views=shared")
        for seed in (0, 1)
    }
    for seed in (0, 1):
        assert len({run.split.hash for (_, of), run in runs.items() if of == seed}) == 1
    assert runs["mhct", 0].split.hash != runs["mhct", 1].split.hash
    assert {run.config.optim.steps for run in runs.values()} == {10}
    assert runs["mhct,strong_views=shared", 1].config.method.strong_views == "shared"
    assert runs["mhct", 1].config.run.seed == 1
    assert not any((run.folder / "labelled_only").exists() for run in runs.values())


def test_the_table_says_what_the_runs_said(compared: Path) -> None:
    table = rows(compared)
    assert [*table] == ["mhct", "fixmatch", "mhct:strong_views=shared"]
    results = [Run.open(compared / "fixmatch" / f"seed-{seed}").result for seed in (0, 1)]
    errors = [result["test_error"] for result in results]
    assert table["fixmatch"]["test error %"] == f"{statistics.mean(errors):.2f} ± {statistics.stdev(errors):.2f}"
    assert table["fixmatch"]["n"] == "2"
    medians = statistics.mean(result["median_test_error"] for result in results)
    assert table["fixmatch"]["median of last 5 %"].startswith(f"{medians:.2f} ")
    assert table["fixmatch"]["parameters"] == f"{results[0]['parameters']:,}"
    assert table["mhct"]["against mhct"] == ""
    assert {row["optimiser"] for row in table.values()} == {"SGD 0.1"}
    assert float(table["mhct"]["step / supervised"]) > 1


def test_the_table_comes_in_four_formats(compared: Path) -> None:
    text, markdown, latex = ((compared / f"table.{ending}").read_text() for ending in ("txt", "md", "tex"))
    assert text.splitlines()[2].startswith("mhct  ")
    assert markdown.splitlines()[2].startswith("| mhct | ")
    assert len({line.count(" | ") for line in markdown.splitlines()}) == 1
    assert r"mhct:strong\_views=shared & " in latex and r"$\pm$" in latex
    assert len({line.count(" & ") for line in latex.splitlines() if line.endswith(r"\\")}) == 1


def test_the_last_errors_are_logged_and_their_median_is_kept(compared: Path) -> None:
    run = Run.open(compared / "fixmatch" / "seed-0")
    logged = {row["step"]: row["test_error"] for row in read_log(run.log_path) if "test_error" in row}
    assert [*logged] == [6, 7, 8, 9, 10]
    assert run.result["median_test_error"] == statistics.median(logged.values())
    assert logged[10] == pytest.approx(run.result["test_error"])


def test_what_is_done_is_not_done_again_and_methods_and_seeds_can_be_added(
    compared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in compared.glob("*/seed-*/result.json")}
    compare(compared, "--methods", "supervised,fixmatch", "--seeds", "3")
    out = capsys.readouterr().out
    assert "6 runs, 2 done" in out
    assert [*rows(compared)] == ["supervised", "fixmatch"]
    after = {path: path.stat().st_mtime_ns for path in compared.glob("*/seed-*/result.json")}
    assert before.items() <= after.items() and len(after) == len(before) + 4
    assert rows(compared)["fixmatch"]["n"] == "3"


def test_equal_time_gives_the_cheaper_methods_more_steps(tmp_path: Path) -> None:
    compare(tmp_path / "out", "--methods", "mhct,supervised", "--seeds", "1", "--equal", "time", "--minutes", "0.005")
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert plan["budget"] == pytest.approx(0.3)
    table = rows(tmp_path / "out")
    for name in ("mhct", "supervised"):
        steps = int(table[name]["steps"].replace(",", ""))
        assert steps == max(1, int(0.3 / plan["pace"][name]["step"]))
        assert Run.open(tmp_path / "out" / name / "seed-0").result["steps"] == steps
    assert int(table["supervised"]["steps"].replace(",", "")) > int(table["mhct"]["steps"].replace(",", ""))


@pytest.mark.system
def test_a_killed_comparison_goes_on_and_two_share_the_work(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = command(out, "--methods", "mhct,supervised", "--seeds", "2")
    assert processes.run(*words, signalled=Signal(SIGKILL, 5)).returncode == -SIGKILL
    assert any(out.glob("mhct/seed-0/checkpoint/step-*"))
    assert not list(out.glob("*/seed-*/result.json"))
    first = processes.start(*words, signalled=Signal(SIGSTOP, 5))  # which are 5 to 9
    first.wait_until((out / "mhct/seed-0/checkpoint/step-00000008.safetensors").exists)
    second = processes.run(*words)
    assert second.returncode == 0
    assert second.stdout.count("another process is training it") == 1
    assert len(list(out.glob("*/seed-*/result.json"))) == 3
    first.send(SIGCONT)
    assert first.wait().returncode == 0
    assert len(list(out.glob("*/seed-*/result.json"))) == 4
    assert as_typed(Run.open(out / "supervised" / "seed-1").command) == shlex.join(["cotrain", *words])


def test_no_cell_of_a_table_is_a_formula() -> None:
    table = Table({"method": ["=a", "b"], "error": ["-1.5", "2"], "against a": ["", "+2.00 (+1.00 to +3.00): worse"]})
    assert table.csv == "method,error,against a\n'=a,-1.5,\nb,2,'+2.00 (+1.00 to +3.00): worse\n"


def test_differences_are_paired_and_have_students_interval() -> None:
    ours = {0: 5.0, 1: 6.0, 2: 4.0, 7: 9.0}
    theirs = {0: 7.0, 1: 8.5, 2: 5.5, 8: 0.0}
    reference = ttest_rel([7.0, 8.5, 5.5], [5.0, 6.0, 4.0]).confidence_interval(0.95)
    assert interval([2.0, 2.5, 1.5], 0.95) == pytest.approx((reference.low, reference.high))
    assert paired(ours, theirs) == f"+2.00 ({reference.low:+.2f} to {reference.high:+.2f}): worse"
    assert paired(theirs, ours).endswith(": better")
    assert paired(ours, {0: 5.5}) == "+0.50, one seed"
    assert paired(ours, {0: 4.0, 1: 5.0}) == "-1.00 (-1.00 to -1.00), 2 seeds"
    assert paired(ours, {**ours, 0: 4.0}).endswith(": unclear")
    assert paired(ours, {}) == ""
    assert paired(ours, ours) == "+0.00 (+0.00 to +0.00): unclear"
    one_image_each = {0: 1.0, 1: 1.4, 2: 0.8}, {0: 0.8, 1: 1.2, 2: 0.6}
    assert paired(*one_image_each) == "-0.20 (-0.20 to -0.20): unclear"
    assert (spread([]), spread([1.0]), spread([1.0, 2.0])) == ("", "1.00", "1.50 ± 0.71")


def test_python_has_it_too(toy: Dataset, tiny: Config, tmp_path: Path) -> None:
    table = cotrain.compare(toy, out=tmp_path / "out", methods="supervised,fixmatch", seeds=1, config=tiny)
    assert list(table.columns["method"]) == ["supervised", "fixmatch"]
    assert table.text == (tmp_path / "out" / "table.txt").read_text()
    assert table.columns["against supervised"][1].endswith(", one seed")


def test_all_are_all_with_co_training_first() -> None:
    names = [contender.name for contender in contenders("all")]
    assert names[0] == "mhct" and sorted(names) == sorted(METHODS)


def test_a_run_is_as_long_as_its_steps_and_rounds_take() -> None:
    """Tri-net's thirty rounds are the same however many steps there are; LaplaceNet's come once a pass."""
    comparison = Comparison.of(
        open_data("digits"),
        Path("nowhere"),
        contenders("mhct,trinet,laplacenet"),
        seeds=1,
        settings={"optim.steps": 90},
    )
    planning, baseline = comparison.planning, Pace(0.1, 0.0)

    def length(name: str, pace: Pace, budget: float | None) -> Length:
        return planning.length(name, pace, baseline, budget)

    assert length("mhct", Pace(0.4, 0.0), None) == Length(90, pytest.approx(36), pytest.approx(4))
    assert length("mhct", Pace(0.4, 0.0), 20.1).steps == 50
    assert length("mhct", Pace(0.4, 0.0), 0.1).steps == 1
    trinet = length("trinet", Pace(0.4, 0.5), 100.0)
    assert trinet.steps == int((100 - 31 * 0.5) / 0.4) and trinet.seconds <= 100
    laplacenet = length("laplacenet", Pace(0.4, 1.0), 100.0)
    passes = sum(step * 96 // 1297 != (step - 1) * 96 // 1297 for step in range(1, laplacenet.steps))
    assert 99 < laplacenet.seconds <= 100
    assert laplacenet.seconds == pytest.approx(0.4 * laplacenet.steps + passes, abs=3)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--methods mhct,fixmach", "there is no method 'fixmach'; there are: fixmatch, "),
        ("--methods mhct:strong_vews=shared", "unknown setting method.strong_vews; did you mean method.strong_views?"),
        ("--methods fixmatch:threshold=2", "method.threshold='2'"),
        ("--methods fixmatch:heads=3", "method.heads"),
        ("--methods mhct:shared", "'shared' is not KEY=VALUE, as in mhct:heads=5"),
        ("--methods mhct,mhct", "--methods lists mhct twice"),
        ("--methods ,", "--methods is empty"),
        ("--seeds 0", "--seeds 0: use at least one seed"),
        ("--minutes 3", "--minutes needs --equal time"),
        ("--method.heads 2", "method.heads: set it for one method"),
        ("--optim.unlabelled 9999", "there are 200 unlabelled images, but each step needs 9,999"),
        ("--data.balance odd", "data.balance='odd'"),
    ],
)
def test_what_cannot_be_compared_is_one_line_before_anything_is_written(
    words: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        compare(tmp_path / "out", *words.split())
    out, errors = capsys.readouterr()
    assert (end.value.code, out, errors.count("\n")) == (2, "", 1)
    assert expected in errors
    assert not any(tmp_path.iterdir())


def test_another_protocol_in_the_same_folder_is_refused(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        compare(compared, "--methods", "mhct", "--optim.lr", "0.2")
    assert end.value.code == 2
    assert (
        "belongs to another comparison (optim.lr was 0.1 and is now 0.2); choose another --out"
        in capsys.readouterr().err
    )


def test_a_comparison_of_an_earlier_version_goes_on_where_nothing_else_differs(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had one optimiser for all methods, and neither plan nor runs said so."""
    out = tmp_path / "out"
    shutil.copytree(compared, out)
    plan = json.loads((out / "plan.json").read_text())
    del plan["protocol"]["for all methods"]
    configs = {path: json.loads(path.read_text()) for path in out.glob("*/*/config.json")}
    for settings in (plan["protocol"], *configs.values()):
        del settings["optim"]["per_method"]
    (out / "plan.json").write_text(json.dumps(plan))
    for path, config in configs.items():
        path.write_text(json.dumps(config))
    compare(out, "--methods", "mhct,fixmatch", "--seeds", "2")
    assert "4 runs, 4 done" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        compare(out, "--methods", "mhct", "--optim.per_method", "true")
    assert "optim.per_method was False and is now True" in capsys.readouterr().err


def test_a_damaged_plan_and_a_file_in_the_way_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "plan.json").write_text("{}")
    (tmp_path / "file").touch()
    for name, expected in {
        "out": "plan.json is damaged; delete it to plan again",
        "file": "choose another --out",
    }.items():
        with pytest.raises(SystemExit):
            compare(tmp_path / name, "--methods", "supervised")
        assert expected in capsys.readouterr().err


@pytest.mark.system
def test_ctrl_c_says_how_the_comparison_goes_on(tmp_path: Path) -> None:
    done = processes.run(*command(tmp_path / "out", "--methods", "supervised"), signalled=Signal(SIGINT, 5))
    assert done.returncode == 130
    assert (tmp_path / "out/supervised/seed-0/checkpoint/step-00000005.safetensors").exists()
    assert "everything is saved; resume with: the same command" in done.stderr


PLAN: dict[str, Any] = {"protocol": {"data": {}}, "budget": 60.0, "pace": {"mhct": {"step": 0.1, "refresh": 0.0}}}


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": None},
        {"protocol": {"data": []}},
        {"protocol": {"data": {"labels": "many"}}},
        {"budget": [1.0]},
        {"budget": 0.0},
        {"pace": []},
        {"pace": {"mhct": [0.1]}},
        {"pace": {"mhct": {"refresh": 0.0}}},
        {"pace": {"mhct": {"step": "0.1", "refresh": 0.0}}},
        {"pace": {"mhct": {"step": 1e-300, "refresh": 0.0}}},
        {"pace": {"mhct": {"step": 0.1, "refresh": -1.0}}},
    ],
    ids=str,
)
def test_a_plan_with_wrong_values_is_damaged(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    assert read_plan(path).pace == {"mhct": Pace(0.1, 0.0)}
    path.write_text(json.dumps(PLAN | change))
    with pytest.raises(UserError, match=f"^{path} is damaged; delete it to plan again"):
        read_plan(path)


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        compare(tmp_path / "out", "--methods", "supervised,mean_teacher:unsupervised_weight=1e30", "--seeds", "1")
    errors = capsys.readouterr().err
    assert end.value.code == 2 and errors.count("\n") == 1
    assert "1 runs failed; mean_teacher:unsupervised_weight=1e30, seed 0: the loss is NaN or infinite" in errors
    table = rows(tmp_path / "out")
    assert (table["supervised"]["n"], table["mean_teacher:unsupervised_weight=1e30"]["n"]) == ("1", "0")


def test_a_run_of_another_split_in_the_comparison_is_refused(tmp_path: Path) -> None:
    compare(tmp_path / "out", "--methods", "supervised", "--seeds", "1")
    (tmp_path / "out" / "supervised" / "seed-0").rename(tmp_path / "out" / "supervised" / "seed-1")
    (tmp_path / "out" / "supervised" / "seed-1" / "result.json").unlink()
    comparison = Comparison.of(
        open_data(str(few_digits_file())),
        tmp_path / "out",
        contenders("supervised"),
        seeds=2,
        config=recipe_named("digits"),
        settings={"data.labels": 20, "optim.steps": 10, "optim.labelled": 8, "optim.unlabelled": 16}
        | {"run.checkpoint_every": 4, "run.test_evaluations": 5, "run.report": False},
    )
    with pytest.raises(UserError, match=r"supervised/seed-1 .*: run.seed was 0 and is now 1; choose another --out"):
        comparison.train(Console(quiet=True))


@pytest.mark.system
def test_a_run_that_was_killed_before_its_page_gets_it(toy: Dataset, tiny: Config, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    def again() -> None:
        settings = {"optim.steps": 3, "run.report": True, "run.track": "tensorboard"}
        cotrain.compare(toy, out=tmp_path, methods="supervised", seeds=1, config=tiny, settings=settings)

    again()
    folder = tmp_path / "supervised" / "seed-0"
    page, result = folder / "report.html", folder / "result.json"
    trained = result.stat().st_mtime_ns
    page.unlink()
    again()
    assert page.exists()
    [figures] = folder.glob("tensorboard/*.figures")
    figures.unlink()
    again()
    assert len([*folder.glob("tensorboard/*.figures")]) == 1
    written = page.stat().st_mtime_ns
    again()
    assert (result.stat().st_mtime_ns, page.stat().st_mtime_ns) == (trained, written)
