from pathlib import Path

import numpy as np
import pytest

from cotrain.audit.shares import estimate_shares, read_shares
from cotrain.storage.cells import class_cell, csv_line
from cotrain.types import UserError

CLASSES = ("cat", "dog", "owl")


def confused(shares: list[float], images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of these shares, and predictions of which three quarters are right."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, images, p=shares)
    other = (labels + rng.integers(1, 3, images)) % 3
    return labels, np.where(rng.random(images) < 0.75, labels, other)


def test_shares_are_corrected_for_confusion() -> None:
    """Counting predictions gives 0.58, 0.25 and 0.18 on average; the shares are 0.8, 0.2 and 0."""
    labels, predicted = confused([1 / 3] * 3, 600, 0)
    _, unlabelled = confused([0.8, 0.2, 0.0], 4000, 1)
    found = estimate_shares(labels, predicted, unlabelled, 3)
    counted = np.bincount(unlabelled) / len(unlabelled)
    assert abs(found.share - [0.8, 0.2, 0.0]).max() < 0.06 < abs(counted - [0.8, 0.2, 0.0]).max()
    assert found.share.sum() == pytest.approx(1)
    assert (found.low <= found.share).all() and (found.share <= found.high).all()


def test_intervals_cover_the_shares_and_narrow_with_labels() -> None:
    truth = np.array([0.6, 0.3, 0.1])
    _, unlabelled = confused(truth.tolist(), 4000, 1)
    few, many = (estimate_shares(*confused([1 / 3] * 3, count, 2), unlabelled, 3) for count in (60, 1500))
    assert (many.low <= truth).all() and (truth <= many.high).all()
    assert (many.high - many.low).sum() < (few.high - few.low).sum()


def test_a_class_that_nothing_is_predicted_as_has_no_share() -> None:
    found = estimate_shares(np.array([0, 1, 2]), np.array([0, 1, 2]), np.array([0, 0, 1, 0]), 3)
    assert found.share == pytest.approx([0.75, 0.25, 0.0])


def test_without_unlabelled_images_nothing_is_known() -> None:
    found = estimate_shares(np.array([0, 1, 2]), np.array([0, 1, 2]), np.empty(0, np.int64), 3)
    assert found.share == pytest.approx([1 / 3] * 3)


def written(folder: Path, text: str) -> Path:
    path = folder / "shares.csv"
    path.write_text(text)
    return path


def test_a_table_of_shares_in_any_order(tmp_path: Path) -> None:
    path = written(tmp_path, "class,share\nowl,0.1\ncat,0.6\ndog,0.3\n")
    assert read_shares(path, CLASSES) == pytest.approx([0.6, 0.3, 0.1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class,share\ncat,0.6\ndog,0.3\nowl,0.2\n", "the shares sum to 1.1; they must sum to 1"),
        ("class,share\ncat,0.6\ndog,0.3\nfox,0.1\n", "line 4 names the class 'fox', which is not one of: cat"),
        ("class,share\ncat,0.6\ndog,0.4\n", "no share is given for the class owl"),
        ("class,share\ncat,0.6\ndog,much\nowl,0.1\n", "line 3 has the share 'much'"),
        ("class,share\ncat,0.6\ndog,0.4\nowl,0\n", "line 4 has the share '0'"),
        ("class,share\ncat,0.6\ncat,0.3\nowl,0.1\n", "line 3 names the class 'cat' again"),
        ("name,part\ncat,0.6\n", "line 2 needs the columns class and share"),
        ("", "no share is given for the class cat"),
    ],
)
def test_a_bad_table_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_shares(written(tmp_path, text), CLASSES)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the class shares"):
        read_shares(tmp_path / "none.csv", CLASSES)


def test_names_of_classes_are_read_as_other_tables_write_them(tmp_path: Path) -> None:
    """Also by hand: =x stays =x."""
    names = ["a\rb", "nan", "=x", "a\u2028b", "c"]
    lines = [csv_line((class_cell(name) if row else name, 0.2)) for row, name in enumerate(names)]
    (tmp_path / "shares.csv").write_text("class,share\n" + "".join(lines), newline="")
    assert read_shares(tmp_path / "shares.csv", names) == pytest.approx([0.2] * 5)
    (tmp_path / "shares.csv").write_text("class,share\n=x,1\n")
    assert read_shares(tmp_path / "shares.csv", ["=x"]) == pytest.approx([1])


@pytest.mark.parametrize("text", ['class,share\n"a,1\n', "class,share\n" + "x" * 200_000 + ",1\n"])
def test_a_table_that_is_no_csv_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "shares.csv").write_text(text)
    with pytest.raises(UserError, match=r"shares\.csv"):
        read_shares(tmp_path / "shares.csv", ["a", "b"])
