"""Which code and which downloads settings may name. The settings of a run are data, wherever they stand in it.

`model.backbone` is the only setting that can name code: as an import path, or as a model of another library whose files
are loaded. Methods, families of backbones and data formats are found by entry points of installed packages.
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

from torch import nn

from cotrain.types import UserError

OBJECT = "object:"  # prefix of a network that was not given as a function
FAMILIES = ("hf:", "timm:")  # prefixes of families of backbones, which are not import paths
PLAIN_NAME = re.compile(r"timm:[\w.]+")  # of a model that comes with timm, rather than a folder or a page of a hub


class Trust(IntEnum):
    """Who named the network."""

    FILE = 0  # a file, such as a run that somebody else made: it names no code, and nothing is downloaded
    ALLOWED = 1  # a file, and the user allowed it with --trust-code: modules that Python finds
    USER = 2  # the user, in this process: also modules in the current folder, and downloads


def is_import_path(recorded: str) -> bool:
    """Whether this names the user's own network, importable or not, rather than a backbone of a family."""
    return ":" in recorded and not recorded.startswith(FAMILIES)


def is_importable(recorded: str) -> bool:
    """Whether another process could import it by this name."""
    return is_import_path(recorded) and not recorded.startswith(("__main__:", OBJECT)) and "<" not in recorded


def check_trusted(backbone: str, trust: Trust) -> None:
    """Refuse a backbone that runs code, unless the user named or allowed it. Nothing was imported before."""
    if trust >= Trust.ALLOWED:
        return
    if is_import_path(backbone) and is_importable(backbone):
        module = backbone.partition(":")[0]
        raise UserError(
            f"model.backbone={backbone} is a network that cotrain does not come with: loading it runs the module "
            f"{module}; if you trust it, add --trust-code (in Python, trust_code=True), or pass the network from "
            "Python: model=FUNCTION"
        )
    if backbone.startswith("timm:") and not PLAIN_NAME.fullmatch(backbone):
        raise UserError(
            f"model.backbone={backbone} names files that timm would load, which can run code; if you trust them, add "
            "--trust-code (in Python, trust_code=True)"
        )


def imported(path: str, trust: Trust) -> Callable[..., Any]:
    """The function at "package.module:function". A module that the user named may also be in the current folder."""
    check_trusted(path, trust)
    if not is_importable(path):
        raise UserError(
            f"the network {path} exists only in the program that trained it; pass it again from Python: "
            "cotrain.load(run, model=...) or cotrain.fit(data, out=run, resume=True, model=...)"
        )
    module_name, _, name = path.partition(":")
    try:
        with _searching(here=trust == Trust.USER):
            found: Any = importlib.import_module(module_name)
    except Exception as error:  # the user's code may raise anything
        reason = f"{type(error).__name__}: {error}"
        where = "run in its folder, " if trust == Trust.USER else "put its folder on PYTHONPATH, "
        raise UserError(
            f"model.backbone={path}: {module_name} cannot be imported ({reason}); install it, {where}"
            "or pass the network from Python with model=..."
        ) from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found) or isinstance(found, nn.Module):
        raise UserError(f"model.backbone={path}: {module_name} has no function {name}")
    return found


@contextmanager
def _searching(*, here: bool) -> Iterator[None]:
    """Import with or without the current folder, which is first where Python was started with -m or -c."""
    before, current = sys.path[:], str(Path.cwd())
    first = [place for place in before[:1] if sys.flags.safe_path or place not in ("", current)]
    sys.path[:] = [*before, current] if here else [*first, *before[1:]]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
