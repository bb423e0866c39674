"""What each kind of data answers, so that nobody else asks which kind it is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cotrain import from_arrays
from cotrain.data import from_features, open_data
from cotrain.data.bank import Bank
from cotrain.data.inputs import BankInputs, FeatureInputs, ImageInputs
from cotrain.types import UserError

LABELS = np.arange(8) % 2
IMAGES = from_arrays(np.zeros((8, 4, 4, 3), np.uint8), LABELS, name="images")
TABLE = from_features(np.arange(24.0).reshape(8, 3), LABELS, name="table")
EVERY = np.arange(8)


def banked(shape: tuple[int, int, int]) -> Bank:
    features = np.zeros((len(EVERY), *shape), np.float16)
    return Bank(
        Path("nowhere"), EVERY.astype(np.uint64), shape, weak=1, strong=1, read=lambda name, rows: features[rows]
    )


def test_images() -> None:
    kind = IMAGES.kind
    assert (kind.unit, kind.on_features, kind.are_vectors, kind.can_draw) == ("image", False, False, True)
    assert kind.pixels is IMAGES.images and kind.table is None and kind.columns == ()
    assert not from_arrays(np.zeros((8, 4, 4, 5), np.uint8), LABELS).kind.can_draw
    expected = ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    inputs = kind.inputs(EVERY, expected)
    assert isinstance(inputs, ImageInputs) and (inputs.mean, inputs.std) == expected


@pytest.mark.parametrize(("shape", "vectors"), [((12, 1, 1), True), ((12, 2, 2), False)])
def test_images_with_a_bank(shape: tuple[int, int, int], vectors: bool) -> None:
    kind = replace(IMAGES, bank=banked(shape)).kind
    assert (kind.unit, kind.on_features, kind.are_vectors, kind.can_draw) == ("image", True, vectors, True)
    assert isinstance(kind.inputs(EVERY), BankInputs)


def test_rows_of_a_table() -> None:
    kind = TABLE.kind
    assert (kind.unit, kind.on_features, kind.are_vectors, kind.can_draw) == ("row", True, True, False)
    assert kind.recipe == "features" and [column.name for column in kind.columns] == ["0", "1", "2"]
    inputs = kind.inputs(EVERY, ((0.0,), (1.0,)))
    assert isinstance(inputs, FeatureInputs) and np.allclose(inputs.mean, [10.5, 11.5, 12.5])
    with pytest.raises(UserError, match="table"):
        _ = kind.pixels


def test_a_format_may_name_a_recipe() -> None:
    assert open_data("digits").recipe == "digits" and IMAGES.recipe is None
