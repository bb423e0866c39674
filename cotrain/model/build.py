"""Build the network that the settings describe."""

from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cotrain.model.multihead import MultiHead
from cotrain.model.named import backbone
from cotrain.model.own import OwnNetwork, Pair, copied
from cotrain.model.pretrained import Head
from cotrain.model.settings import ModelSettings
from cotrain.model.stages import FROZEN, Backbone, Stage
from cotrain.model.trust import imported, is_import_path
from cotrain.model.weights import with_weights
from cotrain.types import Method, UserError


def build_network(settings: ModelSettings, method: Method, *, classes: int, channels: int, seed: int) -> MultiHead:
    """The backbone of the settings, cut into a trunk and the method's heads, initialised from the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        parts = parts_of(settings, method, classes=classes, channels=channels)
        if isinstance(parts, Pair):
            return _from_pair(parts, settings, method, classes=classes, channels=channels)
        share = method.share or settings.share
        parts.place(share)  # an unknown stage is an error
        if (last := last_frozen(parts, settings, share)) is not None:
            parts, share = parts.after(last), FROZEN if share == last else share
        net = MultiHead.cut(
            parts,
            method.heads,
            after=share,
            head_init=settings.head_init,
            dropout=method.dropout,
        )
        _check_heads(net, settings)
        return net


def last_frozen(parts: Backbone, settings: ModelSettings, share: str) -> str | None:
    """The last stage that stays as it was pretrained, so that its outputs are computed only once; None: all learn."""
    pretrained, kind = parts.pretrained, settings.trunk
    if pretrained is None:
        if kind in ("frozen", "tuned"):
            raise UserError(
                f"model.trunk={kind} needs a pretrained backbone, such as lite0; {parts.name} has no weights"
            )
        return None
    if kind == "learned":
        return None
    if kind == "tuned" and not pretrained.tuned_after:
        raise UserError(
            f"model.trunk=tuned learns the last stages of a network, and {parts.name} does not say which: return a "
            "cotrain.Backbone whose Pretrained has tuned_after, or choose frozen or learned"
        )
    shared = parts.place("paper" if share == "none" else share)
    kept = parts.place(pretrained.tuned_after if kind == "tuned" else pretrained.features or parts.cut)
    return parts.stages[min(shared, kept) - 1].name


def own_network_of(settings: ModelSettings) -> OwnNetwork | None:
    if settings.own is None and is_import_path(settings.backbone):
        return OwnNetwork(settings.backbone, imported(settings.backbone, settings.trust))
    return settings.own


def parts_of(settings: ModelSettings, method: Method, *, classes: int, channels: int) -> Backbone | Pair:
    """The parts of the backbone that `model.backbone` names, or of the user's own network."""
    own = own_network_of(settings)
    if own is not None:
        _refuse(settings.last_width, "model.last_width is for a wrn; set the width of your network by model.arguments")
        parts = own.parts(method, channels=channels, classes=classes, arguments=settings.arguments or {})
        if settings.weights is not None:
            parts = with_weights(parts, Path(settings.weights).expanduser(), channels)
        if isinstance(parts, Pair) and _is_frozen(parts, settings):
            _check_pair(settings, method)
            return _as_stages(parts, settings.backbone, channels, classes)
        return parts
    head = Head(hidden=settings.hidden, dropout=settings.dropout)
    shares_trunk = method.heads > 1 and (method.share or settings.share) != "none"
    _refuse(settings.arguments, f"model.arguments are for your own function; {settings.backbone} takes none")
    only_own = "model.weights are for your own network (model.backbone=PACKAGE.MODULE:FUNCTION)"
    _refuse(settings.weights, f"{only_own}; {settings.backbone} takes none")
    return backbone(
        settings.backbone,
        channels=channels,
        classes=classes,
        last_width=settings.last_width if shares_trunk else None,  # the paper narrows only heads on a shared trunk
        bn_momentum=settings.bn_momentum,
        extra=method.extra,
        head=lambda features: head.stages(features, classes, method.extra),
        side=settings.enlarge,
        trust=settings.trust,
    )


def pixel_statistics(
    settings: ModelSettings, method: Method, *, classes: int, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and standard deviation of the pixels that a pretrained network expects."""
    with torch.random.fork_rng():  # building the user's own network may draw weights
        parts = parts_of(settings, method, classes=classes, channels=channels)
    pretrained = parts.pretrained
    return (pretrained.mean, pretrained.std) if pretrained else None


def _refuse(value: Any, line: str) -> None:
    if value is not None:
        raise UserError(line)


def _is_frozen(pair: Pair, settings: ModelSettings) -> bool:
    kind = settings.trunk
    if pair.pretrained is None and kind in ("frozen", "tuned"):
        raise UserError(
            f"model.trunk={kind} needs pretrained weights: set model.weights to a safetensors file, or let "
            f"{settings.backbone} return (trunk, build_head, cotrain.Pretrained(size, mean, std))"
        )
    if kind == "tuned":
        raise UserError(
            f"model.trunk=tuned learns the last stages of a trunk, and {settings.backbone} gives its trunk as one "
            "module; give a cotrain.Backbone, or choose frozen or learned"
        )
    return pair.pretrained is not None and kind != "learned"


def _as_stages(pair: Pair, name: str, channels: int, classes: int) -> Backbone:
    """A trunk that is computed once, and the heads on its features."""
    stages = (Stage("trunk", lambda dropout: copied(pair.trunk)), Stage("head", lambda dropout: pair.build_head()))
    return Backbone(name, stages, "trunk", channels, classes, pair.pretrained)


def _check_pair(settings: ModelSettings, method: Method) -> None:
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


def _from_pair(pair: Pair, settings: ModelSettings, method: Method, *, classes: int, channels: int) -> MultiHead:
    """Share the given trunk between heads, or, for separate models, build one trunk per head."""
    _check_pair(settings, method)
    trunk, build_head = pair.trunk, pair.build_head
    if (method.share or settings.share) == "none":
        more = (parts_of(settings, method, classes=classes, channels=channels) for _ in range(method.heads - 1))
        pairs = chain([pair], more)
        trunk = nn.Sequential()

        def build_head() -> nn.Module:
            own = next(pairs)
            assert isinstance(own, Pair)
            return nn.Sequential(own.trunk, own.build_head())

    net = MultiHead(trunk, build_head, method.heads, head_init=settings.head_init, channels=channels, classes=classes)
    _check_heads(net, settings)
    return net


def _check_heads(net: MultiHead, settings: ModelSettings) -> None:
    if len({id(weight) for head in net.heads for weight in head.parameters()}) < sum(
        len([*head.parameters()]) for head in net.heads
    ):
        raise UserError(f"{settings.backbone}: build_head must build a new head each time; these heads share weights")


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
    for name, expected in net.state_dict().items():
        if name in tensors and tensors[name].dtype != expected.dtype:
            raise UserError(f"{where} is damaged: {name} is {tensors[name].dtype}, not {expected.dtype}")
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{where} holds the weights of another network than this one ({reason})") from error
