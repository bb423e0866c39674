"""Image models of Hugging Face: `hf:NAME`, or `hf:FOLDER` with config.json and safetensors files.

Vision transformers are cut into their layers, and their features are the class token after the last layer norm. Any
other model that takes `pixel_values` is one stage, and its features are its own pooled output.
"""

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from cotrain.model.adopted import Adopted, sizes_taken
from cotrain.model.family import BackboneFamily, Wanted
from cotrain.model.pretrained import IMAGENET_MEAN, IMAGENET_STD, check_channels
from cotrain.model.stages import Backbone, Stage
from cotrain.model.weights import sha256_of
from cotrain.storage.reading import parse_json, read_bytes
from cotrain.types import UserError

PREFIX = "hf:"
WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
FILES = ["config.json", "preprocessor_config.json", "model*.safetensors", "model.safetensors.index.json"]
LAYERED = ("deit", "dinov2", "dinov2_with_registers", "vit", "vit_msn")  # embeddings, then layers, then a layer norm
LAYERS = ("layers", "encoder.layer")  # where their layers are
ATTENTION = ("eager", "sdpa")  # the implementations of attention that come with transformers and torch
ADAPTER = "adapter_config.json"
POOLER = "pooler."  # weights that many files lack; without them, the tokens are averaged


class HuggingFaceModels(BackboneFamily):
    listed = "hf:NAME"

    def recognises(self, name: str) -> bool:
        return name.startswith(PREFIX)

    def build(self, name: str, wanted: Wanted) -> Backbone:
        check_channels(name, wanted.channels)
        folder = folder_of(name, downloads=wanted.downloads)
        files = weights_files(folder)
        if not files:
            raise UserError(f"{name}: {folder} has no weights (*.safetensors); it holds {_content(folder)}")
        settings = [path for path in (folder / "config.json", folder / "preprocessor_config.json") if path.is_file()]
        digests = tuple(sha256_of(path) for path in [*files, *settings])
        return adopted(name, folder, digests).backbone(name, wanted)


def folder_of(name: str, *, downloads: bool) -> Path:
    """The folder itself, or the one in Hugging Face's cache. What is not there is downloaded, if the user named it."""
    _transformers(name)
    import huggingface_hub

    asked = name.removeprefix(PREFIX)
    folder = Path(asked).expanduser()
    if folder.is_dir():
        return folder
    if asked.count("/") > 1 or asked.startswith((".", "~", "/")):
        raise UserError(f"{name}: there is no folder {folder}")
    reason = "the download has no weights"
    for only_here in (True, False) if downloads else (True,):
        try:
            found = Path(
                huggingface_hub.snapshot_download(
                    asked, allow_patterns=FILES, local_files_only=only_here, etag_timeout=5
                )
            )
        except Exception as error:  # of the network, the server, the cache or the name
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:150]
            continue
        if weights_files(found):
            return found
    raise UserError(
        f"{name} is not in the cache of Hugging Face and cannot be downloaded ({reason}); on a machine with a network: "
        f"hf download {asked} --local-dir FOLDER; then use model.backbone=hf:FOLDER"
        if downloads
        else f"{name}, which the run names, is not in the cache of Hugging Face, and cotrain downloads only models "
        f"that you name; if you trust it: hf download {asked}"
    )


def weights_files(folder: Path) -> list[Path]:
    return next((found for pattern in WEIGHTS if (found := sorted(folder.glob(pattern)))), [])


def _content(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"


def _transformers(name: str) -> Any:
    try:
        import transformers
    except Exception as error:  # missing, or broken by another package
        reason = "" if isinstance(error, ModuleNotFoundError) else f" ({str(error).splitlines()[0]})"
        raise UserError(f"model.backbone={name} needs transformers{reason}: pip install 'cotrain[hf]'") from error
    return transformers


@lru_cache(maxsize=2)
def adopted(name: str, folder: Path, digests: tuple[str, ...]) -> Adopted:
    """Load the model once per process. Stages are copies of its parts."""
    with torch.random.fork_rng():  # what the file lacks is drawn
        model, config, pooled = _load(name, folder)
    mean, std = pixel_statistics(name, folder)
    multiple, trained_on = _side(config, "patch_size"), _side(config, "image_size")
    stages, tuned_after = _stages(model, config, pooled)
    net = nn.Sequential(*(stage.build(0.0) for stage in stages)).eval()
    sizes, features = sizes_taken(name, net, multiple[0] if multiple else 1, trained_on)
    return Adopted(
        stages=stages,
        features=features,
        tuned_after=tuned_after,
        sizes=sizes,
        size=trained_on[0] if trained_on else 224,
        mean=mean,
        std=std,
        digest=hashlib.sha256(" ".join(digests).encode()).hexdigest(),
    )


def _load(name: str, folder: Path) -> tuple[nn.Module, Any, bool]:
    """The model, its config, and whether the file holds the weights of its pooler."""
    transformers = _transformers(name)
    for path in weights_files(folder):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise UserError(f"{name}: {path} is damaged ({str(error).splitlines()[0]}); download it again") from error
    try:
        with _quiet(transformers):
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            config = getattr(config, "vision_config", config)  # the image part of models such as CLIP
            _check_is_data(name, folder, config)
            takes = transformers.MODEL_MAPPING[type(config)].main_input_name
            if takes != "pixel_values":
                raise UserError(f"{name} is a {config.model_type} model, which takes {takes} and not images")
            model, found = transformers.AutoModel.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{name} cannot be loaded from {folder} as an image model ({reason})") from error
    missing = sorted(found["missing_keys"])
    if needed := [key for key in missing if not key.startswith(POOLER)]:
        raise UserError(f"{name}: the weights in {folder} are not those of its config.json: {needed[0]} is missing")
    return model.eval().requires_grad_(False), config, not missing


def _check_is_data(name: str, folder: Path, config: Any) -> None:
    """Refuse files that make transformers load code or another model: kernels of a hub, quantisers, adapters."""
    attention = getattr(config, "_attn_implementation", None)
    if attention not in (None, *ATTENTION):
        raise UserError(f"{name}: {folder / 'config.json'} asks for the attention {attention!r}, which is not run")
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(f"{name}: {folder / 'config.json'} has a quantization_config; give a model without one")
    if (folder / ADAPTER).exists():
        raise UserError(f"{name}: {folder / ADAPTER} makes it an adapter of another model; merge the two and save that")


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without progress bars, and without reports on weights that are left out."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def pixel_statistics(name: str, folder: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of pixels in [0, 1], as preprocessor_config.json has them; otherwise ImageNet's."""
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return IMAGENET_MEAN, IMAGENET_STD
    try:
        facts = parse_json(read_bytes(path))
        scale = 255 * facts.get("rescale_factor", 1 / 255) if facts.get("do_rescale", True) else 255.0
        mean, std = facts.get("image_mean", IMAGENET_MEAN), facts.get("image_std", IMAGENET_STD)
        if not facts.get("do_normalize", True):
            mean, std = (0.0,) * 3, (1.0,) * 3
        (red, green, blue), (of_red, of_green, of_blue) = mean, std
        return (red / scale, green / scale, blue / scale), (of_red / scale, of_green / scale, of_blue / scale)
    except (AttributeError, OSError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"{name}: {path} does not say how pixels are normalised ({error})") from error


def _side(config: Any, key: str) -> tuple[int, int] | None:
    value = getattr(config, key, None)
    if isinstance(value, int):
        return value, value
    return (value[0], value[1]) if isinstance(value, list | tuple) and len(value) == 2 else None


def _stages(model: nn.Module, config: Any, pooled: bool) -> tuple[tuple[Stage, ...], str]:
    """The stages up to the features, and the last one that model.trunk=tuned leaves as it is."""
    layers = _layers(model) if config.model_type in LAYERED else None
    if layers is None:
        whole = Stage("backbone", lambda dropout: Whole(copy.deepcopy(model), pooled))
        return (whole, Stage("features", lambda dropout: Average())), "input"
    last = len(layers) - max(1, len(layers) // 4)  # a quarter of the layers is tuned
    stages = (
        Stage("embeddings", lambda dropout: Embeddings(copy.deepcopy(model.get_submodule("embeddings")))),
        *(Stage(f"layer{number}", _layer(layer)) for number, layer in enumerate(layers, start=1)),
        Stage("features", lambda dropout: ClassToken(copy.deepcopy(model.get_submodule("layernorm")))),
    )
    return stages, stages[last].name


def _layers(model: nn.Module) -> list[nn.Module] | None:
    for place in LAYERS:
        try:
            return list(model.get_submodule(place).children())
        except AttributeError:  # elsewhere in this version of transformers
            continue
    return None


def _layer(layer: nn.Module) -> Callable[[float], nn.Module]:
    return lambda dropout: Layer(copy.deepcopy(layer))


def as_maps(tokens: Tensor) -> Tensor:
    """(n, T, C) -> (n, C, T, 1), which is a shape of features."""
    return tokens.transpose(1, 2).unsqueeze(3)


def as_tokens(maps: Tensor) -> Tensor:
    return maps.squeeze(3).transpose(1, 2)


def _any_size(module: nn.Module) -> dict[str, bool]:
    """Some models interpolate their position embeddings only if they are asked to."""
    asked = "interpolate_pos_encoding"
    return {asked: True} if asked in inspect.signature(module.forward).parameters else {}


class Embeddings(nn.Module):
    """Images -> tokens."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        self.embeddings, self.asked = embeddings, _any_size(embeddings)

    def forward(self, images: Tensor) -> Tensor:
        return as_maps(self.embeddings(images, **self.asked))


class Layer(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, maps: Tensor) -> Tensor:
        tokens = self.layer(as_tokens(maps))
        return as_maps(tokens[0] if isinstance(tokens, tuple) else tokens)


class ClassToken(nn.Module):
    """The first token after the last layer norm."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, maps: Tensor) -> Tensor:
        return as_maps(self.norm(as_tokens(maps[:, :, :1])))


class Whole(nn.Module):
    """A model that is not cut: images -> its pooled output, or its last features or tokens, to be averaged."""

    def __init__(self, model: nn.Module, pooled: bool) -> None:
        super().__init__()
        self.model, self.pooled, self.asked = model, pooled, _any_size(model)

    def forward(self, images: Tensor) -> Tensor:
        output = self.model(pixel_values=images, **self.asked)
        pooled = output.get("pooler_output") if self.pooled else None
        if pooled is not None:
            return pooled.flatten(1)[:, :, None, None]
        last = output["last_hidden_state"]
        return as_maps(last) if last.ndim == 3 else last


class Average(nn.Module):
    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean(dim=(2, 3), keepdim=True)
