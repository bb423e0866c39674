"""Which optimiser each method of a comparison has, and that different rules are not mixed."""

from pathlib import Path

import pytest

import cotrain
from cotrain import Config, Dataset, open_data, recipe_named
from cotrain.comparison.budget import Length
from cotrain.comparison.compare import Comparison, Contender, contenders
from cotrain.runs.run import Run
from tests.comparison.quick import compare, rows

pytestmark = pytest.mark.usefixtures("impatient")


def test_a_recipes_method_settings_hold_for_that_method_and_its_variants() -> None:
    comparison = Comparison.of(
        open_data("digits"), Path("nowhere"), contenders("mhct,fixmatch"), seeds=1, settings={"optim.lr": 0.05}
    )
    ours = Contender.parse("mhct").config(comparison.base.changed({"method.unsupervised_ramp": 0.3}))
    other = Contender.parse("fixmatch").config(comparison.base.changed({"method.unsupervised_ramp": 0.3}))
    assert (ours.method.unsupervised_ramp, other.method.unsupervised_ramp) == (0.3, 0.0)
    for variant in ("mhct_routed", "three_models"):
        config = Contender.parse(variant).config(comparison.base.changed({"method.unsupervised_ramp": 0.3}))
        assert (config.method.name, config.method.unsupervised_ramp) == (variant, 0.3)
    assert Contender.parse("mhct_routed").config(comparison.base).method.strong_views == "shared"
    assert other.optim.lr == 0.05


PUBLISHED = {"data.labels": 20, "optim.steps": 10, "optim.labelled": 8, "optim.unlabelled": 16} | {
    "model.backbone": "wrn-10-1",
    "model.bn_momentum": 0.01,
    "run.report": False,
    "run.checkpoint_every": 10,
}


def published(out: Path, **more: object) -> Comparison:
    settings = {**PUBLISHED, **more.pop("settings", {})}
    methods = contenders("mhct,fixmatch,vat,three_models")
    return Comparison.of(
        open_data("digits"), out, methods, seeds=1, config=recipe_named("cifar100"), settings=settings, **more
    )


def test_published_recipes_compare_each_method_with_its_own_optimiser(tmp_path: Path) -> None:
    comparison = published(tmp_path)
    kinds = {name: config.optim for name, config in comparison.planning.configs.items()}
    assert {name: optim.summary for name, optim in kinds.items()} == {
        "mhct": "SGD 0.3",
        "fixmatch": "SGD 0.03",
        "vat": "Adam 0.002",
        "three_models": "SGD 0.3",
        "supervised": "SGD 0.03",
    }
    assert {name: optim.weight_decay for name, optim in kinds.items()} == dict.fromkeys(kinds, 0.001) | {"vat": 0.02}
    assert {config.optim.steps for config in comparison.configs.values()} == {10}
    lengths = dict.fromkeys(kinds, Length(10, 1.0, 1.0))
    assert comparison.table(lengths).columns["optimiser"] == ["SGD 0.3", "SGD 0.03", "Adam 0.002", "SGD 0.3"]


def test_an_optimiser_setting_that_is_asked_for_is_that_of_all_methods(tmp_path: Path) -> None:
    configs = published(tmp_path, settings={"optim.lr": "0.05"}).planning.configs
    assert {config.optim.lr for config in configs.values()} == {0.05}
    assert {name: config.optim.kind for name, config in configs.items()} == dict.fromkeys(configs, "sgd") | {
        "vat": "adam"
    }


def test_comparisons_with_other_rules_for_the_optimiser_are_not_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the settings of the recipe's own method are the same."""
    words = ["--methods", "supervised", "--seeds", "1", "--model.backbone", "wrn-10-1"]
    compare(tmp_path / "out", *words, recipe="cifar10")
    assert rows(tmp_path / "out")["supervised"]["optimiser"] == "SGD 0.03"
    for more, difference in {
        "--same-optimiser": "optim.per_method was True and is now False",
        "--optim.lr 0.3": "for all methods.optim.lr was None and is now 0.3",
    }.items():
        with pytest.raises(SystemExit):
            compare(tmp_path / "out", *words, *more.split(), recipe="cifar10")
        assert f"belongs to another comparison ({difference}); choose another --out" in capsys.readouterr().err
    compare(tmp_path / "same", *words, "--same-optimiser", recipe="cifar10")
    assert rows(tmp_path / "same")["supervised"]["optimiser"] == "SGD 0.3"
    for ending in ("txt", "md", "tex"):
        assert "SGD 0.3" in (tmp_path / "same" / f"table.{ending}").read_text()


def test_python_can_compare_with_the_same_optimiser(toy: Dataset, tiny: Config, tmp_path: Path) -> None:
    config, words = tiny.changed({"optim.per_method": True, "optim.steps": 2}), {"methods": "vat", "seeds": 1}
    own = cotrain.compare(toy, out=tmp_path / "own", config=config, **words)
    same = cotrain.compare(toy, out=tmp_path / "same", config=config, same_optimiser=True, **words)
    assert (own.columns["optimiser"], same.columns["optimiser"]) == (["Adam 0.002"], ["SGD 0.1"])
    assert Run.open(tmp_path / "own" / "vat" / "seed-0").config.optim.kind == "adam"
