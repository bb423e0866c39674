"""CTAugment (Berthelot et al., ICLR 2020), as released with FixMatch: strong views of learned strength.

Every operation has one or two parameters, and every parameter's range [0, 1] is divided into bins. The rate of a bin
measures how well the averaged network still recognises labelled images that were changed that much; bins with low rates
are not drawn. The rates are a tensor in the method's memory. As in `policy.py`, all randomness is in a `Recipe`, drawn
with vectorised numpy from one generator. `render` only applies it, image by image with Pillow, or with numpy where the
result is bit-exact and Pillow would build its lookup tables in Python, which is several times slower.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageEnhance, ImageFilter
from torch import Tensor, nn

from cotrain.types import Batch

OPS = (
    "autocontrast",
    "blur",
    "brightness",
    "color",
    "contrast",
    "cutout",
    "equalize",
    "identity",
    "invert",
    "posterize",
    "rescale",
    "rotate",
    "sharpness",
    "shear_x",
    "shear_y",
    "smooth",
    "solarize",
    "translate_x",
    "translate_y",
)
CUTOUT = OPS.index("cutout")
DEPTH = 2  # operations per view
MOST_BINS = 17
_BINS = {"identity": (0, 0), "posterize": (8, 0), "rescale": (17, 6)}
BINS = np.array([_BINS.get(name, (MOST_BINS, 0)) for name in OPS])  # (ops, 2) bins per parameter; 0: no such parameter
EXISTS = np.arange(MOST_BINS) < BINS[..., None]  # (ops, 2, bins)
DECAY, FLOOR, THRESHOLD = 0.99, 0.01, 0.8
LEVELS = np.arange(256)
FILL = 127

RESAMPLING = (
    Image.Resampling.LANCZOS,
    Image.Resampling.BICUBIC,
    Image.Resampling.BILINEAR,
    Image.Resampling.BOX,
    Image.Resampling.HAMMING,
    Image.Resampling.NEAREST,
)


@dataclass(frozen=True)
class Recipe:
    """All random decisions for n views with k operations each."""

    ops: NDArray[np.int64]  # (n, k) indices into OPS
    levels: NDArray[np.float64]  # (n, k, 2) values of both parameters, in [0, 1]; ignored if there is no parameter
    bins: NDArray[np.int64]  # (n, k, 2) their indices in the flattened rates; -1: no parameter
    centres: NDArray[np.float64]  # (n, k, 2) column and row of a cutout, as fractions of the image

    def __len__(self) -> int:
        return len(self.ops)

    def __getitem__(self, views: slice) -> "Recipe":
        return Recipe(**{field.name: getattr(self, field.name)[views] for field in fields(self)})


def initial_rates() -> Tensor:
    """(operations, 2 parameters, 17 bins): 1 in every bin; bins that an operation does not have are always 0."""
    return torch.from_numpy(EXISTS.astype(np.float32))


def draw_policy(rates: Tensor, n: int, rng: np.random.Generator) -> Recipe:
    """For training: operations drawn uniformly, with levels from bins with high rates."""
    ops = rng.integers(len(OPS), size=(n, DEPTH))
    cumulated = bin_weights(rates.cpu().numpy()).cumsum(axis=-1)
    cumulated /= np.maximum(cumulated[..., -1:], FLOOR)  # ends at exactly 1, so that no bin of weight 0 is drawn
    bins = (rng.random((n, DEPTH, 2, 1)) >= cumulated[ops]).sum(axis=-1)
    levels = (bins + rng.random(bins.shape)) / BINS[ops].clip(min=1)
    return _recipe(ops, levels, bins, rng)


def draw_probe(n: int, rng: np.random.Generator) -> Recipe:
    """For learning the rates: levels drawn from the whole range."""
    ops = rng.integers(len(OPS), size=(n, DEPTH))
    levels = rng.random((n, DEPTH, 2))
    return _recipe(ops, levels, (levels * BINS[ops]).astype(np.int64), rng)


def then_cutout(recipe: Recipe, rng: np.random.Generator) -> Recipe:
    """The same recipe, followed by the largest cutout."""
    n = len(recipe)
    return Recipe(
        ops=np.hstack([recipe.ops, np.full((n, 1), CUTOUT)]),
        levels=np.hstack([recipe.levels, np.ones((n, 1, 2))]),
        bins=np.hstack([recipe.bins, np.full((n, 1, 2), -1)]),
        centres=np.hstack([recipe.centres, rng.random((n, 1, 2))]),
    )


def bin_weights(rates: NDArray[np.float32]) -> NDArray[np.float64]:
    """How often each bin is drawn relative to the best bin of its parameter; 0 for bins far below the best."""
    weights = np.where(EXISTS, rates.astype(np.float64) + FLOOR, 0)
    weights /= np.maximum(weights.max(axis=-1, keepdims=True), FLOOR)
    return np.where(weights < THRESHOLD, 0, weights)


def _recipe(
    ops: NDArray[np.int64], levels: NDArray[np.float64], bins: NDArray[np.int64], rng: np.random.Generator
) -> Recipe:
    places = (2 * ops[..., None] + [0, 1]) * MOST_BINS + bins
    return Recipe(ops, levels, np.where(BINS[ops] > 0, places, -1), rng.random((*ops.shape, 2)))


def proximity(probabilities: Tensor, labels: Tensor) -> Tensor:
    """(n, C) and (n,) -> (n,): 1 if all probability is on the label, 0 if none is."""
    target = F.one_hot(labels, probabilities.shape[-1])
    return 1 - 0.5 * (probabilities - target).abs().sum(dim=-1)


def update_rates(rates: Tensor, probe_bins: Tensor, proximity: Tensor) -> None:
    """In place: rate <- 0.99 rate + 0.01 proximity, for every bin (n, k, 2) used by one of the n images.

    Equivalent to sequential updates in batch order, but vectorised: of m updates of one bin, the j-th has weight
    0.01 * 0.99^(m - j).
    """
    bins = probe_bins.flatten()
    values = proximity.to(rates.dtype)[:, None].expand(len(proximity), probe_bins[0].numel()).flatten()
    used = F.one_hot(bins + 1, rates.numel() + 1)[:, 1:].to(rates.dtype)  # (updates, bins); -1: no bin
    later = (used.flip(0).cumsum(dim=0).flip(0) - used) * used  # number of later updates of the same bin
    parts = used * DECAY**later * (1 - DECAY) * values[:, None]
    flat = rates.view(-1)
    flat.mul_(DECAY ** used.sum(dim=0)).add_(parts.sum(dim=0)).clamp_(0, 1)


@torch.no_grad()
def learn_rates(rates: Tensor, teacher: nn.Module, batch: Batch) -> None:
    """Update the rates in place for one step, from the averaged network's predictions on the probe."""
    (logits,) = teacher(batch.probe)
    close = proximity(logits.float().softmax(dim=-1), batch.y)
    update_rates(rates, batch.probe_bins, close)


def render(images: NDArray[np.uint8], recipe: Recipe) -> NDArray[np.uint8]:
    """Views of (n, H, W, C) images with 1 or 3 channels."""
    channels = images.shape[3]
    if channels not in (1, 3):
        raise ValueError(f"CTAugment changes images of 1 or 3 channels, not of {channels}")
    mode, out = "L" if channels == 1 else "RGB", np.empty_like(images, order="C")
    decisions = zip(recipe.ops.tolist(), recipe.levels.tolist(), recipe.centres.tolist(), strict=True)
    for i, (ops, levels, centres) in enumerate(decisions):
        picture = _picture(images[i], mode)
        for op, (level, second), centre in zip(ops, levels, centres, strict=True):
            if op == CUTOUT:
                picture = cut_out(picture, level, centre)
            elif OPS[op] == "rescale":
                picture = rescale(picture, level, second)
            else:
                picture = OPERATIONS[OPS[op]](picture, level)
        out[i] = _pixels(picture)
    return out


def _picture(pixels: NDArray[np.uint8], mode: str) -> Image.Image:
    return Image.frombytes(mode, pixels.shape[1::-1], pixels.tobytes())


def _pixels(picture: Image.Image) -> NDArray[np.uint8]:
    return np.frombuffer(bytearray(picture.tobytes()), np.uint8).reshape(picture.height, picture.width, -1)


def cut_out(picture: Image.Image, level: float, centre: list[float]) -> Image.Image:
    """Paint a mid-grey square of up to half the shorter side around a pixel, clipped at the borders."""
    width, height = picture.size
    side = 1 + int(level * min(width, height) * 0.499)
    left, top = int(centre[0] * width) - side // 2, int(centre[1] * height) - side // 2
    box = (max(0, left), max(0, top), min(width, left + side), min(height, top + side))
    picture = picture.copy()
    picture.paste(FILL if picture.mode == "L" else (FILL, FILL, FILL), box)
    return picture


def rescale(picture: Image.Image, level: float, method: float) -> Image.Image:
    """Enlarge the centre, with one of six filters."""
    width, height = picture.size
    share = 0.25 * level
    middle = picture.crop((share * width, share * height, (1 - share) * width, (1 - share) * height))
    return middle.resize(picture.size, RESAMPLING[min(int(method * len(RESAMPLING)), len(RESAMPLING) - 1)])


Operation = Callable[[Image.Image, float], Image.Image]


def _blended(change: Callable[[Image.Image], Image.Image]) -> Operation:
    return lambda picture, level: Image.blend(picture, change(picture), level)


def _on_channels(change: Callable[[NDArray[np.uint8]], NDArray[np.uint8]]) -> Callable[[Image.Image], Image.Image]:
    def changed(picture: Image.Image) -> Image.Image:
        pixels = _pixels(picture)
        return _picture(np.stack([change(channel) for channel in np.moveaxis(pixels, 2, 0)], axis=2), picture.mode)

    return changed


def _autocontrast(channel: NDArray[np.uint8]) -> NDArray[np.uint8]:
    low, high = int(channel.min()), int(channel.max())
    if high <= low:
        return channel
    scale = 255.0 / (high - low)
    return np.clip(LEVELS * scale - low * scale, 0, 255).astype(np.uint8)[channel]


def _equalize(channel: NDArray[np.uint8]) -> NDArray[np.uint8]:
    counts = np.bincount(channel.ravel(), minlength=256)
    step = (channel.size - counts[channel.max()]) // 255
    if step == 0:
        return channel
    below = np.concatenate([[0], counts.cumsum()[:-1]])
    return np.minimum((step // 2 + below) // step, 255).astype(np.uint8)[channel]


def _posterized(picture: Image.Image, level: float) -> Image.Image:
    bits = 1 + int(7.999 * level)
    return _picture(_pixels(picture) & (256 - 2 ** (8 - bits)), picture.mode)


def _solarized(picture: Image.Image, level: float) -> Image.Image:
    pixels = _pixels(picture)
    return _picture(np.where(pixels < int(255.999 * level), pixels, 255 - pixels), picture.mode)


def _enhanced(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda picture, level: kind(picture).enhance(0.1 + 1.9 * level)


def _moved(a: float, b: float, c: float, d: float, e: float, f: float, picture: Image.Image) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, (a, b, c, d, e, f))


def _signed(level: float) -> float:
    """Map [0, 1] to [-0.3, 0.3]."""
    return (2 * level - 1) * 0.3


OPERATIONS: dict[str, Operation] = {
    "autocontrast": _blended(_on_channels(_autocontrast)),
    "blur": _blended(lambda picture: picture.filter(ImageFilter.BLUR)),
    "brightness": _enhanced(ImageEnhance.Brightness),
    "color": _enhanced(ImageEnhance.Color),
    "contrast": _enhanced(ImageEnhance.Contrast),
    "equalize": _blended(_on_channels(_equalize)),
    "identity": lambda picture, level: picture,
    "invert": _blended(ImageChops.invert),
    "posterize": _posterized,
    "rotate": lambda picture, level: picture.rotate(round((2 * level - 1) * 45)),
    "sharpness": _enhanced(ImageEnhance.Sharpness),
    "shear_x": lambda picture, level: _moved(1, _signed(level), 0, 0, 1, 0, picture),
    "shear_y": lambda picture, level: _moved(1, 0, 0, _signed(level), 1, 0, picture),
    "smooth": _blended(lambda picture: picture.filter(ImageFilter.SMOOTH)),
    "solarize": _solarized,
    "translate_x": lambda picture, level: _moved(1, 0, _signed(level) * picture.width, 0, 1, 0, picture),
    "translate_y": lambda picture, level: _moved(1, 0, 0, 0, 1, _signed(level) * picture.height, picture),
}
