"""Image models of timm: `timm:NAME`, with the pretrained weights that timm downloads.

timm imports torchvision, which not every build of torch comes with. The tests use a stand-in with the four functions
that are called here: `create_model`, `resolve_model_data_config`, a model's `forward`, and its `state_dict`.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from cotrain.model.adopted import Adopted, sizes_taken
from cotrain.model.family import BackboneFamily, Wanted
from cotrain.model.pretrained import check_channels
from cotrain.model.stages import Backbone, Stage
from cotrain.model.weights import fingerprint
from cotrain.types import UserError

PREFIX = "timm:"


class TimmModels(BackboneFamily):
    listed = "timm:NAME"

    def recognises(self, name: str) -> bool:
        return name.startswith(PREFIX)

    def build(self, name: str, wanted: Wanted) -> Backbone:
        check_channels(name, wanted.channels)
        return adopted(name, wanted.downloads).backbone(name, wanted)


class Features(nn.Module):
    """A model without its classifier, which pools its features: (n, C, 1, 1)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images)[:, :, None, None]


@lru_cache(maxsize=2)
def adopted(name: str, downloads: bool) -> Adopted:
    """Load the model once per process. It is one stage, so model.trunk=tuned learns all of it."""
    model, facts = _load(name, downloads)
    size = facts["input_size"][1:]
    sizes, features = sizes_taken(name, Features(model), 32, size)
    return Adopted(
        stages=(Stage("features", lambda dropout: Features(copy.deepcopy(model))),),
        features=features,
        tuned_after="input",
        sizes=sizes,
        size=size[0],
        mean=tuple(facts["mean"]),
        std=tuple(facts["std"]),
        digest=fingerprint(model),
    )


def _load(name: str, downloads: bool) -> tuple[nn.Module, Any]:
    try:
        import timm
        import timm.data
    except Exception as error:  # missing, or broken by torchvision
        missing = isinstance(error, ModuleNotFoundError) and error.name == "timm"
        reason = "" if missing else f", which cannot be imported ({str(error).splitlines()[0]})"
        raise UserError(f"model.backbone={name} needs timm{reason}: pip install 'cotrain[timm]'") from error
    try:
        with torch.random.fork_rng(), nullcontext() if downloads else _offline():
            model = timm.create_model(name.removeprefix(PREFIX), pretrained=True, num_classes=0)
        return model.eval().requires_grad_(False), timm.data.resolve_model_data_config(model)
    except Exception as error:  # of the network, the server, the cache or the name
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise UserError(
            f"{name} cannot be built with its pretrained weights ({reason}); timm.list_models(pretrained=True) lists "
            "the names, and weights are downloaded once, where there is a network and you name the model"
        ) from error


@contextmanager
def _offline() -> Iterator[None]:
    """Only weights that are here: a run that somebody else made does not decide what is downloaded."""
    import huggingface_hub.constants as hub

    before, hub.HF_HUB_OFFLINE = hub.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = before
