"""The recipe that data gets if the user does not choose one."""

from typing import Any

import numpy as np
import pytest

import cotrain
from cotrain import Config, Dataset, from_arrays, recipe_named
from cotrain.config.defaults import configured, default_config
from cotrain.training.experiment import Prepared

GREY, COLOUR = (8, 8), (8, 8, 3)


def images(shape: tuple[int, ...]) -> Dataset:
    return from_arrays(np.zeros((40, *shape), np.uint8), np.arange(40) % 2, name="images")


def asked_of_fit(monkeypatch: pytest.MonkeyPatch, data: Dataset, **arguments: Any) -> Config:
    """The config with which `fit` would train."""

    def seen(prepared: Prepared) -> None:
        raise StopIteration(prepared.config)

    monkeypatch.setattr("cotrain.fitting.fit.check_trainable", seen)
    with pytest.raises(StopIteration) as stopped:
        cotrain.fit(data, **arguments)
    config: Config = stopped.value.value
    return config


def test_small_grey_images_get_a_network_from_scratch_with_routed_views(monkeypatch: pytest.MonkeyPatch) -> None:
    config = asked_of_fit(monkeypatch, images(GREY))
    assert config == recipe_named("routed32")
    assert (config.method.name, config.optim.steps) == ("mhct_routed", 2200)
    assert config.method.unsupervised_ramp == recipe_named("small32").method.unsupervised_ramp


def test_colour_images_do_if_the_user_chose_such_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"model.backbone": "wrn-10-1"}
    assert asked_of_fit(monkeypatch, images(COLOUR), settings=chosen).method.name == "mhct_routed"
    assert default_config(images(COLOUR), {}).method.name == "mhct_graph"


@pytest.mark.parametrize("arguments", [{"settings": {"method": "mhct"}}, {"preset": "code"}])
def test_the_method_of_the_paper_keeps_its_recipe(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = asked_of_fit(monkeypatch, images(GREY), **arguments)
    assert config.method.name == "mhct"
    assert config.optim.steps == recipe_named("small32").optim.steps


def test_methods_are_compared_under_the_recipe_of_the_paper() -> None:
    assert configured(images(GREY), None, "paper", {}) == recipe_named("small32")
