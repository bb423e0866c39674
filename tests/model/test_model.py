"""Parameter counts to the digit, the cut, and shapes that must be refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cotrain import Config, UserError, recipe_named
from cotrain.fitting.baseline import baseline_config
from cotrain.model import MultiHead, backbone
from cotrain.networks import build_network


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def network(name: str, heads: int, classes: int, after: str = "paper", last_width: int | None = None) -> MultiHead:
    return MultiHead.cut(backbone(name, channels=3, classes=classes, last_width=last_width), heads, after=after)


def counted(*arguments) -> MultiHead:
    """The same without values: only its parameters are counted."""
    with torch.device("meta"):
        return network(*arguments)


@pytest.mark.parametrize(
    ("name", "heads", "classes", "after", "last_width", "expected"),
    [
        ("wrn-28-2", 1, 10, "paper", None, 1_467_610),
        ("wrn-28-2", 3, 10, "none", None, 4_402_830),
        ("wrn-28-2", 3, 10, "paper", None, 3_702_766),
        ("wrn-28-8", 1, 100, "paper", None, 23_401_012),
        ("wrn-28-8", 3, 100, "none", None, 70_203_036),
        ("wrn-28-8", 3, 100, "paper", 256, 19_958_524),
        ("wrn-28-8", 3, 100, "paper", None, 59_172_604),
        ("wrn-28-8", 1, 100, "paper", 256, 10_329_652),
        ("resnet18", 1, 100, "paper", None, 11_227_812),
        ("resnet18", 3, 100, "none", None, 33_683_436),
        ("resnet18", 3, 100, "paper", None, 28_117_868),
        ("resnet18-small", 1, 100, "paper", None, 11_220_132),
        ("resnet18-small", 3, 100, "paper", None, 28_110_188),
        ("resnet18", 3, 10, "paper", None, 27_979_358),
    ],
)
def test_parameters_are_the_published_ones(name, heads, classes, after, last_width, expected) -> None:
    assert parameters(counted(name, heads, classes, after, last_width)) == expected


@pytest.mark.parametrize(
    ("recipe", "classes", "single", "separate", "heads"),
    [
        ("cifar10", 10, 1_467_610, 4_402_830, 3_702_766),
        ("svhn", 10, 1_467_610, 4_402_830, 3_702_766),
        ("cifar100", 100, 23_401_012, 70_203_036, 19_958_524),
        ("miniimagenet", 100, 11_227_812, 33_683_436, 28_117_868),
    ],
)
def test_every_method_has_the_network_of_the_published_table(recipe, classes, single, separate, heads) -> None:
    """Only heads on a shared trunk are narrowed, the labelled-only baseline of co-training with them."""
    config = recipe_named(recipe)

    def count(changes: dict[str, object], of: Config = config) -> int:
        with torch.device("meta"):
            return parameters(build_network(of.changed(changes), classes, channels=3))

    assert count({}) == count({"method": "trinet"}) == heads
    assert count({}, baseline_config(config)) == heads
    for name in ("fixmatch", "vat", "supervised", "pseudo_label_arazo"):
        assert count({"method": name}) == single
    assert count({"method.heads": 1}) == single
    assert count({"method": "three_models"}) == count({"model.share": "none"}) == separate
    assert count({"method": "deep_cotraining"}) == 2 * single
    assert count({}, baseline_config(config.changed({"method": "three_models"}))) == separate


@pytest.mark.parametrize("name", ["wrn-10-1", "resnet18", "resnet18-small"])
def test_every_batch_norm_has_the_momentum_that_is_set(name: str) -> None:
    def momenta(**settings: float) -> list[float]:
        with torch.device("meta"):
            net = MultiHead.cut(backbone(name, channels=3, classes=4, **settings), 2)
        return [module.momentum for module in net.modules() if isinstance(module, nn.BatchNorm2d)]

    assert len(momenta()) > 5 and {*momenta()} == {0.001}
    assert {*momenta(bn_momentum=0.25)} == {0.25}


def test_resnet18_is_as_written_down() -> None:
    """He et al., 2016, figure 5 and table 1, from the weights alone: every rectifier is where it belongs."""
    torch.manual_seed(0)
    net = network("resnet18", 1, 5).eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
    weights = [tensor for name, tensor in net.state_dict().items() if not name.endswith("num_batches_tracked")]

    def normed_conv(x: torch.Tensor, stride: int) -> torch.Tensor:
        kernel, gain, bias, mean, variance = (weights.pop(0) for _ in range(5))
        x = F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        return F.batch_norm(x, mean, variance, gain, bias)

    images = torch.randn(2, 3, 64, 64)
    x = F.max_pool2d(normed_conv(images, 2).relu(), 3, 2, padding=1)
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage and not block else 1
            residual = normed_conv(normed_conv(x, stride).relu(), 1)
            x = (residual + (normed_conv(x, 2) if stride == 2 else x)).relu()
    expected = x.mean(dim=(2, 3)) @ weights.pop(0).T + weights.pop(0)
    assert not weights
    torch.testing.assert_close(net(images)[0], expected, rtol=1e-3, atol=1e-4)


def test_parts_of_the_published_networks() -> None:
    small, wide, residual = (
        counted("wrn-28-2", 3, 10),
        counted("wrn-28-8", 3, 100, "paper", 256),
        counted("resnet18", 3, 100),
    )
    assert [parameters(part) for part in small.trunk] == [432, 70_112, 279_488]
    assert [parameters(part) for part in small.heads[0]] == [1_116_032, 256 + 1_290]
    assert [parameters(part) for part in wide.trunk] == [432, 1_054_496, 4_460_288]
    assert {parameters(head) for head in wide.heads} == {4_814_436}
    assert (parameters(residual.trunk), parameters(residual.heads[0])) == (2_782_784, 8_445_028)


@pytest.mark.parametrize("heads", range(1, 8))
def test_each_further_head_adds_its_own_parameters(heads: int) -> None:
    assert parameters(counted("wrn-28-2", heads, 10)) == 350_032 + heads * 1_117_578


@pytest.mark.parametrize("name", ["wrn-10-1", "wrn-16-2", "resnet18", "resnet18-small"])
@pytest.mark.parametrize(("channels", "height", "width"), [(1, 8, 8), (3, 33, 17), (5, 64, 64)])
def test_any_channels_and_size_give_one_row_per_image(name: str, channels: int, height: int, width: int) -> None:
    net = MultiHead.cut(backbone(name, channels=channels, classes=7), 2).eval()
    logits = net(torch.randn(3, channels, height, width), torch.randn(2, 4, channels, height, width))
    assert logits.shape == (2, 7, 7)


def test_feature_maps_of_resnet18_at_84_pixels() -> None:
    net = network("resnet18", 1, 100).eval()
    sizes, x = [], torch.randn(1, 3, 84, 84)
    for stage in [*net.trunk, net.heads[0][0]]:
        x = stage(x)
        sizes.append(x.shape[-1])
    assert sizes == [21, 21, 11, 6, 3]


def test_heads_start_independently_or_as_copies() -> None:
    stages = backbone("wrn-10-1", channels=3, classes=4)
    images = torch.randn(5, 3, 16, 16)
    independent = MultiHead.cut(stages, 3).eval()(images)
    copied = MultiHead.cut(stages, 3, head_init="copied").eval()(images)
    assert not torch.allclose(independent[0], independent[1])
    assert torch.equal(copied[0], copied[1])
    assert torch.equal(copied[0], copied[2])


def test_private_views_go_to_their_own_head_only() -> None:
    net = network("wrn-10-1", 3, 4).eval()
    shared, private = torch.randn(2, 3, 16, 16), torch.randn(3, 5, 3, 16, 16)
    logits = net(shared, private)
    assert torch.allclose(logits[:, :2], net(shared), atol=1e-5)
    for head in range(3):
        assert torch.allclose(logits[head, 2:], net(private[head])[head], atol=1e-5)


@pytest.mark.parametrize("views", [3, 1])
def test_a_head_computes_only_what_it_is_to_see(views: int) -> None:
    torch.manual_seed(0)
    net = MultiHead.cut(backbone("wrn-10-1", channels=3, classes=4), 3).eval()
    shared, private = torch.randn(2, 3, 16, 16), torch.randn(views, 5, 3, 16, 16)
    seen = torch.tensor([[1, 0, 1, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    passed = []
    net.trunk.register_forward_pre_hook(lambda _, images: passed.append(len(images[0])))
    logits = net(shared, private, seen)
    assert passed == [2 + (4 if views == 3 else 3)]
    everything = net(shared, private)
    assert torch.allclose(logits[:, :2], everything[:, :2], atol=1e-5)
    for head in range(3):
        assert torch.allclose(logits[head, 2:][seen[head]], everything[head, 2:][seen[head]], atol=1e-5)
        assert not logits[head, 2:][~seen[head]].any()


SEEN = torch.tensor([[1, 0, 1, 0, 0], [1, 1, 0, 0, 1], [0, 0, 1, 1, 0]]).bool()


@pytest.mark.parametrize(("views", "seen"), [(0, None), (1, None), (3, None), (1, SEEN), (3, SEEN)])
def test_one_heads_gradient_alone_reaches_the_trunk_if_asked_for(views: int, seen: torch.Tensor | None) -> None:
    torch.manual_seed(0)
    net = MultiHead.cut(backbone("wrn-10-1", channels=3, classes=4), 3).eval()
    shared = torch.randn(2, 3, 16, 16)
    private = torch.randn(views, 5, 3, 16, 16) if views else None
    trunk, heads = list(net.trunk.parameters()), [list(head.parameters()) for head in net.heads]

    def gradients(heads_asked: list[int], trunk_of: int | None) -> dict[nn.Parameter, torch.Tensor | None]:
        net.zero_grad()
        logits = net(shared, private, seen, trunk_of=trunk_of)
        sum(logits[head].square().sum() for head in heads_asked).backward()
        return {weight: weight.grad for weight in net.parameters()}

    everything = net(shared, private, seen)
    free = gradients([0, 1, 2], None)
    for chosen in range(3):
        assert torch.equal(net(shared, private, seen, trunk_of=chosen), everything)
        alone, held = gradients([chosen], None), gradients([0, 1, 2], chosen)
        for weight in trunk:
            torch.testing.assert_close(held[weight], alone[weight], rtol=1e-4, atol=1e-4)
        for weight in [weight for head in heads for weight in head]:
            torch.testing.assert_close(held[weight], free[weight])
        others = gradients([head for head in range(3) if head != chosen], chosen)
        assert all(others[weight] is None or not others[weight].any() for weight in trunk)


def test_every_cut_computes_the_same_function_of_its_stages() -> None:
    stages = backbone("wrn-10-1", channels=3, classes=4)
    assert stages.cuts == ["none", "stem", "group1", "group2", "group3"]
    for after in stages.cuts:
        net = MultiHead.cut(stages, 2, after=after).eval()
        whole = nn.Sequential(*net.trunk, *net.heads[1]).eval()
        images = torch.randn(3, 3, 16, 16)
        assert torch.allclose(net(images)[1], whole(images), atol=1e-5)
    with pytest.raises(UserError, match="wrn-10-1 cannot be cut after 'layer9'; choose one of: none, stem"):
        MultiHead.cut(stages, 2, after="layer9")


def test_a_users_own_module_can_be_cut() -> None:
    trunk = nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    net = MultiHead(trunk, lambda: nn.Linear(24, 5), heads=4)
    assert net(torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 9, 9)).shape == (4, 5, 5)
    with pytest.raises(ValueError, match="at least one head"):
        MultiHead(trunk, lambda: nn.Linear(24, 5), heads=0)


@pytest.mark.parametrize(
    ("shared", "private", "message"),
    [
        ((2, 1, 16, 16), None, r"expects images of shape \(n, 3, height, width\), not \(2, 1, 16, 16\)"),
        ((3, 16, 16), None, "expects images of shape"),
        ((2, 3, 16, 16), (2, 4, 3, 16, 16), "private views must have shape"),
        ((2, 3, 16, 16), (3, 4, 3, 8, 8), "private views must have shape"),
        ((2, 3, 16, 16), (12, 3, 16, 16), "private views must have shape"),
    ],
)
def test_shapes_the_network_cannot_take_are_refused(shared, private, message) -> None:
    net = network("wrn-10-1", 3, 4).eval()
    with pytest.raises(ValueError, match=message):
        net(torch.randn(shared), None if private is None else torch.randn(private))


def test_a_head_that_mixes_up_rows_is_an_error_and_not_wrong_rows() -> None:
    net = MultiHead(nn.AvgPool2d(8), lambda: nn.Sequential(nn.Flatten(0, 1), nn.Flatten(), nn.LazyLinear(5)), heads=2)
    with pytest.raises(ValueError, match="one row of logits per image"):
        net(torch.randn(2, 3, 16, 16))


@pytest.mark.parametrize("name", ["wrn-27-2", "wrn-4-1", "wrn-10-0", "vgg", "wrn-28"])
def test_unknown_backbones_are_one_line_errors(name: str) -> None:
    with pytest.raises(UserError, match="wrn"):
        backbone(name, channels=3, classes=10)
    with pytest.raises(UserError, match="last_width"):
        backbone("resnet18", channels=3, classes=10, last_width=256)
