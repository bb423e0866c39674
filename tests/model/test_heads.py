"""The learned part of a network on a frozen trunk: where it begins, what it consists of, and its special layers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cotrain
from cotrain import UserError
from cotrain.augment import Policy, draw_plain, normalised
from cotrain.model.family import Wanted
from cotrain.model.multihead import MultiHead
from cotrain.model.pretrained import ByteDropout, FixedNorm, Head, Input, Sizes, Standardise, measuring
from cotrain.networks import build_network, build_trunk
from cotrain.ops import evaluating
from cotrain.trunk.trunk import FromPixels
from tests.trunk.fixtures import home, tiny_is_known  # noqa: F401
from tests.trunk.tiny import (
    CONFIG,
    FEATURES,
    MEAN,
    SIDE,
    STD,
    TinyBackbones,
    only_bank,
    opened,
    pictures,
    pretrained_convolution,
    small_data,
)

POOLED = torch.rand(5, FEATURES, 1, 1, generator=torch.Generator().manual_seed(0))


def network(**changes: Any) -> MultiHead:
    return build_network(CONFIG.changed({f"model.{name}": value for name, value in changes.items()}), 3, 3)


def layers(module: nn.Module) -> list[str]:
    return [type(each).__name__ for each in module.modules() if not [*each.children()]]


def test_heads_begin_with_features_and_are_linear_or_have_a_hidden_layer() -> None:
    with_hidden, linear = network(), network(hidden=None)
    assert layers(with_hidden.trunk) == layers(linear.trunk) == ["Identity"]
    beginning = ["Flatten", "Standardise", "ByteDropout"]
    for head in with_hidden.heads:
        assert layers(head) == [*beginning, "Linear", "LayerNorm", "GELU", "Dropout", "Linear"]
    for head in linear.heads:
        assert layers(head) == [*beginning, "Dropout", "Linear"]
        assert [tuple(weight.shape) for weight in head.parameters()] == [(3, FEATURES), (3,)]
    expected = torch.stack([F.linear(POOLED.flatten(1), *head.parameters()) for head in linear.heads])
    torch.testing.assert_close(linear(POOLED), expected)


@pytest.mark.parametrize("hidden", [8, None])
def test_dropout_is_for_training_only(hidden: int | None) -> None:
    net = network(dropout=0.5, hidden=hidden)
    torch.manual_seed(0)
    first, second = net(POOLED), net(POOLED)
    assert not torch.equal(first, second)
    net.eval()
    assert torch.equal(net(POOLED), net(POOLED))
    seen = []
    net.heads[0][0][2].register_forward_hook(lambda layer, given, made: seen.append((made == 0).float().mean()))
    net.train()(POOLED.repeat(200, 1, 1, 1))
    assert abs(seen[0] - 0.5) < 0.05


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.75])
def test_dropout_drops_its_share_of_features_and_scales_the_others(rate: float) -> None:
    layer, ones = ByteDropout(rate), torch.ones(301, 333, requires_grad=True)  # not a multiple of 8
    torch.manual_seed(0)
    dropped = layer(ones)
    exact = round(256 * rate) / 256
    assert dropped.unique().tolist() == pytest.approx([0, 1 / (1 - exact)])
    for part in (dropped, *(dropped.flatten()[byte::8] for byte in range(8))):  # 8 bytes are drawn at once
        share = (part == 0).float().mean().item()
        assert abs(share - exact) < 5 * (exact * (1 - exact) / part.numel()) ** 0.5
    dropped.sum().backward()
    assert ones.grad is not None and torch.equal(ones.grad, dropped.detach())
    torch.manual_seed(0)
    assert torch.equal(layer(ones), dropped)
    assert not torch.equal(layer(ones), dropped)
    assert torch.equal(layer.eval()(ones), ones)


def test_a_methods_dropout_is_before_the_last_layer_of_its_heads() -> None:
    config = CONFIG.changed({"method": "trinet", "model.dropout": 0.25})
    rates = [
        [each.p for each in head.modules() if isinstance(each, nn.Dropout)]
        for head in build_network(config, 3, 3).heads
    ]
    assert rates == [[0.25, rate] for rate in config.method.dropout]


def test_heads_that_begin_earlier_contain_pretrained_stages_of_their_own() -> None:
    pretrained = pretrained_convolution(6, FEATURES, seed=0).weight
    for net in (network(share="first"), network(share="first", trunk="tuned")):
        assert layers(net.trunk) == ["Identity"]
        assert net(torch.zeros(2, 6, 8, 8)).shape == (3, 2, 3)
        weights = [next(each.weight for each in head.modules() if isinstance(each, nn.Conv2d)) for head in net.heads]
        assert all(torch.equal(weight, pretrained) for weight in weights)
        assert len({id(weight) for weight in weights}) == 3


def test_heads_that_begin_later_share_a_layer_that_learns() -> None:
    config = CONFIG.changed({"model.share": "hidden"})
    net = build_network(config, 3, 3)
    assert "Linear" in layers(net.trunk) and all(weight.requires_grad for weight in net.trunk.parameters())
    trunk = build_trunk(config, 3, (SIDE, SIDE, 3))
    assert trunk is not None and trunk.shape == (FEATURES, 1, 1)
    assert layers(trunk.net) == ["Conv2d", "ReLU", "Conv2d", "ReLU", "Pool"]


def test_separate_models_are_separate_heads_on_the_same_frozen_trunk() -> None:
    net = build_network(CONFIG.changed({"method": "three_models"}), 3, 3)
    assert len(net.trunk) == 0 and not {*net.heads[0].parameters()} & {*net.heads[1].parameters()}
    assert net(POOLED).shape == (3, 5, 3)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"share": "nowhere"}, "tiny cannot be cut after 'nowhere'; choose one of: none, first, second, features, hid"),
        ({"backbone": "wrn-10-1", "trunk": "frozen"}, "model.trunk=frozen needs a pretrained backbone, such as lite0"),
        ({"backbone": "wrn-10-1", "share": "nowhere"}, "wrn-10-1 cannot be cut after 'nowhere'"),
    ],
)
def test_what_cannot_be_cut_or_frozen_is_one_line(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        network(**changes)


def own(*, channels: int, classes: int) -> cotrain.Backbone:
    """A network of the user's own, with weights of its own."""
    head = Head(hidden=None)
    return TinyBackbones().build(
        "tiny2", Wanted(channels, classes, head=lambda features: head.stages(features, classes, lambda _: None))
    )


def test_a_pretrained_network_of_the_users_own_is_frozen_too(home: Path, tmp_path: Path) -> None:
    data = small_data()
    fitted = cotrain.fit(data, out=tmp_path / "run", config=CONFIG, model=own)
    assert only_bank(home).joinpath("strong-2").exists()
    model = cotrain.load(fitted.folder, model=own)
    assert model.trunk is not None and layers(model.net.trunk) == ["Identity"]
    banked = opened(data, model.config)
    rows = np.arange(5)
    torch.testing.assert_close(model.logits_of(banked, rows), model.logits(data.images, rows), rtol=2e-3, atol=2e-3)


def test_standardise_measures_all_that_passes() -> None:
    features = torch.randn(70, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5, 1e-3, 0]) + 7
    layer = Standardise(4)
    assert torch.equal(layer(features), features), "before it is measured"
    with measuring(layer):
        for part in features.split(32):
            layer(part)
    made = layer(features.double())
    torch.testing.assert_close(made.mean(dim=0), torch.zeros(4).double(), atol=1e-3, rtol=0)
    spread = features.double().std(dim=0, correction=0)
    flat = (spread[2] / (0.02 * spread.mean())).item()  # nearly constant: not scaled up to 1
    torch.testing.assert_close(made.std(dim=0, correction=0), torch.tensor([1, 1, flat, 0]).double(), atol=1e-3, rtol=0)
    kept = layer.mean.clone()
    layer(features + 100)
    assert torch.equal(layer.mean, kept) and not layer._forward_pre_hooks


def test_fixed_norm_is_the_pretrained_batch_norm_in_training_too() -> None:
    layer, theirs = FixedNorm(3, 1e-3), nn.BatchNorm2d(3, eps=1e-3)
    for ours, other in ((layer.weight, theirs.weight), (layer.bias, theirs.bias)):
        ours.data = other.data = torch.rand(3)
    layer.running_mean = theirs.running_mean = torch.randn(3)
    layer.running_var = theirs.running_var = torch.rand(3) + 0.5
    before, images = layer.running_mean.clone(), torch.randn(4, 3, 5, 5)
    torch.testing.assert_close(layer.train()(images), theirs.eval()(images))
    assert torch.equal(layer.running_mean, before)
    with evaluating(layer):
        torch.testing.assert_close(layer(images), theirs(images))


def test_small_images_are_enlarged_and_grey_ones_get_three_channels() -> None:
    images = torch.rand(2, 3, 8, 12)
    assert Input("tiny", 3, 16, Sizes())(images).shape == (2, 3, 16, 24)
    assert torch.equal(Input("tiny", 3, 8, Sizes())(images), images)
    grey = Input("tiny", 1, 16, Sizes())(images[:, :1])
    assert grey.shape == (2, 3, 16, 24) and torch.equal(grey[:, 0], grey[:, 2])


def test_pixels_are_normalised_as_in_training() -> None:
    images = torch.from_numpy(pictures(4))
    expected = normalised(images, np.arange(4), draw_plain(4), Policy(), MEAN, STD)
    torch.testing.assert_close(FromPixels(nn.Identity(), MEAN, STD)(images), expected, rtol=1e-5, atol=1e-6)
