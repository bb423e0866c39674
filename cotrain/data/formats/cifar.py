"""CIFAR-10 and CIFAR-100 from their official files: python or binary version, archive or extracted folder.

Archives are read in place, and pickles without running anything in them.
"""

import lzma
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotrain.data.dataset import Dataset, from_arrays
from cotrain.data.format import ArrayFormat
from cotrain.data.pickled import unpickle
from cotrain.storage.reading import reason
from cotrain.storage.regular import open_regular
from cotrain.types import UserError

PIXELS = 3 * 32 * 32
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar")
LARGEST_FILE = 1 << 28  # bytes; CIFAR-100's largest has 155 MB
MOST_ENTRIES = 100
UNREADABLE_ARCHIVE = (tarfile.TarError, OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class Format:
    name: str
    title: str
    kind: str
    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    class_names: str
    classes: int

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.class_names)


FORMATS = (  # if two are found next to each other, the first is read
    Format(
        name="cifar10",
        title="CIFAR-10",
        kind="python",
        folder="cifar-10-batches-py",
        archive="cifar-10-python.tar.gz",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test="test_batch",
        class_names="batches.meta",
        classes=10,
    ),
    Format(
        name="cifar10",
        title="CIFAR-10",
        kind="binary",
        folder="cifar-10-batches-bin",
        archive="cifar-10-binary.tar.gz",
        train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        test="test_batch.bin",
        class_names="batches.meta.txt",
        classes=10,
    ),
    Format(
        name="cifar100",
        title="CIFAR-100",
        kind="python",
        folder="cifar-100-python",
        archive="cifar-100-python.tar.gz",
        train=("train",),
        test="test",
        class_names="meta",
        classes=100,
    ),
    Format(
        name="cifar100",
        title="CIFAR-100",
        kind="binary",
        folder="cifar-100-binary",
        archive="cifar-100-binary.tar.gz",
        train=("train.bin",),
        test="test.bin",
        class_names="fine_label_names.txt",
        classes=100,
    ),
)
FOLDERS = tuple(format.folder for format in FORMATS)


class Cifar(ArrayFormat):
    order = 30

    def recognises(self, source: str) -> bool:
        return is_cifar(Path(source))

    def load(self, source: str) -> Dataset:
        return load_cifar(Path(source))


def is_cifar(path: Path) -> bool:
    return bool(_found(path))


def load_cifar(path: Path) -> Dataset:
    found = _found(path)
    if not found:
        raise UserError(
            f"{path} has no CIFAR files; give {FORMATS[0].archive}, {FORMATS[2].archive}, or the folder of either"
        )
    if len({format.name for format, _ in found}) > 1:
        places = " or ".join(str(place) for _, place in found)
        raise UserError(f"{path} has both CIFAR-10 and CIFAR-100; choose one of them: {places}")
    format, place = found[0]
    files = _read_folder(place, format) if place.is_dir() else _read_archive(place, format)
    for file in format.files:
        if file not in files:
            raise UserError(f"{place} has no {file}; {format.title} ({format.kind} version) needs it")
    read_batch, read_names = (_read_pickle, _pickled_names) if format.kind == "python" else (_read_records, _text_names)
    names = read_names(format, files.pop(format.class_names), f"{place}: {format.class_names}")
    batches = [read_batch(format, files.pop(file), f"{place}: {file}") for file in (*format.train, format.test)]
    train_images, train_labels = (np.concatenate(arrays) for arrays in zip(*batches[:-1], strict=True))
    return from_arrays(
        train_images,
        train_labels,
        test=batches[-1],
        classes=names,
        name=format.name,
        source=str(path.resolve()),
        layout=f"{format.title}, {format.kind} {'folder' if place.is_dir() else 'archive'}",
        mirror=True,
    )


def _found(path: Path) -> list[tuple[Format, Path]]:
    """The CIFAR datasets at `path` or directly in it: python before binary, folders before archives."""
    here = _format_at(path)
    if here or not path.is_dir():
        return [(here, path)] if here else []
    try:
        children = [child for child in sorted(path.iterdir()) if child.name.endswith((*FOLDERS, *ARCHIVE_SUFFIXES))]
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error})") from error
    found = [(format, child) for child in children if (format := _format_at(child))]
    return sorted(found, key=lambda pair: (FORMATS.index(pair[0]), pair[1].is_file()))


def _format_at(path: Path) -> Format | None:
    try:
        if path.is_dir():
            return _format_of_folder(path)
        if path.is_file() and path.name.endswith(ARCHIVE_SUFFIXES):
            return _format_of_archive(path)
    except UNREADABLE_ARCHIVE:
        pass
    return None


def _format_of_folder(folder: Path) -> Format | None:
    """Recognise a folder by its files. Some may be missing if the folder has the official name."""
    for format in FORMATS:
        there = [(folder / file).is_file() for file in format.files]
        if all(there) or (any(there) and folder.name == format.folder):
            return format
    return None


def _format_of_archive(path: Path) -> Format | None:
    """Recognise an archive by its official name, or by the folder of its first entries."""
    for format in FORMATS:
        if path.name == format.archive:
            return format
    with open_regular(path) as file, tarfile.open(fileobj=file) as archive:
        folders = {part for member in islice(archive, 3) for part in PurePosixPath(member.name).parts}
    return next((format for format in FORMATS if format.folder in folders), None)


def _read_folder(folder: Path, format: Format) -> dict[str, bytes]:
    try:
        return {file: _bounded(folder / file) for file in format.files if (folder / file).is_file()}
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({reason(error)})") from error


def _bounded(path: Path) -> bytes:
    with open_regular(path) as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise UserError(f"{path} is larger than any file of CIFAR; download the official one")
    return content


def _read_archive(path: Path, format: Format) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for member, content in _members(path, set(format.files)):
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts:
            raise UserError(f"{path}: the entry {member.name} points outside the archive; download the official file")
        if not (member.isfile() or member.isdir()):
            raise UserError(f"{path}: the entry {member.name} is a link or device; the official file has none")
        if content is not None:
            if name.name in files:
                raise UserError(f"{path} has {name.name} twice; download the official file")
            files[name.name] = content
    return files


def _members(path: Path, wanted: set[str]) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """Every entry, with its content if it is a wanted file."""
    try:
        with open_regular(path) as file, tarfile.open(fileobj=file) as archive:
            for number, member in enumerate(archive):
                if number >= MOST_ENTRIES or member.size > LARGEST_FILE:
                    raise tarfile.TarError(f"{member.name} is not of CIFAR, which has fewer and smaller files")
                is_wanted = member.isfile() and PurePosixPath(member.name).name in wanted
                content = archive.extractfile(member) if is_wanted else None
                yield member, content.read() if content else None
            _read_on(archive)
    except UNREADABLE_ARCHIVE as error:
        reason = str(error).partition(":\n")[0]
        raise UserError(
            f"{path} is not a readable archive ({reason}); it may be incomplete: download it again"
        ) from error


def _read_on(archive: tarfile.TarFile) -> None:
    """Read to the end, where gzip checks its checksum. Only a few zeros are left."""
    for _ in range(LARGEST_FILE >> 20):
        if not archive.fileobj or not archive.fileobj.read(1 << 20):
            return
    raise tarfile.TarError("it does not end where its entries end")


def _entry(loaded: dict[bytes, Any], key: bytes, what: str) -> Any:
    if key not in loaded:
        keys = [each.decode("latin1") if isinstance(each, bytes) else repr(each) for each in loaded]
        raise UserError(f"{what} has no {key.decode()}; it contains {', '.join(keys[:10]) or 'nothing'}")
    return loaded[key]


def _read_pickle(format: Format, content: bytes, what: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    loaded = unpickle(content, what)
    pixels = _entry(loaded, b"data", what)
    label_key = b"labels" if format.name == "cifar10" else b"fine_labels"
    labels = _entry(loaded, label_key, what)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        found = f"of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else f"a {type(pixels).__name__}"
        raise UserError(f"{what}: data is {found}; expected an array of shape (N, {PIXELS})")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise UserError(f"{what}: {label_key.decode()} is not a list of whole numbers")
    if len(labels) != len(pixels):
        raise UserError(f"{what} has {len(pixels)} images but {len(labels)} labels")
    return _checked(format, pixels, labels, what)


def _read_records(format: Format, content: bytes, what: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    label_bytes = 1 if format.name == "cifar10" else 2  # coarse, fine
    record = label_bytes + PIXELS
    if len(content) % record:
        raise UserError(
            f"{what} has {len(content)} bytes, not a multiple of the record size {record}; download it again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return _checked(format, records[:, label_bytes:], records[:, label_bytes - 1].tolist(), what)


def _checked(
    format: Format, pixels: NDArray[np.uint8], labels: list[int], what: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if not labels:
        raise UserError(f"{what} is empty: it has no images")
    for row, label in enumerate(labels):
        if not 0 <= label < format.classes:
            raise UserError(f"{what}: row {row} has label {label}; labels run from 0 to {format.classes - 1}")
    planes = pixels.reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), np.array(labels, np.int64)


def _pickled_names(format: Format, content: bytes, what: str) -> tuple[str, ...]:
    key = b"label_names" if format.name == "cifar10" else b"fine_label_names"
    names = _entry(unpickle(content, what), key, what)
    if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
        raise UserError(f"{what}: {key.decode()} is not a list of names")
    return _checked_names(format, [name.decode("latin1") for name in names], what)


def _text_names(format: Format, content: bytes, what: str) -> tuple[str, ...]:
    return _checked_names(format, content.decode("latin1").split(), what)


def _checked_names(format: Format, names: list[str], what: str) -> tuple[str, ...]:
    if len(names) != format.classes or len(set(names)) < len(names):
        raise UserError(f"{what} has {len(set(names))} different class names; expected {format.classes}")
    return tuple(names)
