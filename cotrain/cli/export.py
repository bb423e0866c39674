"""`cotrain export`."""

from pathlib import Path
from typing import Annotated

from cotrain.cli.options import Flag
from cotrain.inference.export import export
from cotrain.progress import say, size_of, terminal

console = terminal()


def export_command(
    run: Path, path: Path, *, overwrite: Annotated[bool, Flag] = False, trust_code: Annotated[bool, Flag] = False
) -> None:
    """Write the model of a finished run to one ONNX file, which needs only onnxruntime to predict.

    The file takes uint8 images of the size that the model was trained on, or float32 features, and returns the
    ensemble's calibrated probabilities, classes, the number of heads that agree, and the logits of each head.

    Parameters
    ----------
    run
        A run folder.
    path
        The file to write, such as model.onnx.
    overwrite
        Replace the file if it exists.
    trust_code
        As in predict.
    """
    exported = export(run, path, overwrite=overwrite, trust_code=trust_code)
    size = exported.path.stat().st_size
    if "columns" in exported.metadata:
        columns = exported.metadata["columns"]
        say(console, f"features: float32 (n, {len(columns)}), in the order of the metadata's `columns`")
    else:
        height, width, channels = exported.metadata["image_size"]
        say(console, f"images: uint8 (n, {height}, {width}, {channels}), resized with {exported.metadata['resize']}")
    say(console, f"probabilities: {exported.metadata['probabilities']}")
    say(console, f"largest difference from predict: {exported.difference:.1e} in a probability")
    say(console, f"{size_of(size)} -> {exported.path}")
