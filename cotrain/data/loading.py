"""Finds the format that a name or path is of, among those in this folder and those of other packages."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from cotrain.data.dataset import Dataset
from cotrain.data.format import AFTER_OTHERS, DataFormat, Request
from cotrain.data.memory import quarter_of_memory
from cotrain.data.settings import DataSettings
from cotrain.progress import say
from cotrain.registry import Provider, Registry
from cotrain.types import UserError

FORMATS = Registry("data set", DataFormat, "cotrain.data.formats", group="cotrain.datasets")  # type: ignore[type-abstract]


def open_data(
    source: str | Path,
    settings: DataSettings | None = None,
    *,
    memory: float | None = None,
    console: Console | None = None,
) -> Dataset:
    """The data a user names: `digits`, one of the paper's sets, a folder of images, a file, or what a package adds.

    A folder whose decoded images take more than `memory` GB (a quarter of the machine's, if None) is read from disk
    as it is used.
    """
    memory = quarter_of_memory() if memory is None else memory
    request = Request(str(source), settings or DataSettings(), memory, console or Console(quiet=True))
    return open_requested(request)


def open_requested(request: Request) -> Dataset:
    format = find_format(request.source)
    if format is None:
        problem = "is not data that cotrain reads" if request.path.exists() else "does not exist"
        broken = "".join(f"; {error}" for error in FORMATS.broken.values())
        raise UserError(f"{request.source} {problem}; data are {kinds()}{broken}")
    for error in FORMATS.broken.values():
        say(request.console, f"not asked about {request.source}: {error}")
    dataset = format.open(request)
    if dataset.source is not None:
        return dataset
    place = str(request.path.resolve()) if request.path.exists() else request.source
    return replace(dataset, source=place)


def find_format(source: str) -> DataFormat | None:
    """Formats in this package that are sure of themselves come before those of others, a folder of images after."""
    if source in FORMATS.offered:
        return FORMATS.named(source)()
    return next((format for format in _asked() if format.recognises(source)), None)


def _asked() -> Iterator[DataFormat]:
    built_in = sorted((format() for format in FORMATS.built_in.values()), key=lambda format: format.order)
    yield from (format for format in built_in if format.order < AFTER_OTHERS)
    yield from (format() for format in FORMATS.from_others())
    yield from (format for format in built_in if format.order >= AFTER_OTHERS)


def kinds() -> str:
    """What there is to open, the most general first; of other packages, the names of their entry points."""
    formats = sorted(FORMATS.built_in.values(), key=lambda format: format.order, reverse=True)
    others = [name for name in FORMATS if name not in FORMATS.built_in]
    return ", ".join([*(format.listed for format in formats if format.listed), *others])


def is_openable(source: str | None) -> bool:
    """Whether `open_data` finds something there; data that came as arrays have no place."""
    return source is not None and (Path(source).exists() or find_format(source) is not None)


def data_provider(source: str | None) -> tuple[str, Provider] | None:
    """The format of another package that opens this, if it is one."""
    if source is None or not (FORMATS.offered or FORMATS.added):
        return None
    format = find_format(source)
    provider = FORMATS.provider(format.name) if format else None
    return (format.name, provider) if format and provider else None
