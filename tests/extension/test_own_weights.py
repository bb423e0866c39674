"""Networks of the user's own that are pretrained: weights from a file, frozen trunks, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import cotrain
from cotrain import Backbone, Config, Dataset, Pretrained, Stage, UserError
from cotrain.model.own import own_network
from cotrain.networks import build_network, build_trunk, pixel_statistics
from cotrain.runs.run import Run
from cotrain.testing import check_network
from cotrain.trunk.runtime import compiled

HERE = f"{__name__}:"
GREY = Pretrained(size=8, mean=(0.5,), std=(0.25,))


def trunk_of(channels: int, width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())


def head_of(classes: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, classes))


def pair(*, channels, classes):
    return trunk_of(channels), lambda: head_of(classes)


def pair_with_statistics(*, channels, classes):
    return trunk_of(channels), lambda: head_of(classes), GREY


def pooled_pair(*, channels, classes):
    trunk = nn.Sequential(*trunk_of(channels), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return trunk, lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, classes))


def stages(*, channels, classes):
    return [
        Stage("first", lambda dropout: trunk_of(channels)),
        Stage("second", lambda dropout: nn.Conv2d(4, 4, 3, padding=1)),
        Stage("last", lambda dropout: head_of(classes)),
    ]


def backbone(*, channels, classes):
    pretrained = Pretrained(size=8, mean=(0.5,), std=(0.25,), tuned_after="first")
    return Backbone("mine", tuple(stages(channels=channels, classes=classes)), "second", channels, classes, pretrained)


def tokens(*, channels, classes):
    return nn.Sequential(trunk_of(channels), nn.Flatten(2)), lambda: nn.Linear(64, classes), GREY


def shares_its_head(*, channels, classes):
    head = head_of(classes)
    return trunk_of(channels), lambda: head, GREY


@pytest.fixture
def quick(tiny: Config) -> Config:
    return tiny.changed({"optim.steps": 3, "bank.weak": 1, "bank.strong": 1, "run.runtime": "torch"})


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Of the trunk of `pair`, with statistics that batch-norm does not start with."""
    torch.manual_seed(7)
    trunk = trunk_of(1)
    trunk[1].running_mean += 0.5
    save_file(trunk.state_dict(), tmp_path / "trunk.safetensors")
    return tmp_path / "trunk.safetensors"


def normalised(images: torch.Tensor, mean: float, std: float) -> torch.Tensor:
    return (images.permute(0, 3, 1, 2) / 255 - mean) / std


def test_weights_freeze_the_trunk_of_a_pair(tmp_path: Path, toy: Dataset, quick: Config, weights: Path) -> None:
    fitted = cotrain.fit(toy, out=tmp_path / "run", config=quick, model=pair, settings={"model.weights": str(weights)})
    model = Run.open(fitted.folder).config.model
    assert (model.backbone, model.weights, model.trunk) == (f"{HERE}pair", str(weights), "auto")
    trunk = trunk_of(1).eval()
    trunk.load_state_dict(load_file(weights))
    assert not [*fitted.model.net.trunk.parameters()], "only the heads are trained and saved"
    images = toy.images[:6]
    mean, std = (0.485 + 0.456 + 0.406) / 3, (0.229 + 0.224 + 0.225) / 3
    with torch.inference_mode():
        features = trunk(normalised(images, mean, std))
        expected = torch.stack([head(features) for head in fitted.model.net.heads])
        torch.testing.assert_close(fitted.model.logits(images, np.arange(6)), expected, atol=1e-4, rtol=1e-4)
    loaded = cotrain.load(fitted.folder, trust_code=True)
    np.testing.assert_array_equal(loaded.predict(images).probabilities, fitted.model.predict(images).probabilities)


def test_a_trunk_may_pool_its_features_and_say_how_pixels_are_normalised(
    tmp_path: Path, toy: Dataset, quick: Config
) -> None:
    trunk, build_head = pooled_pair(channels=1, classes=2)
    model = (trunk, build_head, GREY)
    fitted = cotrain.fit(toy, out=tmp_path / "run", config=quick, model=model)
    config = quick.with_network(own_network(model))
    built = build_trunk(config, 2, (8, 8, 1))
    assert built is not None and built.shape == (16, 1, 1)
    with torch.inference_mode():
        expected = trunk.eval()(normalised(toy.images[:5], 0.5, 0.25))
        torch.testing.assert_close(built.net(toy.images[:5]).flatten(1), expected)
    loaded = cotrain.load(fitted.folder, model=model)
    np.testing.assert_array_equal(
        loaded.predict(toy.images[:5]).probabilities, fitted.model.predict(toy.images[:5]).probabilities
    )


def test_stages_take_weights_by_the_name_of_the_stage(tmp_path: Path, quick: Config) -> None:
    torch.manual_seed(3)
    first, second = trunk_of(1), nn.Conv2d(4, 4, 3, padding=1)
    tensors = {
        f"{name}.{key}": tensor
        for name, part in (("first", first), ("second", second))
        for key, tensor in part.state_dict().items()
        if "tracked" not in key
    }
    save_file(tensors, tmp_path / "stages.safetensors")
    changes = {"model.backbone": f"{HERE}stages", "model.weights": str(tmp_path / "stages.safetensors")}
    frozen = build_trunk(quick.changed(changes), 2, (8, 8, 1))
    assert frozen is not None
    images = torch.randn(2, 1, 8, 8)
    with torch.inference_mode():
        torch.testing.assert_close(frozen.net.net(images), second(first.eval()(images)))
    learned = quick.changed({**changes, "model.trunk": "learned"})
    assert build_trunk(learned, 2, (8, 8, 1)) is None
    assert torch.equal(build_network(learned, 2, 1).trunk[1].weight, second.weight)
    assert pixel_statistics(learned, 2, 1) is not None


@pytest.mark.parametrize(("trunk", "shared", "learned"), [("frozen", 4, 0), ("tuned", 4, 1), ("learned", 0, 2)])
def test_a_backbone_may_be_frozen_tuned_or_learned(quick: Config, trunk: str, shared: int, learned: int) -> None:
    config = quick.changed({"model.backbone": f"{HERE}backbone", "model.trunk": trunk})
    built = build_trunk(config, 2, (8, 8, 1))
    assert (built.shape[0] if built else 0) == shared
    parts = [part for part in build_network(config, 2, 1).trunk if [*part.parameters()]]
    assert len(parts) == learned
    assert pixel_statistics(config, 2, 1) == ((0.5,), (0.25,))


def test_separate_models_share_a_frozen_trunk(quick: Config, weights: Path) -> None:
    changes = {"model.backbone": f"{HERE}pair", "model.weights": str(weights)}
    net = build_network(quick.changed({**changes, "method": "three_models"}), 2, 1)
    assert len(net.trunk) == 0 and net(torch.zeros(2, 4, 8, 8)).shape == (3, 2, 2)
    learned = build_network(quick.changed({**changes, "method": "three_models", "model.trunk": "learned"}), 2, 1)
    first, second = (head[0] for head in list(learned.heads)[:2])
    assert first is not second and torch.equal(first[0].weight, second[0].weight)


def test_the_digest_follows_the_weights_the_pixels_and_the_layers(quick: Config, weights: Path, tmp_path: Path) -> None:
    def digest(model: object, **changes: object) -> str:
        config = quick.with_network(own_network(model)).changed(
            {f"model.{key}": value for key, value in changes.items()}
        )
        trunk = build_trunk(config, 2, (8, 8, 1))
        assert trunk is not None
        return trunk.digest

    again = digest(pair, weights=str(weights))
    assert digest(pair, weights=str(weights)) == again, "what a function draws at random is drawn the same"
    assert digest(pair_with_statistics, weights=str(weights)) != again
    tensors = load_file(weights)
    save_file({key: tensor + (key == "0.bias") for key, tensor in tensors.items()}, tmp_path / "other.safetensors")
    assert digest(pair, weights=str(tmp_path / "other.safetensors")) != again
    relu, gelu = ((nn.Sequential(nn.Conv2d(1, 4, 1), act()), lambda: head_of(2), GREY) for act in (nn.ReLU, nn.GELU))
    gelu[0].load_state_dict(relu[0].state_dict())
    assert digest(relu) != digest(gelu) and digest(relu) == digest(relu)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"0.weight": None}, "holds the weights of another network: 0.weight is missing"),
        ({"fc.weight": torch.zeros(2, 2)}, "holds the weights of another network: the trunk has no fc.weight"),
        (
            {"0.weight": torch.zeros(4, 3, 3, 3)},
            r"holds the weights of another network: 0.weight has shape \(4, 3, 3, 3\) and the trunk's \(4, 1, 3, 3\)",
        ),
    ],
)
def test_weights_of_another_network_are_refused(quick: Config, weights: Path, changed, expected: str) -> None:
    tensors = {key: tensor for key, tensor in {**load_file(weights), **changed}.items() if tensor is not None}
    save_file(tensors, weights)
    with pytest.raises(UserError, match=f"model.weights={weights} {expected}$"):
        build_network(quick.changed({"model.backbone": f"{HERE}pair", "model.weights": str(weights)}), 2, 1)


class Undecided(nn.Module):
    """What it computes depends on the pixels, which no graph can express."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images if float(images.sum()) > 0 else -images


@pytest.mark.system
def test_a_trunk_that_onnxruntime_cannot_run_says_so(quick: Config) -> None:
    config = quick.with_network(own_network((Undecided(), lambda: head_of(2), GREY)))
    trunk = build_trunk(config, 2, (8, 8, 1))
    assert trunk is not None
    with pytest.raises(UserError, match=r"cannot be exported for onnxruntime \(.*\); set run.runtime=torch") as caught:
        compiled(trunk, "onnxruntime")
    assert "\n" not in str(caught.value)
    assert compiled(trunk, "torch")(np.zeros((2, 8, 8, 1), np.uint8)).shape == (2, 1, 8, 8)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a zip file", b"\xff" * 64])
def test_a_file_of_another_kind_is_refused(quick: Config, weights: Path, content: bytes) -> None:
    weights.write_bytes(content)
    with pytest.raises(UserError, match=f"model.weights={weights} is not a complete safetensors file"):
        build_network(quick.changed({"model.backbone": f"{HERE}pair", "model.weights": str(weights)}), 2, 1)


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        (pair, {"model.weights": "nowhere.safetensors"}, "model.weights=nowhere.safetensors: there is no such file"),
        ("lite0", {"model.weights": "a"}, r"model.weights are for your own network \(.*\); lite0 takes none"),
        ("wrn-10-1", {"model.weights": "a"}, r"model.weights are for your own network \(.*\); wrn-10-1 takes none"),
        (pair, {"model.trunk": "frozen"}, "model.trunk=frozen needs pretrained weights: set model.weights"),
        (stages, {"model.trunk": "frozen"}, "model.trunk=frozen needs a pretrained backbone"),
        (pair_with_statistics, {"model.trunk": "tuned"}, "gives its trunk as one module; give a cotrain.Backbone"),
        (pair_with_statistics, {"model.share": "first"}, "pair_with_statistics is a trunk and heads, already cut"),
        (pair_with_statistics, {"method": "trinet"}, "trinet needs dropout in each head"),
        (tokens, {}, r"a frozen trunk gives features \(n, C\) or \(n, C, h, w\), not \(1, 4, 64\)"),
        (shares_its_head, {}, "build_head must build a new head each time"),
        (
            (trunk_of(1), lambda: head_of(2), Pretrained(8, (0.5,) * 3, (0.2,) * 3)),
            {},
            "mean and std of its Pretrained have 3 and 3 values; the images have 1 channels",
        ),
    ],
)
def test_what_cannot_be_trained_is_one_line_and_nothing_is_written(
    model, settings, expected, tmp_path: Path, toy: Dataset, quick: Config
) -> None:
    named = isinstance(model, str)
    settings = {**settings, **({"model.backbone": model} if named else {})}
    with pytest.raises(UserError, match=expected) as caught:
        cotrain.fit(toy, out=tmp_path / "run", config=quick, settings=settings, model=None if named else model)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_frozen_networks_can_be_checked() -> None:
    check_network(pair_with_statistics, channels=1)
    check_network("lite0", classes=3)

    def changes(*, channels, classes):
        trunk, build_head = pair(channels=channels, classes=classes)
        generator = torch.Generator()
        generator.seed()
        nn.init.normal_(trunk[0].weight, generator=generator)
        return trunk, build_head, GREY

    with pytest.raises(AssertionError, match="two builds of the frozen trunk differ"):
        check_network(changes, channels=1)
