"""Open the files of a user's folder, which somebody else may have filled: regular files, and no links out of a folder.

A pipe or a device may block for ever, and a link may lead anywhere. This file needs only the standard library, because
the decode workers load it without the package.
"""

import errno
import os
import stat
from io import BufferedReader

Path = str | os.PathLike[str]
ALWAYS = 0
for flag in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT"):  # each system has some of them
    ALWAYS |= getattr(os, flag, 0)
NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def open_regular(path: Path, *, inside: Path | None = None) -> BufferedReader:
    """Open a regular file for reading. With `inside`, links out of that folder are refused."""
    return open(_descriptor(path, os.O_RDONLY, inside), "rb")


def open_to_append(path: Path, *, inside: Path) -> int:
    """A descriptor of a regular file in the folder `inside` that is read and appended to. It may be a new file."""
    return _descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, inside)


def real_path(path: Path, inside: Path) -> str:
    """The path without links. A link out of the folder `inside` is an OSError."""
    real = os.path.realpath(path)
    if not _is_below(real, os.path.realpath(inside)):
        raise OSError(errno.ELOOP, f"It is a link out of its folder, to {real}", os.fspath(path))
    return real


def leads_out(path: Path, root: str) -> bool:
    """Whether links lead from a path in a folder to a place outside it. The folder is `root`, without links."""
    return not _is_below(os.path.realpath(path), root)


def _is_below(path: str, folder: str) -> bool:
    try:
        return os.path.commonpath([path, folder]) == folder
    except ValueError:  # another drive
        return False


def _descriptor(path: Path, flags: int, inside: Path | None) -> int:
    if inside is not None:
        path, flags = real_path(path, inside), flags | NO_LINK
    descriptor = os.open(path, flags | ALWAYS, 0o644)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "It is not a regular file", os.fspath(path))
