"""Settings are frozen and strict, and an error names the key and what there is."""

import json

import pytest
from pydantic import ValidationError

from cotrain import Config, UserError, recipe_named
from cotrain.augment import PRESETS
from cotrain.config import differences, settings_of
from cotrain.config.recipes import RECIPES, as_released
from cotrain.methods import METHODS
from cotrain.runs.upgrade import read_config
from tests.processes import here


def test_every_recipe_survives_json() -> None:
    for name in RECIPES:
        config = recipe_named(name)
        assert Config.parse(json.loads(json.dumps(config.model_dump()))) == config


def test_settings_cannot_be_written_to() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().optim.lr = 1.0
    with pytest.raises(ValidationError, match="frozen"):
        Config().method.heads = 7


def test_changes_take_text_as_the_command_line_gives_it() -> None:
    config = Config().changed(
        {
            "optim.lr": "1e-3",
            "optim.ema_warmup": "true",
            "method.heads": "5",
            "data.labels": "none",
            "augment.cutout": "none",
        }
    )
    assert (config.optim.lr, config.optim.ema_warmup, config.method.heads) == (1e-3, True, 5)
    assert config.data.labels is None
    assert config.augment.cutout == "none"
    assert Config().changed({"model.share": "none"}).model.share == "none"


def test_a_whole_section_can_be_named_before_its_keys() -> None:
    config = Config().changed(
        {"augment.flip": "false", "augment": "fixmatch", "method": "supervised", "method.heads": 2}
    )
    assert config.augment == PRESETS["fixmatch"].model_copy(update={"flip": False})
    assert config.method == METHODS["supervised"](heads=2)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("optim.lrr", 1, r"unknown setting optim.lrr; did you mean optim.lr\? optim has: steps, labelled"),
        ("lr", 1, "unknown setting lr; did you mean optim.lr"),
        ("nothing.at_all", 1, "unknown setting nothing.at_all; the sections are: data, augment"),
        ("optim", 1, "unknown setting optim"),
        ("method.weak_pas", "joint", "did you mean method.weak_pass"),
        ("method.weak_pass", "both", "method.weak_pass='both': input should be 'joint' or 'separate'"),
        ("method", "mhtc", "there is no method 'mhtc'; there are: mhct, "),
        ("augment", "strong", "augment='strong' is not one of: paper, code, fixmatch"),
        ("augment.crop", "a lot", "augment.crop='a lot': input should be a valid number"),
        ("optim.steps", "10.5", "optim.steps='10.5'"),
        ("optim.lr", "nan", "optim.lr='nan': input should be a finite number"),
        ("optim.lr", "-1", "optim.lr='-1': input should be greater than 0"),
    ],
)
def test_bad_settings_are_one_line_that_names_the_key(key: str, value: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Config().changed({key: value})
    assert "\n" not in str(caught.value)


def test_published_rows_carry_the_appendix_numbers() -> None:
    columns = {
        "cifar10": (64, 448, 2**20, 1, 0.3, 0.9, 0.0005),
        "svhn": (64, 448, 2**20, 1, 0.3, 0.9, 0.0005),
        "cifar100": (64, 448, 2**19, 1, 0.3, 0.9, 0.001),
        "miniimagenet": (64, 192, 300_000, 1, 0.4, 0.95, 0.0002),
    }
    for name, expected in columns.items():
        config = recipe_named(name)
        optim = config.optim
        weight = config.method.unsupervised_weight
        row = (optim.labelled, config.unlabelled, optim.steps, weight, optim.lr, optim.momentum, optim.weight_decay)
        assert row == expected
        assert config.method.heads == 3
    assert not recipe_named("svhn").augment.flip


def test_the_released_code_differs_in_what_is_listed() -> None:
    config = recipe_named("svhn")
    changed = {phrase.split()[0] for phrase in differences(config.model_dump(), as_released(config).model_dump())}
    assert changed == {
        "augment.order",
        "augment.pad",
        "augment.cutout",
        "method.normaliser",
        "method.reduction",
        "method.weak_pass",
        "optim.lr",
        "run.ensemble",
    }


def test_every_setting_says_what_it_means() -> None:
    for key, _, choices, meaning, _ in settings_of(Config()):
        assert meaning and choices, key


def test_every_recipe_gives_its_command_and_cost() -> None:
    for name, recipe in RECIPES.items():
        assert recipe.summary.startswith("cotrain fit "), name
        assert "%" in recipe.summary, name


def test_differences_name_the_key_and_both_values() -> None:
    before, after = Config().model_dump(), Config().changed({"optim.lr": 0.1}).model_dump()
    assert differences(before, after) == ["optim.lr was 0.3 and is now 0.1"]
    assert differences(before, before) == []


def test_naming_the_method_that_is_there_changes_nothing() -> None:
    config = as_released(recipe_named("digits"))
    assert config.changed({"method": "mhct"}) == config


def test_the_order_of_changes_of_the_method_does_not_matter() -> None:
    """What a paper's optimiser replaced comes back, also a weight decay that only Adam's methods replace."""
    for recipe in RECIPES:
        config = recipe_named(recipe)
        for first in ("vat", "fixmatch", "temporal_ensembling"):
            other = config.changed({"method": first})
            assert other.changed({"method": "mhct"}).optim == config.optim
            assert other.changed({"method": "fixmatch"}) == config.changed({"method": "fixmatch"})


def test_optimiser_settings_that_are_asked_for_win_over_the_papers() -> None:
    config = recipe_named("cifar100").changed({"optim.lr": "0.05", "method": "vat"})
    assert (config.optim.kind, config.optim.lr, config.optim.weight_decay) == ("adam", 0.05, 0.02)
    back = config.changed({"method": "mhct"})
    assert (back.optim.kind, back.optim.lr, back.optim.weight_decay) == ("sgd", 0.05, 0.001)


@pytest.mark.parametrize("off", [False, "false"])
def test_all_methods_can_have_the_recipes_optimiser(off: object) -> None:
    config = recipe_named("cifar10").changed({"method": "vat", "optim.per_method": off})
    assert config.optim == recipe_named("cifar10").changed({"optim.per_method": False}).optim
    assert config.optim.summary == "SGD 0.3"


def test_a_short_recipe_can_have_the_papers_optimisers() -> None:
    config = recipe_named("digits").changed({"optim.per_method": "true", "method": "ict"})
    assert (config.optim.summary, config.optim.steps) == ("Adam 0.002", 900)


def test_settings_of_an_earlier_version_are_read_as_they_were_meant() -> None:
    """Then all methods had the recipe's optimiser, and a config did not say so."""
    old = recipe_named("cifar10").changed({"optim.per_method": False, "method": "fixmatch"}).model_dump()
    del old["optim"]["per_method"]
    config = Config.parse(old)
    assert (config.optim.lr, config.optim.per_method) == (0.3, False)
    assert config.changed({"method": "vat"}).optim == config.optim


def test_help_leaves_out_the_advanced_settings_and_describe_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [*settings_of(Config())]
    assert {"augment.pad", "optim.momentum", "run.batchnorm"} <= {each.key for each in settings if each.advanced}
    shown = {words: here(capsys, *words).stdout for words in (("fit", "--help"), ("describe", "small32"))}
    for each in settings:
        listed = [f"--{each.key} " in text for text in shown.values()]
        assert listed == ([False, True] if each.advanced else [True, True]), each.key


def test_settings_that_became_constants_are_read_from_older_runs() -> None:
    values = Config().model_dump()
    older = {**values, "bank": {**values["bank"], "seed": 0}, "run": {**values["run"], "channels_last": True}}
    older["optim"] = {**values["optim"], "replaced": {"lr": 0.1}}
    assert read_config(older, "config.json") == Config()
    with pytest.raises(UserError, match=r"bank\.seed"):
        read_config({**older, "bank": {**values["bank"], "seed": 3}}, "config.json")
