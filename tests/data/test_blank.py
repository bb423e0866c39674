from pathlib import Path

import numpy as np

from cotrain import from_arrays, open_data
from cotrain.audit.blank import TINY, blank_images, tiny_files
from tests.data.photos import save


def test_blank_images_are_those_of_one_colour() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 8, 8, 3)).astype(np.uint8)
    images[1] = [200, 10, 10]  # one colour
    images[3] = 128 + rng.integers(0, 3, (8, 8, 3))  # faint noise
    images[4] = 0
    images[4, :4, :, 2] = 255  # blue above black
    dataset = from_arrays(images, np.array([0, 1, 0, 1, 0, 1]))
    assert blank_images(dataset, np.arange(6)).tolist() == [1, 3]
    assert blank_images(dataset, np.empty(0, np.int64)).tolist() == []


def test_files_with_a_short_side_are_counted(tmp_path: Path) -> None:
    sizes = {"wide": (TINY - 1, 40), "tall": (40, TINY - 1), "just": (TINY, TINY), "large": (40, 40)}
    for name, size in sizes.items():
        save(tmp_path / "cat" / f"{name}.png", size)
        save(tmp_path / "dog" / f"{name}.png", size)
    assert tiny_files(open_data(tmp_path)) == 4
