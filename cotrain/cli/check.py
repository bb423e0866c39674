"""The tables of `cotrain data check`: what the data contain, what is wrong with them, and what `fit` would do."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from rich.table import Table
from rich.text import Text

from cotrain.audit.blank import TINY, blank_images, tiny_files
from cotrain.audit.duplicates import contradicts, duplicates, leaks
from cotrain.config import Config
from cotrain.data import Dataset, Features, Split
from cotrain.data.dataset import UNLABELLED
from cotrain.fitting.messages import is_estimated, network, warnings_about
from cotrain.progress import size_of

CLASSES_LISTED = 500  # printing more takes long, and nobody reads them
LISTED = 20  # examples shown per problem; the rest are only counted
COLUMNS = 40  # of a table that are shown


def overview(dataset: Dataset) -> Table:
    if dataset.kind.table is not None:
        return columns(dataset, dataset.kind.table)
    height, width, channels = dataset.shape
    rows = len(dataset.train) + len(dataset.valid) + len(dataset.test)
    size = int(np.prod(dataset.images.shape, dtype=np.int64))
    table = _table(Text(dataset.name))
    table.add_row("layout", Text(dataset.layout))
    table.add_row("images", f"{rows:,}")
    if dataset.sizes:
        table.add_row("image sizes", _sizes(dataset))
        modes = Counter[str]()
        for (_, _, mode), count in dataset.sizes.items():
            modes[mode] += count
        table.add_row("colour modes", ", ".join(f"{mode} ({count:,})" for mode, count in modes.most_common()))
    table.add_row("network input", f"{height}x{width}, {'grey' if channels == 1 else f'{channels} channels'}")
    table.add_row("decoded size", f"{size_of(size)}, {dataset.kind.kept}")
    return table


def columns(dataset: Dataset, features: Features) -> Table:
    """The columns of a table: what they were taken for, and their values."""
    table = Table("column", "kind", "values", title=Text(f"{dataset.name}: {dataset.layout}"), title_justify="left")
    mean, std = features.statistics(dataset.train)
    for place, column in list(enumerate(features.columns))[:COLUMNS]:
        kind = "numbers" if column.categories is None else f"{len(column.categories)} categories"
        values = f"{mean[place]:.4g} ± {std[place]:.4g}" if column.categories is None else ", ".join(column.categories)
        table.add_row(Text(column.name), kind, Text(values if len(values) <= 60 else f"{values[:57]}..."))
    if len(features.columns) > COLUMNS:
        table.add_row("...", f"and {len(features.columns) - COLUMNS:,} more columns", "")
    table.add_section()
    table.add_row("all", f"{len(features):,} rows", dataset.kind.kept)
    return table


def classes(dataset: Dataset, split: Split | None) -> Table:
    """Images per class. An unlabelled image is counted under its class if its label is known but not used."""
    labels = dataset.labels.numpy()
    if split is None:
        known = dataset.train[labels[dataset.train] != UNLABELLED]
        parts = {"labelled": known, "unlabelled": np.setdiff1d(dataset.train, known)}
        parts |= {"validation": dataset.valid, "test": dataset.test}
    else:
        labelled, valid, test = (np.array(rows, np.int64) for rows in (split.labelled, split.valid, split.test))
        parts = {"labelled": labelled, "unlabelled": np.setdiff1d(split.unlabelled, labelled)}
        parts |= {"validation": valid, "test": test}
    table = Table("class", *parts, title="Classes", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    counts = [np.bincount(labels[rows] + 1, minlength=len(dataset.classes) + 1) for rows in parts.values()]
    for index, name in enumerate(dataset.classes[:CLASSES_LISTED], start=1):
        table.add_row(name, *(f"{of_part[index]:,}" for of_part in counts))
    if len(dataset.classes) > CLASSES_LISTED:
        rest = (f"{of_part[CLASSES_LISTED + 1 :].sum():,}" for of_part in counts)
        table.add_row(f"... and {len(dataset.classes) - CLASSES_LISTED:,} more", *rest)
    table.add_row("unlabelled", *(f"{of_part[0]:,}" for of_part in counts), style="dim")
    table.add_section()
    table.add_row("total", *(f"{of_part.sum():,}" for of_part in counts), style="bold")
    return table


def problems(dataset: Dataset, split: Split | None) -> Table:
    table = Table("problem", "count", "examples", title="Problems", title_justify="left")
    table.columns[1].justify = "right"
    rows = list(_problems(dataset, split))
    for problem, count, examples in rows:
        table.add_row(problem, f"{count:,}", Text("\n".join(_shortened(examples))))
    if not rows:
        table.add_row("none", "", "")
    return table


def _problems(dataset: Dataset, split: Split | None) -> Iterator[tuple[str, int, list[str]]]:
    if dataset.unreadable:
        yield (
            "unreadable files",
            len(dataset.unreadable),
            [f"{path}: {why}" for path, why in dataset.unreadable.items()],
        )
    if dataset.missing:
        yield "label table rows without a file", len(dataset.missing), list(dataset.missing)
    if groups := duplicates(dataset):
        yield f"duplicate {dataset.unit.many}", len(groups), [_group(dataset, group) for group in groups]
    if conflicting := [_group(dataset, group, labels=True) for group in groups if contradicts(dataset, group)]:
        yield "duplicates with different labels", len(conflicting), conflicting
    if split is not None and len(leaked := leaks(dataset, split)):
        yield f"test {dataset.unit.many} also in the training set", len(leaked), [_name(dataset, row) for row in leaked]
    if dataset.kind.table is None:
        yield from _empty_images(dataset)
    labels = dataset.labels.numpy()
    absent = np.setdiff1d(np.arange(len(dataset.classes)), labels[dataset.train])
    if len(absent):
        yield (
            f"classes without a labelled training {dataset.unit}",
            len(absent),
            [dataset.classes[index] for index in absent],
        )


def _empty_images(dataset: Dataset) -> Iterator[tuple[str, int, list[str]]]:
    if len(blank := blank_images(dataset, np.concatenate([dataset.train, dataset.valid, dataset.test]))):
        yield "blank images", len(blank), [_name(dataset, row) for row in blank]
    if tiny := tiny_files(dataset):
        yield f"images with a side below {TINY} pixels", tiny, []


def plan(dataset: Dataset, split: Split, config: Config) -> Table:
    """What `fit` would do."""
    optim, unit = config.optim, dataset.unit
    table = _table("What fit would do")
    table.add_row("train on", f"{len(split.labelled):,} labelled and {len(split.unlabelled):,} unlabelled {unit.many}")
    without = (
        f"the labelled {unit.many}, by cross-validation"
        if is_estimated(config, dataset)
        else f"nothing: there are no test {unit.many}"
    )
    table.add_row("test on", f"{len(split.test):,} {unit.many}" if split.test else without)
    table.add_row("method", config.method.name)
    table.add_row("network", network(config))
    table.add_row("steps", f"{optim.steps:,}")
    table.add_row(f"{unit.many} per step", f"{optim.labelled} labelled and {config.unlabelled} unlabelled")
    if dataset.kind.table is not None:
        strong = f"noise up to {config.features.noise:g}, dropout up to {config.features.dropout:g}"
        table.add_row("strong views", f"{strong}, mixing up to {config.features.mixing:g} (features.*)")
    else:
        flips = "random horizontal flips" if config.augment.flip else "no horizontal flips"
        table.add_row("augmentation", f"{flips} (augment.flip); `cotrain data show` draws examples")
    for line in warnings_about(dataset, split, config):
        table.add_row("warning", Text(line))
    return table


def _table(title: str | Text) -> Table:
    return Table("", "", title=title, title_justify="left", show_header=False)


def _sizes(dataset: Dataset) -> str:
    sizes = Counter[tuple[int, int]]()
    for (height, width, _), count in dataset.sizes.items():
        sizes[height, width] += count
    if len(sizes) <= 3:
        return ", ".join(f"{height}x{width} ({count:,})" for (height, width), count in sizes.most_common())
    smallest, largest = min(sizes, key=np.prod), max(sizes, key=np.prod)
    between = f"from {smallest[0]}x{smallest[1]} to {largest[0]}x{largest[1]}"
    return f"{len(sizes):,} different sizes, {between} (height x width)"


def _group(dataset: Dataset, rows: np.ndarray, labels: bool = False) -> str:
    names = [_name(dataset, row) + (f" ({_label(dataset, row)})" if labels else "") for row in rows[:3]]
    return " = ".join(names) + (f" = {len(rows) - 3:,} more" if len(rows) > 3 else "")


def _name(dataset: Dataset, row: int) -> str:
    return dataset.paths[row] if dataset.paths else f"row {row}"


def _label(dataset: Dataset, row: int) -> str:
    label = int(dataset.labels[row])
    return "unlabelled" if label == UNLABELLED else dataset.classes[label]


def _shortened(examples: list[str]) -> list[str]:
    return examples if len(examples) <= LISTED else [*examples[:LISTED], f"... and {len(examples) - LISTED:,} more"]
