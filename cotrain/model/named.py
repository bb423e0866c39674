"""Backbones by name: the families in this folder, and those of other packages."""

from collections.abc import Iterator

from cotrain.model.family import BackboneFamily, Wanted
from cotrain.model.stages import Backbone, BuildHead, Extra, no_extra, no_head
from cotrain.model.trust import Trust, check_trusted, is_import_path
from cotrain.registry import Registry, Unavailable
from cotrain.types import UserError

BACKBONES = Registry("backbone", BackboneFamily, "cotrain.model.families", group="cotrain.backbones")  # type: ignore[type-abstract]


def family_of(name: str) -> BackboneFamily:
    """The family of a backbone. Other packages are imported only if no built-in family knows the name."""
    for family in BACKBONES.built_in.values():
        if family().recognises(name):
            BACKBONES.check_free(name)
            return family()
    if name in BACKBONES:
        return BACKBONES.named(name)()
    knowing = [family for family in BACKBONES.from_others() if family().recognises(name)]
    if len(knowing) > 1:
        owners = " and ".join(f"{family.name} ({BACKBONES.provider(family.name)})" for family in knowing)
        raise Unavailable(f"the backbone name {name!r} is taken twice, by {owners}; uninstall one of them")
    if knowing:
        return knowing[0]()
    unknown = BACKBONES.unknown(name, [*_listed(), "PACKAGE.MODULE:FUNCTION"])
    if BACKBONES.broken:  # one of them might know the name
        raise Unavailable("; ".join(map(str, [unknown, *BACKBONES.broken.values()])))
    raise unknown


def backbone(
    name: str,
    *,
    channels: int,
    classes: int,
    last_width: int | None = None,
    bn_momentum: float = 0.001,
    extra: Extra = no_extra,
    head: BuildHead = no_head,
    side: int = 0,
    trust: Trust = Trust.FILE,
) -> Backbone:
    """The stages of a named backbone: wrn-28-2, resnet18, lite0, or one from another package."""
    check_trusted(name, trust)
    family = family_of(name)
    if last_width is not None and not family.takes_last_width:
        raise UserError(f"model.last_width narrows the last group of a wrn; {name} has none")
    downloads = trust is Trust.USER
    return family.build(name, Wanted(channels, classes, bn_momentum, extra, last_width, head, side, downloads))


def is_pretrained(name: str) -> bool:
    """Whether this names a backbone that comes with weights. The user's own network is not asked."""
    return not is_import_path(name) and family_of(name).is_pretrained


def names() -> str:
    """The possible values of `model.backbone`, without importing other packages."""
    return ", ".join(_listed())


def _listed() -> Iterator[str]:
    yield from (family.listed or family.name for family in BACKBONES.built_in.values())
    yield from (name for name in BACKBONES if name not in BACKBONES.built_in)
