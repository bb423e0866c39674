"""From data to a finished run: split, labelled-only yardstick, training, and one look at the test images."""

import platform
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numba
import numpy as np
import PIL
import torch
from rich.console import Console

from cotrain.config import Config
from cotrain.data import Dataset, Split, draw_split, is_openable, open_data
from cotrain.evaluate import score
from cotrain.interrupt import Interrupted
from cotrain.methods.supervised import Supervised
from cotrain.ops import all_agree
from cotrain.predict import Model, load
from cotrain.recipes import recipe_named
from cotrain.run import Run, reserve_folder
from cotrain.train import check_trainable, pick_device, train
from cotrain.types import UserError


@dataclass(frozen=True)
class Fitted:
    """A finished run: its folder, what result.json says, and the model."""

    folder: Path
    result: Mapping[str, Any]

    @property
    def model(self) -> Model:
        return load(self.folder)


def fit(
    data: str | Path | Dataset,
    *,
    out: str | Path | None = None,
    config: Config | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    console: Console | None = None,
) -> Fitted:
    """Train on `data` and keep everything in the folder `out`.

    `config` is a recipe's (by default the one named like the data, or `small32`); `settings` are dotted keys to change
    in it, such as {"data.labels": 40, "run.seed": 1}. With `resume` an unfinished run in `out` goes on where it
    was saved.
    """
    console = console or Console(quiet=True)
    dataset = data if isinstance(data, Dataset) else open_data(str(data))
    run = _resume(out, dataset, config, settings) if resume else _start(out, dataset, config, settings)
    if run.result is not None:
        return Fitted(run.folder, run.result)
    with run.locked(), _resumable(run):
        device = pick_device(run.config.run.device)
        console.print(_heading(run, device), soft_wrap=True, highlight=False, markup=False)
        labelled_only = _labelled_only(run, dataset, device, console) if run.config.run.baseline else None
        method = run.config.method
        state = train(run, dataset, device, console, f"{method.name}, {method.heads} heads")
        result = {
            **evaluate(run, dataset),
            "labelled_only_error": labelled_only,
            "steps": state.step,
            "seconds": round(state.seconds, 1),
            "seed": run.config.run.seed,
            "labels": len(run.split.labelled),
            "unlabelled": len(run.split.unlabelled),
            "classes": len(dataset.classes),
            "method": method.name,
            "parameters": sum(parameter.numel() for parameter in state.net.parameters()),
            "split": run.split.hash,
            "split_name": run.split.name,
            "data": dataset.name,
            "device": str(device),
            "versions": versions(),
            "command": run.command,
        }
        run.finish(result)
    return Fitted(run.folder, result)


def _heading(run: Run, device: torch.device) -> str:
    config, split = run.config, run.split
    images = (
        f"{len(split.labelled):,} labelled, {len(split.unlabelled):,} unlabelled and {len(split.test):,} test images"
    )
    return f"{images}; {config.model.backbone}, {config.method.heads} heads, on {device} -> {run.folder}"


@contextmanager
def _resumable(run: Run) -> Iterator[None]:
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stop:
        what = str(stop) or "interrupted; the newest checkpoint is kept"
        raise Interrupted(f"{what}; go on with: {_command_to_resume(run)}") from stop


def _command_to_resume(run: Run) -> str:
    if is_openable(run.split.source):
        return shlex.join(["cotrain", "fit", run.split.source, "--out", str(run.folder), "--resume"])
    return f"cotrain.fit(data, out={str(run.folder)!r}, resume=True)"


def default_config(dataset: Dataset) -> Config:
    return recipe_named("digits" if dataset.name == "digits" else "small32")


def _start(out: str | Path | None, dataset: Dataset, config: Config | None, settings: Mapping[str, Any] | None) -> Run:
    config = (config or default_config(dataset)).changed(settings or {})
    split = _split(config, dataset)
    check_trainable(config, dataset)
    folder = Path(out) if out is not None else reserve_folder(Path("runs"), Path(dataset.name).stem)
    return Run.create(folder, config, split, shlex.join(sys.argv))


def _resume(out: str | Path | None, dataset: Dataset, config: Config | None, settings: Mapping[str, Any] | None) -> Run:
    if out is None:
        raise UserError("--resume needs --out, the folder of the run to go on with")
    run = Run.open(Path(out))
    asked = (config or run.config).changed(settings or {})
    run.check_data(dataset)
    run.check_same(asked, _split(asked, dataset))
    return run


def _split(config: Config, dataset: Dataset) -> Split:
    return draw_split(
        dataset,
        labels=config.data.labels,
        balance=config.data.balance,
        include_labelled=config.data.include_labelled,
        seed=config.run.seed,
    )


def _labelled_only(run: Run, dataset: Dataset, device: torch.device, console: Console) -> float | None:
    """The same network and steps with the labelled images alone."""
    config = run.config.model_copy(update={"method": Supervised(heads=run.config.method.heads)})
    folder = run.baseline_folder
    begun = (folder / "config.json").exists()
    yardstick = Run.open(folder) if begun else Run.create(folder, config, run.split, run.command)
    yardstick.check_same(config, run.split)
    if yardstick.result is None:
        train(yardstick, dataset, device, console, "labelled only")
        yardstick.finish(evaluate(yardstick, dataset))
    assert yardstick.result is not None
    return yardstick.result["test_error"]


def evaluate(run: Run, dataset: Dataset) -> dict[str, Any]:
    """Errors of a run's model on its test images, and how often its heads agree on its unlabelled ones."""
    run.check_data(dataset)
    model = load(run.folder, device=run.config.run.device)
    unlabelled = model.logits(dataset.images, np.asarray(run.split.unlabelled))
    agreement = all_agree(unlabelled.argmax(dim=-1)).double().mean().item()
    if not run.split.test:
        return {"test_error": None, "head_errors": None, "agreement": agreement, "test_images": 0}
    rows = np.asarray(run.split.test)
    scores = score(model.logits(dataset.images, rows), dataset.labels[rows], run.config.run.ensemble)
    return {
        "test_error": scores.error,
        "head_errors": scores.head_errors,
        "agreement": agreement,
        "test_images": len(rows),
    }


def versions() -> dict[str, str]:
    return {
        "cotrain": version("cotrain"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "numba": numba.__version__,
    }
