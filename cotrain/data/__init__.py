"""Images as uint8 tensors, named splits of them, and batches that depend on (seed, step) alone."""

from pathlib import Path

from cotrain.data.dataset import Dataset, from_arrays
from cotrain.data.digits import load_digits
from cotrain.data.npz import load_npz
from cotrain.data.source import Source
from cotrain.data.split import Split, draw_split
from cotrain.types import UserError

__all__ = ["Dataset", "Source", "Split", "draw_split", "from_arrays", "is_openable", "open_data"]


def is_openable(name: str) -> bool:
    """Whether `open_data` finds something there; data that came as arrays have a name but no place."""
    return name == "digits" or Path(name).exists()


def open_data(name: str) -> Dataset:
    """The data a user names on the command line: `digits`, or the path of a `.npz` file."""
    if name == "digits":
        return load_digits()
    path = Path(name)
    if path.suffix == ".npz":
        return load_npz(path)
    found = "is neither" if path.exists() else "does not exist, and is neither"
    raise UserError(f"{name} {found} `digits` nor a .npz file with train_images and train_labels")
