"""Heads on rows of features: nothing comes before them."""

from torch import nn

from cotrain.model.family import BackboneFamily, Wanted
from cotrain.model.stages import Backbone, Stage


class FeatureHeads(BackboneFamily):
    """The backbone of tables: the heads get the standardised features as they are."""

    def build(self, name: str, wanted: Wanted) -> Backbone:
        stages = (Stage("features", lambda dropout: nn.Identity()), *wanted.head(wanted.channels))
        return Backbone(name, stages, cut="features", channels=wanted.channels, classes=wanted.classes)
