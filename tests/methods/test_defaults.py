"""Every default constant of every method, as its paper or released code has it, written down apart from the code.

The optimiser settings are those that a method gets under the published recipes. Where a default is ours or was changed
on purpose, its docs page says so; a constant that changes by accident must fail here.
"""

from pathlib import Path
from typing import Any

import pytest

from cotrain import recipe_named
from cotrain.config import OptimSettings
from cotrain.methods import METHODS

FIXMATCH = {"lr": 0.03, "momentum": 0.9}  # SGD of the FixMatch paper; the weight decay is the data set's
GOOGLE_ADAM = {"kind": "adam", "lr": 0.002, "momentum": 0.9, "weight_decay": 0.02}  # FixMatch's vat.py and ict.py
CO_TRAINING = {
    "heads": 3,
    "unsupervised_weight": 1.0,
    "unsupervised_ramp": 0.0,
    "weak_augment": True,
    "normaliser": "selected",
    "reduction": "mean",
    "threshold": 0.95,  # whenever one head does the labelling
    "weak_pass": "separate",
}
ONE_NETWORK = {"heads": 1, "unsupervised_weight": 1.0, "unsupervised_ramp": 0.0}
RISING = {**ONE_NETWORK, "unsupervised_ramp": 0.4}  # Google's warm-up of 0.4 of the steps

DEFAULTS: dict[str, dict[str, Any]] = {
    "mhct": CO_TRAINING,
    "mhct_routed": CO_TRAINING,
    "mhct_graph": {**CO_TRAINING, "graph_weight": 0.5, "neighbours": 10, "reach": 0.9, "rounds": 3},
    "three_models": CO_TRAINING,
    "supervised": ONE_NETWORK,
    "pi_model": {**RISING, "unsupervised_weight": 10.0},
    "pseudo_label": {**RISING, "threshold": 0.95, "mask": "example"},
    "mean_teacher": {**RISING, "unsupervised_weight": 50.0},
    "vat": {
        **RISING,
        "unsupervised_weight": 0.3,
        "entropy_weight": 0.06,
        "epsilon": 12.0,  # 6 for pixels in [-1, 1]
        "xi": 1e-3,
        "kl": "paper",
    },
    "ict": {**RISING, "unsupervised_weight": 100.0, "alpha": 0.75, "mix": "probabilities"},
    "mixmatch": {
        **ONE_NETWORK,
        "unsupervised_weight": 100.0,
        "unsupervised_ramp": 16384 / 2**20,
        "temperature": 0.5,
        "alpha": 0.5,
    },
    "remixmatch": {
        **ONE_NETWORK,
        "unsupervised_ramp": 16384 / 2**20,
        "strong_views": 8,
        "mixed_weight": 1.5,
        "unmixed_weight": 0.5,
        "rotation_weight": 0.5,
        "temperature": 0.5,
        "alpha": 0.75,
    },
    "fixmatch": {**ONE_NETWORK, "threshold": 0.95, "weak_pass": "separate"},
    "fixmatch_cta": {**ONE_NETWORK, "threshold": 0.95, "weak_pass": "separate"},
    "uda": {**ONE_NETWORK, "threshold": 0.8, "temperature": 0.4, "tsa": "off", "weak_pass": "separate"},
    "comatch": {
        **ONE_NETWORK,
        "contrast_weight": 1.0,
        "threshold": 0.95,
        "graph_threshold": 0.8,
        "alpha": 0.9,
        "temperature": 0.2,
        "dimensions": 64,
        "bank": 5 * (7 + 1) * 64,
        "batches": 32,
    },
    "temporal_ensembling": {
        **ONE_NETWORK,
        "unsupervised_weight": 30.0,
        "unsupervised_ramp": pytest.approx(80 / 300, abs=0.005),
        "momentum": 0.6,
    },
    "deep_cotraining": {
        "heads": 2,
        "unsupervised_weight": 10.0,
        "unsupervised_ramp": pytest.approx(80 / 600, abs=0.005),
        "difference_weight": 0.5,
        "epsilon": 0.02 / 0.25,  # 0.02 for pixels in [0, 1]
        "soft_targets": "gradient",
    },
    "trinet": {
        "heads": 3,
        "unsupervised_weight": 1.0,
        "unsupervised_ramp": 0.0,
        "initial": 0.25,
        "rounds": 30,
        "threshold": 0.95,
        "smeared_less": 0.25,
        "smeared_step": 0.05,
        "smearing": 0.05,
        "passes": 9,
    },
    "laplacenet": {
        **ONE_NETWORK,
        "supervised_share": pytest.approx(100 * (4000 // 300) / 250_000, rel=0.05),
        "views_each": 3,
        "alpha": 1.0,
        "neighbours": 50,
    },
    "pseudo_label_arazo": {
        **ONE_NETWORK,
        "warmup": pytest.approx(10 * 40 / (10 * 40 + 400 * (46_000 // 84))),  # epochs of 4,000 labels
        "alpha": 1.0,
        "prior_weight": 0.8,
        "entropy_weight": 0.4,
    },
}
RATIOS = {  # unlabelled images per labelled one
    **dict.fromkeys(METHODS, 7),
    **dict.fromkeys(["pi_model", "pseudo_label", "mean_teacher", "vat", "ict", "mixmatch", "remixmatch"], 1),
    "temporal_ensembling": 1,
    "deep_cotraining": 46_000 / 4_000,
    "laplacenet": (300 - 48) / 48,
    "pseudo_label_arazo": (100 - 16) / 16,
}
OPTIMISERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(METHODS, FIXMATCH),
    "mhct": {},
    "mhct_routed": {},
    "mhct_graph": {},
    "three_models": {},
    "vat": GOOGLE_ADAM,
    "ict": GOOGLE_ADAM,
    "temporal_ensembling": {"kind": "adam", "lr": 0.003, "momentum": 0.9, "weight_decay": 0.0},
    "deep_cotraining": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
    "laplacenet": {"lr": 0.03, "momentum": 0.9, "weight_decay": 5e-4},
    "pseudo_label_arazo": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
}
NOT_PUBLISHED = {
    name: {"strong_views"} for name in ("mhct", "mhct_routed", "mhct_graph", "three_models")
}  # tested elsewhere
each_name = pytest.mark.parametrize("name", METHODS)


@each_name
def test_defaults_are_the_published_ones(name: str) -> None:
    found = METHODS[name]().model_dump(exclude=NOT_PUBLISHED.get(name, set()))
    assert found == DEFAULTS[name]
    assert METHODS[name].unlabelled_ratio == RATIOS[name]


@each_name
@pytest.mark.parametrize("recipe", ["cifar10", "svhn", "cifar100", "miniimagenet"])
def test_published_recipes_give_a_method_the_optimiser_of_its_paper(name: str, recipe: str) -> None:
    own = recipe_named(recipe).optim
    found = recipe_named(recipe).changed({"method": name}).optim
    expected = {**own.model_dump(), **OPTIMISERS[name]}
    assert found.model_dump(exclude={"replaced"}) == {key: expected[key] for key in expected if key != "replaced"}


@each_name
def test_an_optimiser_has_settings_that_exist_and_no_batches_or_steps(name: str) -> None:
    assert (
        METHODS[name].paper_optim.keys()
        <= {"kind", "lr", "momentum", "weight_decay"}
        < OptimSettings.model_fields.keys()
    )


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.paper_optim])
def test_the_page_of_a_method_states_its_optimiser(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods" / f"{name}.md").read_text()
    optim = recipe_named("cifar10").changed({"method": name}).optim
    assert optim.summary in page and "`optim.per_method`" in page


@each_name
@pytest.mark.parametrize("recipe", ["digits", "small32"])
def test_short_recipes_have_one_optimiser_for_all(name: str, recipe: str) -> None:
    assert recipe_named(recipe).changed({"method": name}).optim == recipe_named(recipe).optim
