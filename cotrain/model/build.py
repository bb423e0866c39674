"""Build the network that the settings describe."""

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from cotrain.model.multihead import MultiHead
from cotrain.model.named import backbone
from cotrain.model.own import OwnNetwork, Pair, imported
from cotrain.model.settings import ModelSettings
from cotrain.model.stages import Backbone
from cotrain.types import Method, UserError


def build_network(settings: ModelSettings, method: Method, *, classes: int, channels: int, seed: int) -> MultiHead:
    """The backbone of the settings, cut into a trunk and the method's heads, initialised from the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        parts = parts_of(settings, method, classes=classes, channels=channels)
        if isinstance(parts, Pair):
            return _from_pair(parts, settings, method, classes=classes, channels=channels)
        return MultiHead.cut(
            parts,
            method.heads,
            after=method.share or settings.share,
            head_init=settings.head_init,
            dropout=method.dropout,
        )


def parts_of(settings: ModelSettings, method: Method, *, classes: int, channels: int) -> Backbone | Pair:
    """The parts of the backbone that `model.backbone` names, or of the user's own network."""
    own = settings.own
    if own is None and ":" in settings.backbone:
        own = OwnNetwork(settings.backbone, imported(settings.backbone))
    if own is not None:
        _refuse(settings.last_width, "model.last_width is for a wrn; set the width of your network by model.arguments")
        return own.parts(method, channels=channels, classes=classes, arguments=settings.arguments or {})
    shares_trunk = method.heads > 1 and (method.share or settings.share) != "none"
    _refuse(settings.arguments, f"model.arguments are for your own function; {settings.backbone} takes none")
    return backbone(
        settings.backbone,
        channels=channels,
        classes=classes,
        last_width=settings.last_width if shares_trunk else None,  # the paper narrows only heads on a shared trunk
        bn_momentum=settings.bn_momentum,
        extra=method.extra,
    )


def _refuse(value: Any, line: str) -> None:
    if value is not None:
        raise UserError(line)


def _from_pair(pair: Pair, settings: ModelSettings, method: Method, *, classes: int, channels: int) -> MultiHead:
    """Share the given trunk between heads, or, for separate models, build one trunk per head."""
    share = method.share or settings.share
    if method.dropout is not None:
        raise UserError(
            f"{method.name} needs dropout in each head; give a list of cotrain.Stage, whose `build` takes the dropout"
        )
    if share not in ("paper", "none"):
        raise UserError(
            f"model.share={share}: {settings.backbone} is a trunk and heads, already cut; choose paper (as given) or "
            "none (separate models), or give a list of cotrain.Stage to cut"
        )
    trunk, build_head = pair.trunk, pair.build_head
    if share == "none":
        more = (parts_of(settings, method, classes=classes, channels=channels) for _ in range(method.heads - 1))
        pairs = chain([pair], more)
        trunk = nn.Sequential()

        def build_head() -> nn.Module:
            own = next(pairs)
            assert isinstance(own, Pair)
            return nn.Sequential(own.trunk, own.build_head())

    net = MultiHead(trunk, build_head, method.heads, head_init=settings.head_init, channels=channels, classes=classes)
    if len({id(weight) for head in net.heads for weight in head.parameters()}) < sum(
        len([*head.parameters()]) for head in net.heads
    ):
        raise UserError(f"{settings.backbone}: build_head must build a new head each time; these heads share weights")
    return net


def check_outputs(net: MultiHead, images: Tensor, method: Method, name: str) -> None:
    """Check that each head gives one logit per class, followed by the method's extra outputs."""
    outputs = net(images, extra=True)
    adds = type(method).extra is not Method.extra
    if (outputs.shape[-1] == net.classes and not adds) or (outputs.shape[-1] > (net.classes or 0) and adds):
        return
    expected = f"({len(images)}, {net.classes}{' + extra outputs' if adds else ''})"
    raise UserError(
        f"{name}: a head gives logits {tuple(outputs.shape[1:])} for {len(images)} images of {net.classes} classes; "
        f"expected {expected}"
    )


def load_weights(net: nn.Module, tensors: dict[str, Tensor], where: object) -> None:
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{where} holds the weights of another network than this one ({reason})") from error
