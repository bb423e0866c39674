"""Models of timm, by a stand-in for timm: the real one needs torchvision, which the CPU build of torch lacks."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from cotrain import Config, UserError
from cotrain.model import backbone as named
from cotrain.model.families import timm_models
from cotrain.networks import build_network, build_trunk

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


class FixedSize(nn.Module):
    """As a vision transformer of timm: it takes images of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * 16 * 24, 7)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.shape[1:] == (3, 16, 24) or self._refuse(images)
        return self.fc(images.flatten(1))

    def _refuse(self, images: torch.Tensor) -> bool:
        raise RuntimeError(f"Input height ({images.shape[2]}) doesn't match model (16).")


def create_model(name: str, *, pretrained: bool, num_classes: int) -> nn.Module:
    assert pretrained and num_classes == 0
    torch.manual_seed(5)
    made = {
        "convolutional": lambda: nn.Sequential(nn.Conv2d(3, 5, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        "transformer": FixedSize,
        "with_a_map": lambda: nn.Conv2d(3, 5, 3),
    }
    if name not in made:
        raise RuntimeError(f"Unknown model ({name})\nsee the list")
    return made[name]()


def resolve_model_data_config(model: nn.Module) -> dict[str, object]:
    return {"input_size": (3, 16, 24), "mean": MEAN, "std": STD, "interpolation": "bicubic"}


@pytest.fixture(autouse=True)
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    package, data = ModuleType("timm"), ModuleType("timm.data")
    vars(package).update(create_model=create_model, data=data, __path__=[])
    vars(data).update(resolve_model_data_config=resolve_model_data_config)
    monkeypatch.setitem(sys.modules, "timm", package)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    timm_models.adopted.cache_clear()


@pytest.mark.parametrize(("name", "features", "size"), [("convolutional", 5, (40, 40)), ("transformer", 7, (16, 24))])
def test_features_are_those_of_the_model(name: str, features: int, size: tuple[int, int]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, *size, 3)).astype(np.uint8)
    config = Config().changed({"model.backbone": f"timm:{name}", "model.enlarge": 1})
    state = torch.random.get_rng_state()
    trunk = build_trunk(config, 2, (*size, 3))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert trunk is not None and trunk.shape == (features, 1, 1)
    resized = (32, 32) if name == "convolutional" else size
    pixels = (torch.from_numpy(images) / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
    expected = nn.functional.interpolate(pixels.permute(0, 3, 1, 2), resized, mode="bilinear", antialias=True)
    with torch.inference_mode():
        computed = trunk.net(torch.from_numpy(images)).flatten(1)
        torch.testing.assert_close(
            computed, create_model(name, pretrained=True, num_classes=0)(expected), atol=1e-4, rtol=1e-4
        )
    assert build_network(config, 2, 3)(torch.zeros(4, features, 1, 1)).shape == (3, 4, 2)


def test_models_of_one_size_get_images_of_that_size() -> None:
    stage = named("timm:transformer", channels=1, classes=2, side=128).stages[0].build(0.0)
    assert stage(torch.zeros(1, 1, 90, 50)).shape == (1, 3, 16, 24)


def test_what_cannot_be_used_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, expected: str, channels: int = 3) -> None:
        with pytest.raises(UserError, match=expected) as caught:
            named(name, channels=channels, classes=2)
        assert "\n" not in str(caught.value)

    refused("timm:nothing", r"timm:nothing cannot be built .*\(RuntimeError: Unknown model \(nothing\)\)")
    refused("timm:with_a_map", "timm:with_a_map does not turn images into features")
    refused("timm:convolutional", "takes 1 or 3 channels; these have 5", channels=5)
    monkeypatch.setitem(sys.modules, "timm.data", None)
    refused("timm:convolutional", r"needs timm, which cannot be imported \(.*\): pip install 'cotrain\[timm\]'")
    monkeypatch.delitem(sys.modules, "timm.data")
    monkeypatch.setitem(sys.modules, "timm", None)
    refused("timm:convolutional", r"needs timm: pip install 'cotrain\[timm\]'$")
