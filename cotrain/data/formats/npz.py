"""`.npz` files with MedMNIST's keys: train_images, train_labels, and optionally val_*, test_* and classes."""

from pathlib import Path
from typing import Any

import numpy as np

from cotrain.data.dataset import Dataset, from_arrays
from cotrain.data.format import ArrayFormat
from cotrain.data.memory import check_room
from cotrain.storage.reading import decoded, read_arrays, reason
from cotrain.types import UserError

COPIES = 2  # of all images in memory while the parts of a file are joined


class Npz(ArrayFormat):
    order = 20
    listed = "a .npz file"

    def recognises(self, source: str) -> bool:
        return Path(source).suffix == ".npz" and Path(source).exists()

    def load(self, source: str) -> Dataset:
        return load_npz(Path(source))


def load_npz(path: Path) -> Dataset:
    if not path.exists():
        raise UserError(f"{path} does not exist")
    try:
        arrays = read_arrays(path, lambda size: check_room(str(path), COPIES * size / 1e9))
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a readable .npz file of plain arrays ({reason(error)})") from error
    missing = [key for key in ("train_images", "train_labels") if key not in arrays]
    if missing:
        lacking, found = " and no ".join(missing), ", ".join(arrays) or "nothing"
        raise UserError(f"{path} has no {lacking}; it contains {found} (a table has X and y)")

    def part(name: str) -> tuple[Any, Any] | None:
        if f"{name}_images" not in arrays:
            return None
        if f"{name}_labels" not in arrays:
            raise UserError(f"{path} has {name}_images but no {name}_labels")
        return arrays[f"{name}_images"], arrays[f"{name}_labels"]

    classes = _names(path, arrays["classes"]) if "classes" in arrays else None
    return from_arrays(
        arrays["train_images"],
        arrays["train_labels"],
        valid=part("val"),
        test=part("test"),
        classes=classes,
        name=path.stem,
        source=str(path.resolve()),
        layout=f"the arrays of {path.name}",
    )


def _names(path: Path, values: Any) -> tuple[str, ...]:
    try:
        listed = decoded(np.ravel(values).tolist)
    except ValueError as error:
        raise UserError(f"{path}: `classes` holds text that is not Unicode; write it again") from error
    names = tuple(
        value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value) for value in listed
    )
    if len(set(names)) < len(names) or len(names) < 2:
        raise UserError(
            f"{path}: `classes` must hold two or more different names, not {', '.join(names[:5]) or 'nothing'}"
        )
    return names
