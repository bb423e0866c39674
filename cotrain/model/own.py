"""The user's own network: what a run records about it, and the parts that it consists of.

It is a function `build(*, channels, classes, **arguments)`, preferably given by its import path
"package.module:function", so that the run can be loaded anywhere; or objects that exist only in this process.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from cotrain.model.stages import Backbone, Pretrained, Stage
from cotrain.model.trust import OBJECT, Trust, imported
from cotrain.types import Method, UserError

EXPECTED = "(trunk, build_head) or a list of cotrain.Stage"


@dataclass(frozen=True)
class Pair:
    """A network that is already cut into a trunk and heads."""

    trunk: nn.Module
    build_head: Callable[[], nn.Module]  # returns a new head each time
    pretrained: Pretrained | None = None


@dataclass(frozen=True)
class OwnNetwork:
    recorded: str  # model.backbone in the run's config
    build: Callable[..., Any]

    def parts(self, method: Method, *, channels: int, classes: int, arguments: Mapping[str, Any]) -> Backbone | Pair:
        """Build the network. Each call builds a new one, initialised from torch's current random state."""
        signature = inspect.signature(self.build)
        values = {**arguments, "channels": channels, "classes": classes}
        if "extra" in signature.parameters:
            values["extra"] = method.extra
        elif type(method).extra is not Method.extra:
            raise UserError(
                f"{method.name} needs an extra output from each head: {self.recorded} must take `extra` and end each "
                "head with cotrain.Output(features, classes, extra)"
            )
        try:
            signature.bind(**values)
        except TypeError as error:
            raise UserError(
                f"{self.recorded} cannot be called with the keyword arguments {', '.join(values)}: {error}"
            ) from error
        try:
            made = self.build(**values)
        except Exception as error:  # the user's code may raise anything
            raise UserError(f"{self.recorded} failed: {type(error).__name__}: {error}") from error
        parts = self._parts(made, channels, classes)
        if (known := parts.pretrained) and not len(known.mean) == len(known.std) == channels:
            raise UserError(
                f"{self.recorded}: the mean and std of its Pretrained have {len(known.mean)} and {len(known.std)} "
                f"values; the images have {channels} channels"
            )
        return parts

    def _parts(self, made: Any, channels: int, classes: int) -> Backbone | Pair:
        if isinstance(made, Backbone):
            return replace(made, channels=channels, classes=classes)
        listed = list(made) if isinstance(made, Sequence) else []
        if len(listed) > 1 and all(isinstance(part, Stage) for part in listed):
            return Backbone(self.recorded, tuple(listed), listed[-2].name, channels, classes)
        if is_pair(made):
            return Pair(*made)
        kinds = ", ".join(type(part).__name__ for part in listed)
        given = f"({kinds})" if listed else type(made).__name__
        raise UserError(f"{self.recorded} returned {given}; expected {EXPECTED}")


def is_pair(made: Any) -> bool:
    """Whether this is (trunk, build_head), or (trunk, build_head, pretrained)."""
    return (
        isinstance(made, Sequence)
        and (len(made) == 2 or (len(made) == 3 and isinstance(made[2], Pretrained)))
        and isinstance(made[0], nn.Module)
        and callable(made[1])
        and not isinstance(made[1], nn.Module)
    )


def own_network(model: Any) -> OwnNetwork:
    """What `model=` accepts: an import path, a function, (trunk, build_head), stages, or a Backbone."""
    if isinstance(model, OwnNetwork):
        return model
    if isinstance(model, str):
        return OwnNetwork(model, imported(model, Trust.USER))
    if isinstance(model, nn.Module):
        raise UserError(
            f"model= is a single module ({type(model).__name__}); give a trunk and a function that builds one head: "
            "model=(trunk, build_head)"
        )
    if is_pair(model):
        trunk, *rest = model
        return OwnNetwork(f"{OBJECT}{type(trunk).__name__}", lambda channels, classes: (copied(trunk), *rest))
    if isinstance(model, Backbone | Sequence):
        name = model.name if isinstance(model, Backbone) else "stages"
        return OwnNetwork(f"{OBJECT}{name}", lambda channels, classes: model)
    if callable(model):
        return OwnNetwork(_path(model), model)
    raise UserError(f"model= is of type {type(model).__name__}; give a function, its import path, or {EXPECTED}")


def copied(trunk: nn.Module) -> nn.Module:
    """Training starts from the trunk's current weights and does not change the caller's object."""
    return copy.deepcopy(trunk)


def _path(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{getattr(function, '__qualname__', f'<{type(function).__name__}>')}"
