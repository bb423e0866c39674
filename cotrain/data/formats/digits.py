"""The handwritten digits that come with scikit-learn: 1,797 grey images that need no download."""

import numpy as np
from PIL import Image

from cotrain.data.dataset import Dataset, from_arrays
from cotrain.data.format import ArrayFormat

SIZE = 16
TEST_IMAGES = 500


class Digits(ArrayFormat):
    order = 10
    listed = "digits"

    def load(self, source: str) -> Dataset:
        return load_digits()


def load_digits() -> Dataset:
    """The 8x8 images enlarged to 16x16. The split into 1,297 training and 500 test images is always the same."""
    from sklearn import datasets  # slow to import
    from sklearn.model_selection import train_test_split

    digits = datasets.load_digits()
    coarse = np.round(digits.images * (255 / 16)).astype(np.uint8)
    images = np.stack(
        [np.asarray(Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.BICUBIC)) for image in coarse]
    )
    train, test = train_test_split(
        np.arange(len(images)), test_size=TEST_IMAGES, random_state=0, stratify=digits.target
    )
    labels = digits.target.astype(np.int64)
    return from_arrays(
        images[train],
        labels[train],
        test=(images[test], labels[test]),
        name="digits",
        source="digits",
        layout="scikit-learn's handwritten digits",
        mirror=False,
        recipe="digits",
    )
