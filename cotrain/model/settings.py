"""The settings of the network."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, PrivateAttr

from cotrain.model.own import OwnNetwork
from cotrain.model.trust import Trust
from cotrain.types import IntOrNone, Settings, StrOrNone, none_if_written


def _json(value: Any) -> Any:
    """Parse JSON from the command line, such as {"width": 32}."""
    value = none_if_written(value)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError('should be a JSON object, such as {"width": 32}') from error


class ModelSettings(Settings):
    advanced = frozenset({"bn_momentum", "head_init", "last_width"})

    backbone: str = Field(
        "wrn-28-2", description="name of a backbone, or PACKAGE.MODULE:FUNCTION of your own (docs/guide/extending.md)"
    )
    arguments: Annotated[dict[str, JsonValue] | None, BeforeValidator(_json)] = Field(
        None, description="extra arguments for your own FUNCTION, as a JSON object; none: no arguments"
    )
    last_width: IntOrNone = Field(
        None,
        ge=1,
        description="channels in the last group of a wrn whose heads share a trunk; none, and in single or separate "
        "networks: 64 x width",
    )
    share: str = Field(
        "paper", description="last stage of the shared trunk; paper: where the paper cuts; none: separate models"
    )
    trunk: Literal["auto", "frozen", "tuned", "learned"] = Field(
        "auto",
        description="a pretrained trunk stays as it is (frozen), its last stages learn slowly (tuned), or all of it "
        "learns; auto: frozen if the backbone is pretrained, otherwise learned",
    )
    enlarge: int = Field(
        128, ge=1, le=2048, description="images with a shorter side are enlarged to it before a pretrained trunk"
    )
    hidden: IntOrNone = Field(
        256, ge=1, description="units of the hidden layer of a head on pretrained features; none: linear heads"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the pretrained features that each head sees")
    weights: StrOrNone = Field(
        None, description="a safetensors file with the weights of your own network's trunk; none: as it is built"
    )
    head_init: Literal["independent", "copied"] = Field(
        "independent",
        description="heads start with independent weights, or as copies of the first head (ablation 4)",
    )
    bn_momentum: float = Field(0.001, gt=0, le=1, description="how fast batch-norm statistics follow the batches")

    _own: OwnNetwork | None = PrivateAttr(None)
    _trust: Trust = PrivateAttr(Trust.FILE)

    @property
    def own(self) -> OwnNetwork | None:
        """The user's network, if it was given in this process. It is not saved with the settings."""
        return self._own

    def with_own(self, network: OwnNetwork | None) -> Self:
        changed = self.model_copy(update={"backbone": network.recorded} if network else {})
        changed._own = network
        return changed

    @property
    def trust(self) -> Trust:
        """Who named the backbone. Settings are read from files unless somebody says otherwise."""
        return self._trust

    def with_trust(self, trust: Trust) -> Self:
        changed = self.model_copy()
        changed._trust = trust
        return changed

    def __getstate__(self) -> dict[Any, Any]:
        """Leave out the user's network: other processes get it from their own program."""
        return super().__getstate__() | {"__pydantic_private__": {"_own": None, "_trust": self._trust}}
