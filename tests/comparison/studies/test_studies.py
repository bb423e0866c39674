"""The paper's studies: what is trained, what the tables say of it, and how a study goes on."""

import shlex
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.metrics import log_loss

from cotrain import Config, Dataset, UserError, from_arrays, recipe_named
from cotrain.cli.main import main
from cotrain.cli.study import study_command
from cotrain.comparison.budget import Length
from cotrain.comparison.case import CaseResult
from cotrain.comparison.studies import STUDIES, study
from cotrain.comparison.studies.cost import EFFORTS
from cotrain.comparison.study import Scale, StudyOptions
from cotrain.comparison.training_study import SIZES, Training, differences_from_paper
from cotrain.config.recipes import as_released
from cotrain.networks import build_network
from cotrain.runs.run import Run
from cotrain.runs.scores import Outputs
from cotrain.types import Unit
from tests import processes
from tests.comparison.studies.quick import done, width_of
from tests.few_digits import few_digits_file
from tests.processes import Signal

pytestmark = pytest.mark.usefixtures("known_pace")


@pytest.mark.parametrize(
    ("which", "key", "value"), [("heads", "method.heads", 3), ("structure", "model.share", "stem")]
)
def test_what_every_case_sets_cannot_be_set(which: str, key: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"study {which} varies {key} itself; leave it out"):
        study(which, settings={key: value}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.system
def test_a_killed_study_is_resumed(tmp_path: Path) -> None:
    words = ["study", "calibration", str(few_digits_file()), "--recipe", "digits", "--seeds", "1", "--labels", "20"]
    words += ["--steps", "12", "--optim.labelled", "8", "--optim.unlabelled", "16", "--run.checkpoint_every", "4"]
    words += ["--run.report", "false", "--out", str(tmp_path / "out")]
    assert processes.run(*words, signalled=Signal(SIGKILL, 12 + 5)).returncode == -SIGKILL
    assert list(tmp_path.glob("out/mhct/seed-0/checkpoint/*"))
    first = tmp_path / "out" / "fixmatch" / "seed-0" / "result.json"
    finished = first.stat().st_mtime_ns
    assert (tmp_path / "out" / "table.csv").read_text().count("\n") == 4  # what was finished by then
    again = processes.run(*words)
    assert again.returncode == 0
    assert "2 runs, 1 done" in again.stdout and "goes on" not in again.stderr
    assert first.stat().st_mtime_ns == finished
    assert (tmp_path / "out" / "table.csv").read_text().count("\n") == 7
    assert (tmp_path / "out" / "study.md").read_text().endswith(f"\n    {shlex.join(['cotrain', *words])}\n")


def test_more_heads_have_the_papers_parameters() -> None:
    config = recipe_named("cifar10")
    millions = []
    for case in STUDIES["heads"]().cases(config):
        [contender] = case.contenders
        net = build_network(contender.config(config), classes=10, channels=3)
        millions.append(sum(parameter.numel() for parameter in net.parameters()) / 1e6)
    assert millions == pytest.approx([1.468, 2.585, 3.703, 4.820, 5.938, 7.056, 8.173], abs=5e-4)


@pytest.mark.system
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
            for parameter in build_network(config.changed(case.settings), classes=10, channels=3).parameters()
        )
        for case in cases
    ]
    assert counts == sorted(counts, reverse=True) and counts[0] > 2 * counts[-1]


@pytest.mark.system
def test_structures_are_compared_with_the_papers_cut(tmp_path: Path) -> None:
    rows = done("structure", tmp_path / "out", settings={"optim.steps": 2})
    assert [*rows] == ["none", "stem", "group1", "group2", "group3"]
    assert [name for name, row in rows.items() if not row["against the paper's cut"]] == ["group2"]


@pytest.mark.system
def test_calibration_agrees_with_the_saved_scores(tmp_path: Path) -> None:
    rows = done("calibration", tmp_path / "out", settings={"optim.steps": 12})
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
        sum(parameter.numel() for parameter in build_network(config, classes=100, channels=3).parameters())
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
        CaseResult(case, by_seed, 1, Length(1, 1.0, 1.0), "probabilities", Unit.IMAGE)
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
        ("study ablation --seeds 0", "--seeds 0: use at least one seed"),
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
