"""Settings of a run, as its files hold them: an earlier version may have written them."""

from collections.abc import Mapping
from typing import Any

from cotrain.config import Config
from cotrain.types import UserError

NO_SETTINGS = (("bank", "seed", 0), ("run", "channels_last", True))  # they are constants now


def read_config(values: Any, where: object) -> Config:
    """The config that a file holds."""
    try:
        return Config.parse(upgraded(values))
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        line = (str(error).splitlines() or ["its settings are nested too deeply"])[0]
        raise UserError(f"{where} is damaged: {line[:1000]}") from error


def upgraded(values: Mapping[str, Any]) -> dict[str, Any]:
    """A dumped config as it would be written today.

    The setting `method.strong_pass` is gone, and routed views, once a setting of mhct, are a method of their own.
    Folders of images were once resized to 64 pixels at most.
    """
    if isinstance(data := values.get("data"), Mapping) and "largest" not in data:
        values = {**values, "data": {**data, "largest": 64}}
    for section, name, constant in NO_SETTINGS:
        if isinstance(part := values.get(section), Mapping) and part.get(name, constant) == constant:
            values = {**values, section: {key: value for key, value in part.items() if key != name}}
    if isinstance(optim := values.get("optim"), Mapping):  # `optim.replaced` only served to choose another method
        values = {**values, "optim": {key: value for key, value in optim.items() if key != "replaced"}}
    method = dict(values.get("method") or {})
    if method.get("strong_pass") == "all":
        del method["strong_pass"]
    if method.get("name") == "mhct" and method.get("strong_views") == "routed":
        method |= {"name": "mhct_routed", "strong_views": "shared"}
    return {**values, "method": method} if "method" in values else dict(values)
