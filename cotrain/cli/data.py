"""`cotrain data`: fetch, check, show and split images before training on them."""

from pathlib import Path
from typing import Annotated

import torch
from cyclopts import App, Parameter, validators

from cotrain.cli import check
from cotrain.cli.check_features import QUICK, features_table
from cotrain.cli.options import Options
from cotrain.cli.sheet import draw_sheet, write_sheet
from cotrain.config import Config
from cotrain.config.defaults import configured_for_fit, opened
from cotrain.data import Dataset, Split, check_complete, draw_split
from cotrain.data.fetch import fetch
from cotrain.fitting.messages import warnings_about
from cotrain.progress import say, terminal
from cotrain.storage.writing import write_json
from cotrain.training.checks import check_trainable
from cotrain.training.experiment import Experiment, Prepared
from cotrain.types import UserError

data_app = App(name="data", help="Fetch, check, show and split images.")
console = terminal()
AtLeastOne = Annotated[int, Parameter(validator=validators.Number(gte=1))]
EXAMPLES = 3  # strong views on a sheet, if the method draws fewer at a time


@data_app.command(name="fetch")
def fetch_command(name: str, *, into: Path | None = None) -> None:
    """Download one of the paper's datasets from its official address and verify its checksum.

    Parameters
    ----------
    name
        cifar10, cifar100 or svhn.
    into
        Where to put it; by default a folder where `cotrain fit NAME` finds it.
    """
    folder = fetch(name, console, into=into)
    say(console, f"{name} is in {folder}")


@data_app.command(name="check")
def check_command(data: str, *, features: bool | None = None, options: Options | None = None) -> None:
    """Report what DATA contains, what is wrong with it, and what `fit` would do with the same options.

    The exit code is 2 if `fit` would refuse the data.

    Parameters
    ----------
    data
        A folder of images, a .npz file, digits, or the name or files of one of the paper's datasets.
    features
        Also look for near-duplicates, images of no class and rare classes in the features of a pretrained network;
        they are computed once, and `fit` uses them too. By default for up to 2,000 images.
    """
    options = options or Options()
    dataset, config = _opened(data, options, skip_unreadable=True)
    split, refusal = _try_split(dataset, config)
    prepared = Prepared(config, dataset, console=console, augmented=False)
    console.print(check.overview(dataset))
    console.print(check.classes(dataset, split))
    console.print(check.problems(dataset, split))
    try:
        if not options.data_settings.skip_unreadable:
            check_complete(dataset)
        check_trainable(prepared)
    except UserError as error:
        refusal = refusal or error
    if split is None or refusal is not None:
        raise UserError(f"fit would refuse: {refusal}")
    if features is not False:
        _check_features(prepared, split, asked=features is True)
    console.print(check.plan(dataset, split, config))


def _check_features(prepared: Prepared, split: Split, *, asked: bool) -> None:
    """Near-duplicates, images of no class and rare classes, if the network has a frozen trunk."""
    config, dataset = prepared.config, prepared.dataset
    if prepared.trunk is None:
        if asked:
            raise UserError(f"--features needs a pretrained network with a frozen trunk, not {config.model.backbone}")
        return
    if not asked and (images := len(dataset.train) + len(dataset.valid) + len(dataset.test)) > QUICK:
        say(
            console,
            f"near-duplicates and images of no class are not looked for: --features computes {images:,} features",
        )
        return
    experiment = Experiment(config, dataset, split, torch.device("cpu"), prepared=prepared)
    console.print(features_table(experiment))


def _opened(data: str, options: Options, **changes: bool) -> tuple[Dataset, Config]:
    """The data, and the configuration that `fit` would use."""
    settings = {**options.settings, **{f"data.{name}": value for name, value in changes.items()}}
    dataset = opened(data, options.config, settings, options.memory, console)
    return dataset, configured_for_fit(dataset, options.config, options.preset, options.settings, None)


def _try_split(dataset: Dataset, config: Config) -> tuple[Split | None, UserError | None]:
    try:
        return draw_split(dataset, config.data, config.run.seed), None
    except UserError as error:
        return None, error


@data_app.command(name="show")
def show_command(
    data: str,
    *,
    out: Path,
    each: AtLeastOne = 2,
    classes: AtLeastOne = 20,
    options: Options | None = None,
) -> None:
    """Draw what the network sees: images of every class with their weak and strong views.

    Parameters
    ----------
    data
        A folder of images, a .npz file, digits, or the name or files of one of the paper's datasets.
    out
        A new PNG file.
    each
        Images per class.
    classes
        Maximum number of classes to draw.
    """
    if out.exists():
        raise UserError(f"{out} already exists; choose another --out")
    dataset, config = _opened(data, options or Options())
    strong = max(config.method.views.strong, EXAMPLES)
    sheet = draw_sheet(dataset, config.augment, strong=strong, each=each, classes=classes, seed=config.run.seed)
    write_sheet(sheet, out)
    say(console, f"{sheet.width}x{sheet.height} pixels -> {out}")


@data_app.command(name="split")
def split_command(data: str, *, out: Path, options: Options | None = None) -> None:
    """Draw a split and write it to a file, for use with `cotrain fit DATA --split FILE`.

    Parameters
    ----------
    data
        A folder of images, a .npz file, digits, or the name or files of one of the paper's datasets.
    out
        A new JSON file.
    """
    if out.exists():
        raise UserError(f"{out} already exists, and a split is never overwritten; choose another --out")
    dataset, config = _opened(data, options or Options())
    split = draw_split(dataset, config.data, config.run.seed)
    for line in warnings_about(dataset, split, config):
        say(console, line)
    write_json(out, {**split.model_dump(), "hash": split.hash})
    counts = ", ".join(
        f"{len(rows):,} {part}"
        for part, rows in [
            ("labelled", split.labelled),
            ("unlabelled", split.unlabelled),
            ("validation", split.valid),
            ("test", split.test),
        ]
    )
    say(console, f"{split.name}, hash {split.hash}: {counts} -> {out}")
