"""CTAugment: operations against Pillow, bins and rates against plain loops, views as a function of step and memory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from cotrain import recipe_named
from cotrain.augment import PRESETS, ctaugment, normalised, pixels
from cotrain.augment.ctaugment import BINS, OPS, Recipe, draw_policy, draw_probe, initial_rates, render, update_rates
from cotrain.data import DataSettings, Drawing, Source, draw_split, open_data
from cotrain.training.checks import check_trainable
from cotrain.training.experiment import Prepared
from cotrain.training.state import pool_of
from cotrain.types import UserError, Views
from tests.augment.pictures import picture
from tests.trunk.tiny import image_file

CPU = torch.device("cpu")
FILTERS = ["LANCZOS", "BICUBIC", "BILINEAR", "BOX", "HAMMING", "NEAREST"]
LEVELS = [0.0, 0.01, 0.24, 0.5, 0.77, 0.999, 1.0]


def affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=0)


def enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Callable[[Image.Image, float], Image.Image]:
    return lambda image, m: kind(image).enhance(0.1 + 1.9 * m)


def pixel_fill(image: Image.Image) -> int | tuple[int, ...]:
    return 127 if image.mode == "L" else (127, 127, 127)


def middle_cutout(image: Image.Image, m: float) -> Image.Image:
    """Around the middle, where nothing is cut off."""
    side = 1 + int(m * min(image.size) * 0.499)
    left, top = image.width // 2 - side // 2, image.height // 2 - side // 2
    image = image.copy()
    ImageDraw.Draw(image).rectangle((left, top, left + side - 1, top + side - 1), fill=pixel_fill(image))
    return image


def blurred(kernel: ImageFilter.Filter) -> Callable[[Image.Image, float], Image.Image]:
    return lambda image, m: Image.blend(image, image.filter(kernel), m)


def zoomed(image: Image.Image, m: float, resampling: Image.Resampling = Image.Resampling.BICUBIC) -> Image.Image:
    """The middle, of whole pixels."""
    (w, h), share = image.size, 0.25 * m
    left, top, right, bottom = round(share * w), round(share * h), round((1 - share) * w), round((1 - share) * h)
    middle = Image.fromarray(np.asarray(image)[top:bottom, left:right].copy())
    return middle.resize(image.size, resampling)


PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "autocontrast": lambda image, m: Image.blend(image, ImageOps.autocontrast(image), m),
    "blur": blurred(ImageFilter.BLUR()),
    "brightness": enhance(ImageEnhance.Brightness),
    "color": enhance(ImageEnhance.Color),
    "contrast": enhance(ImageEnhance.Contrast),
    "cutout": middle_cutout,
    "equalize": lambda image, m: Image.blend(image, ImageOps.equalize(image), m),
    "identity": lambda image, m: image,
    "invert": lambda image, m: Image.blend(image, ImageOps.invert(image), m),
    "posterize": lambda image, m: ImageOps.posterize(image, 1 + int(7.999 * m)),
    "rescale": zoomed,
    "rotate": lambda image, m: image.rotate(round((2 * m - 1) * 45), Image.Resampling.NEAREST, fillcolor=0),
    "sharpness": enhance(ImageEnhance.Sharpness),
    "shear_x": lambda image, m: affine(image, 1, (2 * m - 1) * 0.3, 0, 0, 1, 0),
    "shear_y": lambda image, m: affine(image, 1, 0, 0, (2 * m - 1) * 0.3, 1, 0),
    "smooth": blurred(ImageFilter.SMOOTH()),
    "solarize": lambda image, m: ImageOps.solarize(image, int(255.999 * m)),
    "translate_x": lambda image, m: affine(image, 1, 0, (2 * m - 1) * 0.3 * image.width, 0, 1, 0),
    "translate_y": lambda image, m: affine(image, 1, 0, 0, 0, 1, (2 * m - 1) * 0.3 * image.height),
}


def recipe(ops: list[int], levels: list[tuple[float, float]], centre: float = 0.5) -> Recipe:
    """For one view."""
    k = len(ops)
    return Recipe(
        np.array([ops]), np.array([levels], float).reshape(1, k, 2), np.full((1, k, 2), -1), np.full((1, k, 2), centre)
    )


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_operation_is_the_direct_call_of_pillow(name: str, channels: int) -> None:
    rng = np.random.default_rng(0)
    changed = 0
    for height, width in [(32, 32), (20, 28), (9, 8)]:
        for kind in ("noise", "slope", "few", "narrow", "constant"):
            image = picture(kind, height, width, channels, rng)
            for m in LEVELS:
                (ours,) = render(image[None], recipe([OPS.index(name)], [(m, 0.2)]))  # 0.2: bicubic
                theirs = PILLOW[name](Image.fromarray(image[..., 0] if channels == 1 else image), m)
                assert np.array_equal(ours, np.asarray(theirs).reshape(image.shape)), (height, kind, m)
                changed += not np.array_equal(ours, image)
    assert (changed == 0) == (name == "identity" or (name == "color" and channels == 1))


def test_there_are_19_operations_and_all_are_carried_out() -> None:
    assert len(OPS) == 19 and set(OPS) == set(PILLOW) == {*ctaugment.OPERATIONS, "cutout", "rescale"}
    assert initial_rates().sum().item() == 16 * 17 + 8 + 17 + 6
    assert BINS[OPS.index("identity")].tolist() == [0, 0]


def test_operations_follow_one_another() -> None:
    image = picture("noise", 16, 16, 3, np.random.default_rng(1))
    ops = [OPS.index("solarize"), OPS.index("translate_x")]
    (both,) = render(image[None], recipe(ops, [(0.3, 0), (0.9, 0)]))
    theirs = PILLOW["translate_x"](PILLOW["solarize"](Image.fromarray(image), 0.3), 0.9)
    assert np.array_equal(both, np.asarray(theirs))


@pytest.mark.parametrize("name", FILTERS)
def test_rescale_uses_each_of_the_six_filters(name: str) -> None:
    number = FILTERS.index(name)
    image = picture("noise", 32, 32, 3, np.random.default_rng(1))
    for method in (number / 6 + 1e-9, (number + 1) / 6 - 1e-9):
        (ours,) = render(image[None], recipe([OPS.index("rescale")], [(0.8, method)]))
        assert np.array_equal(ours, np.asarray(zoomed(Image.fromarray(image), 0.8, Image.Resampling[name])))


def test_the_last_cutout_is_half_the_side_and_cut_off_at_all_borders() -> None:
    image = np.zeros((500, 32, 32, 1), np.uint8)
    rng = np.random.default_rng(0)
    nothing = Recipe(np.zeros((500, 0), int), np.zeros((500, 0, 2)), np.zeros((500, 0, 2), int), np.zeros((500, 0, 2)))
    grey = render(image, ctaugment.then_cutout(nothing, rng))[..., 0] == 127
    rows, columns = grey.any(axis=2).sum(axis=1), grey.any(axis=1).sum(axis=1)
    assert np.array_equal(grey.sum(axis=(1, 2)), rows * columns), "a rectangle"
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (8, 16, 8, 16)
    assert grey.mean() == pytest.approx(0.191, abs=0.01)


def test_other_channels_are_refused() -> None:
    with pytest.raises(ValueError, match="1 or 3 channels, not of 4"):
        render(np.zeros((1, 8, 8, 4), np.uint8), recipe([0], [(0.5, 0)]))


def test_the_policy_draws_all_operations_and_bins_alike_at_first() -> None:
    drawn = draw_policy(initial_rates(), 40000, np.random.default_rng(0))
    counts = np.bincount(drawn.ops.ravel(), minlength=19)
    assert counts == pytest.approx(np.full(19, 80000 / 19), rel=0.08)
    check_levels_lie_in_their_bins(drawn)
    used = np.bincount(drawn.bins[drawn.bins >= 0], minlength=initial_rates().numel()).reshape(19, 2, 17)
    assert np.array_equal(used > 0, initial_rates().numpy() > 0)
    for op in range(19):
        for parameter, bins in enumerate(BINS[op]):
            assert used[op, parameter, :bins] == pytest.approx(np.full(bins, 80000 / 19 / max(bins, 1)), rel=0.3)


def test_the_probe_draws_levels_from_everywhere_whatever_the_rates() -> None:
    drawn = draw_probe(20000, np.random.default_rng(0))
    assert drawn.levels.mean() == pytest.approx(0.5, abs=0.01)
    check_levels_lie_in_their_bins(drawn)


def check_levels_lie_in_their_bins(drawn: Recipe) -> None:
    for op, level, place in zip(
        drawn.ops.ravel()[:2000], drawn.levels.reshape(-1, 2)[:2000], drawn.bins.reshape(-1, 2)[:2000], strict=True
    ):
        for parameter, bins in enumerate(BINS[op]):
            if bins == 0:
                assert place[parameter] == -1
            else:
                where = np.unravel_index(place[parameter], (19, 2, 17))
                assert where == (op, parameter, int(level[parameter] * bins))


def test_bins_below_four_fifths_of_the_best_are_never_drawn_and_others_in_proportion() -> None:
    rates = initial_rates()
    op = OPS.index("posterize")
    rates[:] = 0
    rates[op, 0, :8] = torch.tensor([0.5, 0.4, 0.398, 0.45, 0.0, 0.3, 0.39, 0.2])  # + 0.01 over 0.51; 0.408 is 0.8
    drawn = draw_policy(rates, 60000, np.random.default_rng(0))
    found = drawn.bins[..., 0][drawn.ops == op] - op * 2 * 17
    shares = np.bincount(found, minlength=8) / len(found)
    kept = np.array([0.51, 0.41, 0.408, 0.46, 0, 0, 0, 0])
    kept[2] = 0.408 if shares[2] else 0  # at the very threshold, up to rounding
    assert shares == pytest.approx(kept / kept.sum(), abs=0.02)
    assert not shares[4:].any()
    check_levels_lie_in_their_bins(drawn)  # also where all rates are 0: bins that do not exist are not drawn


def test_a_bin_of_proximity_0_is_dropped_after_about_23_updates() -> None:
    rates, place = initial_rates(), torch.tensor([[[5, -1], [-1, -1]]])
    updates = 0
    while ctaugment.bin_weights(rates.numpy()).reshape(-1)[5] > 0:
        update_rates(rates, place, torch.zeros(1))
        updates += 1
    assert updates == 23
    assert rates.sum() == initial_rates().sum() - 1 + rates.view(-1)[5]


@given(seed=st.integers(0, 10**6), n=st.integers(1, 40))
def test_updates_are_made_one_after_another_and_rates_stay_in_their_range(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    rates = torch.from_numpy(np.where(initial_rates() > 0, rng.random((19, 2, 17)), 0).astype(np.float32))
    rates[rng.random(19) < 0.3] *= 0
    places = torch.from_numpy(draw_probe(n, rng).bins)
    places[places >= 0] %= rng.choice([3, 646])  # few bins: many occur again and again
    close = torch.from_numpy(rng.choice([0.0, 1.0, rng.random()], n))
    expected = rates.flatten().tolist()
    for image in range(n):
        for place in places[image].flatten().tolist():
            if place >= 0:
                expected[place] = 0.99 * expected[place] + 0.01 * close[image].item()
    memory = rates
    update_rates(rates, places, close)
    assert memory.flatten().tolist() == pytest.approx(expected, abs=1e-6)
    assert rates.min() >= 0 and rates.max() <= 1


def test_proximity_is_one_minus_half_the_distance() -> None:
    probabilities = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0.2, 0.5, 0.3]])
    close = ctaugment.proximity(probabilities, torch.tensor([0, 2, 1]))
    assert close.tolist() == pytest.approx([1, 0, 0.5])


def source(views: Views, part: tuple[int, int] = (0, 1)) -> Source:
    digits = open_data("digits")
    split = draw_split(digits, DataSettings(labels=40), seed=0)
    policy = PRESETS["paper"]
    drawing = Drawing(views, labelled=8, unlabelled=12, images=policy, part=part)
    pool = pool_of(digits, split)
    return Source(digits.kind.inputs(pool.unlabelled.numpy()), pool, drawing, CPU)


def poor_rates() -> Tensor:
    """Only the weakest bins are good."""
    rates = initial_rates()
    rates[..., 1:] = 0
    return rates


@pytest.mark.parametrize("kind", ["plain", "cutout"])
def test_views_are_a_function_of_step_and_rates(kind: str) -> None:
    views = Views(weak=1, strong=2, labelled_strong=1, ctaugment=kind)
    rates = poor_rates()
    batch, again, at_first, before = (
        source(views).batch(3, rates),
        source(views).batch(3, rates),
        source(views).batch(3, initial_rates()),
        source(views).batch(3),
    )
    assert torch.equal(rates, poor_rates())
    for name, tensor in vars(batch).items():
        assert torch.equal(tensor, getattr(again, name))
        assert torch.equal(getattr(at_first, name), getattr(before, name))
        assert torch.equal(tensor, getattr(at_first, name)) == (name not in ("strong", "x_strong"))
    assert batch.strong.shape == (2, 12, 1, 16, 16)
    assert batch.x_strong.shape == (1, 8, 1, 16, 16)
    assert batch.probe.shape == (8, 1, 16, 16)
    assert batch.probe_bins.shape == (8, 2, 2)
    assert batch.probe_bins.dtype == torch.int64


def test_a_step_reads_the_rates_that_the_step_before_left() -> None:
    rates = initial_rates()
    ours = source(Views(weak=1, strong=1, ctaugment="plain"))
    for step, batch in enumerate(ours.batches(0, 3, rates)):
        assert torch.equal(batch.strong, ours.batch(step, rates.clone()).strong)
        rates.copy_(poor_rates() if step == 0 else initial_rates())


def test_strong_views_and_probe_are_the_operations_on_weak_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """With identity as the only operation, they are weak views; those of the labelled images are of the same images."""
    monkeypatch.setattr(ctaugment, "OPERATIONS", dict.fromkeys(OPS, lambda image, level: image))
    monkeypatch.setattr(ctaugment, "CUTOUT", -1)
    monkeypatch.setattr(ctaugment, "rescale", lambda image, level, method: image)
    ours = source(Views(weak=1, strong=1, labelled_strong=1, ctaugment="plain"))
    policy = ours.policy
    seen = []
    monkeypatch.setattr("cotrain.data.source.pixels", lambda *args: seen.append(args) or pixels(*args))
    batch = ours.batch(0)
    for views, (images, rows, draw, _) in zip([batch.strong[0], batch.x_strong[0], batch.probe], seen, strict=True):
        assert (draw.shift != 0).any() and draw.ops.shape[1] == 0
        expected = normalised(images, rows, draw, policy, ours.mean, ours.std)
        assert torch.equal(views, expected)
    assert np.array_equal(seen[0][1], batch.unlabelled_rows)
    assert np.array_equal(seen[1][1], batch.labelled_rows)
    assert np.array_equal(seen[2][1], batch.labelled_rows)


def test_each_rank_makes_its_own_rows_of_the_same_draw() -> None:
    views = Views(weak=1, strong=2, labelled_strong=1, ctaugment="cutout")
    whole = source(views).batch(1)
    for rank in range(2):
        part = source(views, (rank, 2)).batch(1)
        assert torch.equal(part.probe_bins, whole.probe_bins)
        for name, axis in {"strong": 1, "x_strong": 1, "probe": 0}.items():
            theirs, ours = getattr(part, name).movedim(axis, 0), getattr(whole, name).movedim(axis, 0)
            assert torch.equal(theirs[rank::2], ours[rank::2])
            assert not theirs[1 - rank :: 2].any()


def test_images_in_a_file_have_the_same_views(tmp_path: Path) -> None:
    ours = source(Views(weak=1, strong=2, labelled_strong=1, ctaugment="cutout"))
    expected = ours.batch(2)
    ours.images = image_file(tmp_path / "images", ours.images.numpy())
    assert all(torch.equal(tensor, getattr(expected, name)) for name, tensor in vars(ours.batch(2)).items())


def test_training_on_other_channels_is_refused_before_it_begins() -> None:
    digits = open_data("digits")
    config = recipe_named("digits").changed({"method": "fixmatch_cta"})
    check_trainable(Prepared(config, digits))
    with pytest.raises(UserError, match="fixmatch_cta uses CTAugment, which needs 1 or 3 channels; the images have 4"):
        check_trainable(Prepared(config, replace(digits, images=digits.images.expand(-1, -1, -1, 4))))


def test_methods_without_it_have_no_probe() -> None:
    batch = source(Views(weak=1, strong=1)).batch(0)
    assert batch.probe.numel() == batch.probe_bins.numel() == 0
