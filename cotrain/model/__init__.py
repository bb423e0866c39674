"""Backbones as lists of named stages, and the network whose heads share some of them."""

from cotrain.model.families.resnet import resnet18
from cotrain.model.families.wrn import wrn
from cotrain.model.family import BackboneFamily, Wanted
from cotrain.model.multihead import MultiHead
from cotrain.model.named import BACKBONES, backbone
from cotrain.model.stages import Backbone, Output, Pretrained, Stage

__all__ = [
    "BACKBONES",
    "Backbone",
    "BackboneFamily",
    "MultiHead",
    "Output",
    "Pretrained",
    "Stage",
    "Wanted",
    "backbone",
    "resnet18",
    "wrn",
]
