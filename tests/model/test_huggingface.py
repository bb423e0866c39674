"""Image models of Hugging Face, as tiny random ones in folders: what transformers computes is the reference."""

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import cotrain
from cotrain import Backbone, Config, Dataset, UserError, from_arrays
from cotrain.model import backbone as named
from cotrain.networks import build_trunk
from cotrain.trunk.runtime import compiled

# Imported by the tests that need it: it takes seconds, and every worker collects this file.
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
]

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)  # of the folders


def build(folder: Path, channels: int = 3, side: int = 32) -> Backbone:
    return named(f"hf:{folder}", channels=channels, classes=2, side=side)


def net_of(backbone: Backbone) -> nn.Module:
    """Everything up to the features; there are no heads after them here."""
    assert backbone.stages[-1].name == "features"
    return nn.Sequential(*(stage.build(0.0) for stage in backbone.stages)).eval()


@torch.inference_mode()
def reference(folder: Path, images: torch.Tensor) -> torch.Tensor:
    """The features as transformers computes them."""
    import transformers

    name = folder.name
    if name == "clip":
        clip = transformers.CLIPModel.from_pretrained(folder).eval()
        return clip.vision_model(images, interpolate_pos_encoding=True).pooler_output
    model = transformers.AutoModel.from_pretrained(folder).eval()
    if name in ("vit", "deit"):
        return model(images, interpolate_pos_encoding=True).last_hidden_state[:, 0]
    if name == "dinov2":
        return model(images).last_hidden_state[:, 0]
    if name == "siglip_vision_model":
        return model(images, interpolate_pos_encoding=True).pooler_output
    return model(images).pooler_output.flatten(1)


@pytest.mark.parametrize("name", ["dinov2", "vit", "deit", "clip", "siglip_vision_model", "swin", "convnext", "resnet"])
@pytest.mark.parametrize("size", [(32, 32), (40, 64)])
def test_features_are_those_of_transformers(folders: dict[str, Path], name: str, size: tuple[int, int]) -> None:
    images = torch.randn(2, 3, *size)
    backbone = build(folders[name])
    net = net_of(backbone)
    sized = net[0](images)
    assert sized.shape[2:] == size
    with torch.inference_mode():
        features = net(images)
    assert features.shape == (2, 16, 1, 1)
    torch.testing.assert_close(features.flatten(1), reference(folders[name], sized), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["dinov2", "vit"])
def test_transformers_are_cut_into_layers(folders: dict[str, Path], name: str) -> None:
    backbone = build(folders[name])
    layers = [f"layer{number}" for number in range(1, 5)]
    assert [stage.name for stage in backbone.stages] == ["input", "embeddings", *layers, "features"]
    assert backbone.pretrained is not None and backbone.pretrained.tuned_after == "layer3"
    tokens = nn.Sequential(*(stage.build(0.0) for stage in backbone.stages[:4]))(torch.zeros(2, 3, 32, 32))
    assert tokens.shape == (2, 16, 17, 1), "16 patches and the class token"


def test_other_models_are_one_stage_and_load_silently(folders, tmp_path: Path, capfd) -> None:
    folder = shutil.copytree(folders["resnet"], tmp_path / "resnet")
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0.1, 0.2, 0.3]}')
    assert [stage.name for stage in build(folder).stages] == ["input", "backbone", "features"]
    assert capfd.readouterr() == ("", "")


def test_without_a_trained_pooler_tokens_are_averaged(folders: dict[str, Path], tmp_path: Path) -> None:
    """As in files that were saved from a model with another head."""
    import transformers

    folder = shutil.copytree(folders["swin"], tmp_path / "swin")
    model = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    images = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(
            net_of(build(folder))(images).flatten(1), model(images).last_hidden_state.mean(dim=1), atol=1e-4, rtol=1e-4
        )
    folder = shutil.copytree(folders["vit"], tmp_path / "vit")
    weights = load_file(folder / "model.safetensors")
    save_file(
        {key: tensor for key, tensor in weights.items() if "pooler" not in key},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    state = torch.random.get_rng_state()
    features = net_of(build(folder))(images)
    assert torch.equal(torch.random.get_rng_state(), state), "loading draws nothing from the run's random numbers"
    torch.testing.assert_close(features, net_of(build(folders["vit"]))(images))


@pytest.mark.parametrize(
    ("size", "side", "expected"),
    [((8, 8), 32, (32, 32)), ((50, 102), 32, (48, 104)), ((10, 20), 36, (32, 72)), ((64, 64), 32, (64, 64))],
)
def test_sides_become_multiples_of_the_patch(folders: dict[str, Path], size, side: int, expected) -> None:
    scaled = build(folders["dinov2"], side=side).stages[0].build(0.0)(torch.zeros(1, 3, *size))
    assert scaled.shape[2:] == expected


def test_images_that_are_too_small_are_refused(folders: dict[str, Path]) -> None:
    scale = build(folders["convnext"], side=8).stages[0].build(0.0)
    with pytest.raises(UserError, match=r"images of 20x90 are too small for hf:.*: set model.enlarge to 32 or more"):
        scale(torch.zeros(1, 3, 20, 90))
    assert build(folders["convnext"], side=32).stages[0].build(0.0)(torch.zeros(1, 3, 20, 90)).shape[2:] == (32, 144)


def test_weights_may_be_in_several_files(folders: dict[str, Path], tmp_path: Path) -> None:
    import transformers

    transformers.AutoModel.from_pretrained(folders["dinov2"]).save_pretrained(tmp_path, max_shard_size="10KB")
    assert len([*tmp_path.glob("model-*.safetensors")]) > 1
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(net_of(build(tmp_path))(images), net_of(build(folders["dinov2"]))(images))
    next(tmp_path.glob("model-*.safetensors")).unlink()
    with pytest.raises(UserError, match="cannot be loaded"):
        build(tmp_path)


def test_pixels_are_normalised_as_the_folder_says(folders: dict[str, Path], tmp_path: Path) -> None:
    pretrained = build(folders["dinov2"]).pretrained
    assert pretrained is not None and (pretrained.mean, pretrained.std, pretrained.size) == (MEAN, STD, 32)
    folder = shutil.copytree(folders["dinov2"], tmp_path / "other")
    (folder / "preprocessor_config.json").unlink()
    assert build(folder).pretrained.mean == (0.485, 0.456, 0.406)
    half = {"image_mean": [1, 1, 1], "image_std": [1, 1, 1], "rescale_factor": 1 / 127.5}
    (folder / "preprocessor_config.json").write_text(json.dumps(half))
    assert build(folder).pretrained.mean == pytest.approx((0.5, 0.5, 0.5))
    assert build(folder).pretrained.std == pytest.approx((0.5, 0.5, 0.5))
    assert build(folder).pretrained.digest != pretrained.digest
    (folder / "preprocessor_config.json").write_text('{"image_mean": 3}')
    with pytest.raises(UserError, match=r"preprocessor_config.json does not say how pixels are normalised"):
        build(folder)


def config_of(folder: Path, **changes: object) -> Config:
    return Config().changed(
        {
            "model.backbone": f"hf:{folder}",
            "model.enlarge": 32,
            **{f"model.{key}": each for key, each in changes.items()},
        }
    )


def test_grey_images_are_the_same_images_in_colour(folders: dict[str, Path]) -> None:
    grey = torch.randint(0, 256, (2, 24, 24, 1), dtype=torch.uint8)
    config = config_of(folders["dinov2"])
    one, three = build_trunk(config, 2, (24, 24, 1)), build_trunk(config, 2, (24, 24, 3))
    assert one is not None and three is not None
    torch.testing.assert_close(one.net(grey), three.net(grey.expand(-1, -1, -1, 3)), atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("quick_exports")
@pytest.mark.parametrize("trunk", ["frozen", "tuned"])
def test_onnxruntime_computes_the_same(folders: dict[str, Path], trunk: str) -> None:
    built = build_trunk(config_of(folders["dinov2"], trunk=trunk), 2, (42, 32, 3))
    assert built is not None and built.shape == {"frozen": (16, 1, 1), "tuned": (16, 21, 1)}[trunk]
    images = np.random.default_rng(0).integers(0, 256, (3, 42, 32, 3)).astype(np.uint8)
    np.testing.assert_allclose(
        compiled(built, "onnxruntime")(images), compiled(built, "torch")(images), atol=1e-3, rtol=1e-3
    )


def photos() -> Dataset:
    rng, labels = np.random.default_rng(0), np.arange(60) % 2
    images = rng.integers(0, 100, (60, 16, 16, 3)).astype(np.uint8)
    images[labels == 1, :8] += 150
    return from_arrays(images[:40], labels[:40], test=(images[40:], labels[40:]), name="photos")


@pytest.mark.parametrize("trunk", ["frozen", "tuned"])
def test_a_run_is_trained_loaded_and_predicts(
    tmp_path: Path, folders: dict[str, Path], tiny: Config, trunk: str
) -> None:
    changes = {"optim.steps": 3, "bank.weak": 1, "bank.strong": 1, "run.runtime": "torch"}
    model = {"model.backbone": f"hf:{folders['dinov2']}", "model.enlarge": 32, "model.trunk": trunk}
    fitted = cotrain.fit(photos(), out=tmp_path / "run", config=tiny.changed({**changes, **model}))
    images = photos().images[:5]
    loaded = cotrain.load(fitted.folder).predict(images).probabilities
    np.testing.assert_array_equal(loaded, fitted.model.predict(images).probabilities)


def test_a_folder_whose_weights_have_changed_is_refused(tmp_path: Path, folders: dict[str, Path], tiny: Config) -> None:
    folder = tmp_path / "dinov2"
    shutil.copytree(folders["dinov2"], folder)
    changes = {"optim.steps": 1, "bank.weak": 1, "bank.strong": 1, "run.runtime": "torch", "model.enlarge": 32}
    config = tiny.changed({**changes, "model.backbone": f"hf:{folder}"})
    fitted = cotrain.fit(photos(), out=tmp_path / "run", config=config)
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    tensors[min(tensors)] += 1
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(UserError, match=f"hf:{re.escape(str(folder))} has other weights than when .*run was trained"):
        cotrain.load(fitted.folder)
