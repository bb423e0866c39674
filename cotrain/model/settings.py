"""The settings of the network."""

from typing import Literal

from pydantic import Field

from cotrain.types import IntOrNone, Settings


class ModelSettings(Settings):
    backbone: str = Field("wrn-28-2", description="wrn-DEPTH-WIDTH, resnet18 or resnet18-small (3x3 stem)")
    last_width: IntOrNone = Field(
        None,
        ge=1,
        description="channels of a wrn's last group where several heads share a trunk; none, and in single or separate "
        "networks: 64 x width",
    )
    share: str = Field(
        "paper", description="last stage of the shared trunk; paper: where the paper cuts; none: separate models"
    )
    head_init: Literal["independent", "copied"] = Field(
        "independent", description="heads start independently, or as copies of the first (ablation 4)"
    )
    bn_momentum: float = Field(0.001, gt=0, le=1, description="how fast batch-norm statistics follow the batches")
