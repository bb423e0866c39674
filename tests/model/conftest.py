"""Tiny random models of Hugging Face, in folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

SMALL = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
PATCH = 8


def configs(transformers: Any) -> dict[str, Any]:
    patches = {"image_size": 32, "patch_size": PATCH}
    return {
        "dinov2": transformers.Dinov2Config(**SMALL, **patches),
        "vit": transformers.ViTConfig(**SMALL, **patches),
        "deit": transformers.DeiTConfig(**SMALL, **patches),
        "clip": transformers.CLIPConfig(
            text_config={**SMALL, "vocab_size": 20, "eos_token_id": 1, "bos_token_id": 0, "pad_token_id": 2},
            vision_config={**SMALL, **patches},
            projection_dim=8,
        ),
        "siglip_vision_model": transformers.SiglipVisionConfig(**SMALL, **patches),
        "swin": transformers.SwinConfig(embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4, image_size=32),
        "convnext": transformers.ConvNextConfig(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1]),
        "resnet": transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
        "bert": transformers.BertConfig(**SMALL, vocab_size=20),
    }


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder per kind of model, with weights that are not those of its initialisation where these are zero."""
    transformers = pytest.importorskip("transformers")
    root, made = tmp_path_factory.mktemp("hf"), {}
    torch.manual_seed(0)
    for name, config in configs(transformers).items():
        model = transformers.AutoModel.from_config(config)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.1 * torch.randn_like(weight)
        made[name] = root / name
        model.save_pretrained(made[name])
        (made[name] / "preprocessor_config.json").write_text(json.dumps({"image_mean": MEAN, "image_std": STD}))
    return made
