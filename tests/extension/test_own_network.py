"""Networks of the user's own: what is trained, what a run records, and how it is built again."""

import functools
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import cotrain
from cotrain import Backbone, Config, Dataset, Output, Stage, UserError
from cotrain.model.own import own_network
from cotrain.networks import build_network
from cotrain.runs.run import Run
from cotrain.testing import check_network

HERE = f"{__name__}:"


def trunk_of(channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())


def head_of(classes: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, classes))


def pair(*, channels, classes, wider=0):
    return trunk_of(channels), lambda: head_of(classes + wider)


def stages(*, channels, classes, extra=None):
    def output(dropout: float) -> nn.Module:
        return nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), Output(4, classes, extra or (lambda _: None), dropout)
        )

    return [
        Stage("first", lambda dropout: trunk_of(channels)),
        Stage("second", lambda dropout: nn.Conv2d(4, 4, 3, padding=1)),
        Stage("last", output),
    ]


def shares_its_head(*, channels, classes):
    head = head_of(classes)
    return trunk_of(channels), lambda: head


def one_module(*, channels, classes):
    return trunk_of(channels)


def fails(*, channels, classes):
    raise KeyError("width")


@pytest.fixture
def quick(tiny: Config) -> Config:
    return tiny.changed({"optim.steps": 4, "run.checkpoint_every": 2})


def images(toy: Dataset) -> torch.Tensor:
    return toy.images[:6]


def test_a_function_is_recorded_by_its_path_and_built_again(tmp_path: Path, toy: Dataset, quick: Config) -> None:
    fitted = cotrain.fit(toy, out=tmp_path / "run", config=quick, model=pair)
    model = Run.open(fitted.folder).config.model
    assert (model.backbone, model.arguments, model.own) == (f"{HERE}pair", None, None)
    loaded = cotrain.load(fitted.folder, trust_code=True)
    np.testing.assert_array_equal(
        loaded.predict(images(toy)).probabilities, fitted.model.predict(images(toy)).probabilities
    )
    assert len(loaded.net.heads) == 3 and isinstance(loaded.net.trunk[1], nn.BatchNorm2d)


def test_the_same_network_by_its_path_is_the_same_run(tmp_path: Path, toy: Dataset, quick: Config) -> None:
    first = cotrain.fit(toy, out=tmp_path / "a", config=quick, model=pair, model_arguments={"wider": 0})
    second = cotrain.fit(toy, out=tmp_path / "b", config=quick, model=f"{HERE}pair", model_arguments={"wider": 0})
    third = cotrain.fit(
        toy,
        out=tmp_path / "c",
        config=quick.changed({"model.backbone": f"{HERE}pair", "model.arguments": '{"wider": 0}'}),
    )
    configs = [Run.open(each.folder).config for each in (first, second, third)]
    assert configs[0] == configs[1] == configs[2]
    predicted = [each.model.predict(images(toy)).probabilities for each in (first, second, third)]
    np.testing.assert_array_equal(predicted[0], predicted[1])
    np.testing.assert_array_equal(predicted[0], predicted[2])


def test_stages_can_be_cut_anywhere_and_take_extra_outputs(toy: Dataset, quick: Config) -> None:
    by_default = quick.changed({"model.backbone": f"{HERE}stages"})
    assert [len(build_network(by_default, 2, 1).trunk), len(build_network(by_default, 2, 1).heads[0])] == [2, 1]
    assert len(build_network(by_default.changed({"model.share": "first"}), 2, 1).trunk) == 1
    assert len(build_network(by_default.changed({"method": "three_models"}), 2, 1).trunk) == 0
    with pytest.raises(UserError, match="cannot be cut after 'third'; choose one of: none, first, second"):
        build_network(by_default.changed({"model.share": "third"}), 2, 1)
    comatch = build_network(by_default.changed({"method": "comatch"}), 2, 1).eval()
    assert comatch(torch.zeros(3, 1, 8, 8), extra=True).shape[-1] > 2 == comatch(torch.zeros(3, 1, 8, 8)).shape[-1]


def test_separate_models_have_trunks_of_their_own(quick: Config) -> None:
    net = build_network(quick.changed({"model.backbone": f"{HERE}pair", "method": "three_models"}), 2, 1)
    first, second = (head[0][0].weight for head in list(net.heads)[:2])
    assert len(net.trunk) == 0 and not torch.equal(first, second)


def test_a_network_without_batchnorm_has_an_average_too(tmp_path: Path, toy: Dataset, quick: Config) -> None:
    plain = (nn.Conv2d(1, 4, 3, padding=1), lambda: head_of(2))
    fitted = cotrain.fit(toy, out=tmp_path / "run", config=quick, model=plain)
    assert quick.optim.ema and fitted.result["steps"] == 4


def test_the_baseline_is_the_same_network(tmp_path: Path, toy: Dataset, quick: Config) -> None:
    trunk, local = trunk_of(1), (lambda: head_of(2))
    fitted = cotrain.fit(toy, out=tmp_path / "run", config=quick.changed({"run.baseline": True}), model=(trunk, local))
    assert fitted.result["labelled_only_error"] is not None
    ours, alone = (Run.open(folder) for folder in (fitted.folder, fitted.folder / "labelled_only"))
    assert ours.config.model.backbone == alone.config.model.backbone == "object:Sequential"


def test_a_trunk_is_copied_and_its_weights_are_the_start(tmp_path: Path, toy: Dataset, quick: Config) -> None:
    trunk = trunk_of(1)
    before = {name: tensor.clone() for name, tensor in trunk.state_dict().items()}
    config = quick.with_network(own_network((trunk, lambda: head_of(2))))
    begun = build_network(config, 2, 1)
    assert all(torch.equal(before[name], tensor) for name, tensor in begun.trunk.state_dict().items())
    cotrain.fit(toy, out=tmp_path / "run", config=quick, model=(trunk, lambda: head_of(2)))
    assert all(torch.equal(before[name], tensor) for name, tensor in trunk.state_dict().items())


@pytest.mark.parametrize("kind", ["lambda", "closure", "objects", "backbone", "partial", "main"])
def test_what_cannot_be_imported_is_given_again(
    kind: str, tmp_path: Path, toy: Dataset, quick: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closure(*, channels, classes):
        return pair(channels=channels, classes=classes)

    if kind == "main":
        monkeypatch.setattr(closure, "__module__", "__main__")
        monkeypatch.setattr(closure, "__qualname__", "closure")
    model = {
        "lambda": lambda channels, classes: pair(channels=channels, classes=classes),
        "closure": closure,
        "main": closure,
        "objects": (trunk_of(1), lambda: head_of(2)),
        "backbone": Backbone("mine", tuple(stages(channels=1, classes=2)), cut="first", channels=1, classes=2),
        "partial": functools.partial(pair, wider=0),
    }[kind]
    fitted = cotrain.fit(toy, out=tmp_path / "run", config=quick, model=model)
    expected = fitted.model.predict(images(toy)).probabilities
    with pytest.raises(UserError, match=r"exists only in the program that trained it.*cotrain.load\(run, model="):
        cotrain.load(fitted.folder)
    np.testing.assert_array_equal(cotrain.load(fitted.folder, model=model).predict(images(toy)).probabilities, expected)
    with pytest.raises(UserError, match="holds the weights of another network than this one"):
        cotrain.load(fitted.folder, model=functools.partial(pair, wider=1))

    command = f"cotrain.fit(data, out={str(fitted.folder)!r}, resume=True, model=...)"
    assert Run.open(fitted.folder).resume_command == command
    for name in ("model.safetensors", "result.json", "checkpoint/step-00000004.safetensors"):
        (fitted.folder / name).unlink()
    with pytest.raises(UserError, match="exists only in the program that trained it"):
        cotrain.fit(toy, out=fitted.folder, resume=True)
    resumed = cotrain.fit(toy, out=fitted.folder, resume=True, model=model)
    np.testing.assert_array_equal(resumed.model.predict(images(toy)).probabilities, expected)


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        (
            functools.partial(pair, wider=3),
            {},
            r"a head gives logits \(2, 5\) for 2 images of 2 classes; expected \(2, 2\)",
        ),
        (shares_its_head, {}, "build_head must build a new head each time; these heads share weights"),
        (one_module, {}, r"one_module returned Sequential; expected \(trunk, build_head\) or a list of cotrain.Stage"),
        (fails, {}, "fails failed: KeyError: 'width'"),
        (nn.Linear(2, 2), {}, r"model= is a single module \(Linear\); give a trunk .*: model=\(trunk, build_head\)"),
        (7, {}, "model= is of type int; give a function, its import path, or"),
        (
            pair,
            {"model.arguments": {"depth": 3}},
            "pair cannot be called with the keyword arguments depth, channels, classes: ",
        ),
        (pair, {"model.arguments": "3"}, r"model.arguments=3: input should be a valid dictionary"),
        (pair, {"model.arguments": "{"}, r"model.arguments='{': .*should be a JSON object"),
        (pair, {"model.share": "first"}, "model.share=first: .*pair is a trunk and heads, already cut"),
        (pair, {"model.last_width": 8}, "model.last_width is for a wrn"),
        (pair, {"method": "trinet"}, "trinet needs dropout in each head; give a list of cotrain.Stage, whose"),
        (pair, {"method": "comatch"}, "comatch needs an extra output from each head: .*pair must take `extra`"),
        (pair, {"model.backbone": "wrn-10-1"}, "model= and model.backbone both choose the network"),
        ("nowhere_at_all:build", {}, r"nowhere_at_all cannot be imported \(ModuleNotFoundError"),
        (f"{HERE}absent", {}, "has no function absent"),
        (
            None,
            {"model.arguments": {"width": 3}},
            "model.arguments are for your own function; wrn-10-1 takes",
        ),
    ],
)
def test_a_network_that_cannot_be_trained_is_one_line_and_nothing_is_written(
    model, settings, expected, tmp_path: Path, toy: Dataset, quick: Config
) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        cotrain.fit(toy, out=tmp_path / "run", config=quick, settings=settings, model=model)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_another_network_than_the_runs_is_refused(tmp_path: Path, toy: Dataset, quick: Config) -> None:
    fitted = cotrain.fit(toy, out=tmp_path / "run", config=quick, model=pair)
    with pytest.raises(UserError, match=r"different settings: model.backbone was '.*:pair' and is now '.*:stages'"):
        cotrain.fit(toy, out=fitted.folder, resume=True, model=stages)


def test_other_processes_are_told_the_name_of_a_network_and_not_the_network(quick: Config) -> None:
    given = quick.with_network(own_network(lambda channels, classes: pair(channels=channels, classes=classes)))
    assert given.model.own is not None and given.changed({"optim.lr": 0.2}).model.own is given.model.own
    sent = pickle.loads(pickle.dumps(given))
    assert sent.model.own is None and sent.model_dump() == given.model_dump()


class Same(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, outputs))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.mean(dim=(2, 3)) @ self.weight


def test_networks_can_be_checked() -> None:
    check_network("wrn-10-1")
    check_network(pair, {"wider": 0})
    check_network(stages, method="comatch")
    with pytest.raises(AssertionError, match=r"a head gives logits \(4, 6\)"):
        check_network(pair, {"wider": 1})
    with pytest.raises(AssertionError, match="all heads give the same logits"):
        check_network(lambda channels, classes: (trunk_of(channels), lambda: Same(classes)))


def columns(*, channels, classes):
    return nn.Flatten(), lambda: nn.Sequential(nn.Linear(channels, 4), nn.ReLU(), nn.Linear(4, classes))


def test_a_network_on_a_table_is_compared_with_logistic_regression(tmp_path: Path) -> None:
    """Which has a linear head of cotrain's, not one of the user's."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(60, 3))
    labels = np.where(np.arange(60) < 24, values[:, 0] > 0, -1).astype(np.int64)
    settings = {"method": "mhct", "optim.steps": 3, "optim.labelled": 4, "optim.unlabelled": 4, "run.repeats": 0}
    fitted = cotrain.fit(cotrain.from_features(values, labels), out=tmp_path / "run", model=columns, settings=settings)
    logistic = cotrain.load(fitted.folder, model=columns, use="logistic_regression")
    assert len(logistic.net.heads) == 1 and logistic.config.model.backbone == "features"
    assert (logistic.predict(values).labels[:24] == labels[:24]).mean() > 0.8
