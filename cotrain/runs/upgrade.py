"""Settings of runs that an earlier version wrote."""

from collections.abc import Mapping
from typing import Any


def upgraded(values: Mapping[str, Any]) -> dict[str, Any]:
    """A dumped config as it would be written today.

    The setting `method.strong_pass` is gone, and routed views, once a setting of mhct, are a method of their own.
    Folders of images were once resized to 64 pixels at most.
    """
    if isinstance(data := values.get("data"), Mapping) and "largest" not in data:
        values = {**values, "data": {**data, "largest": 64}}
    method = dict(values.get("method") or {})
    if method.get("strong_pass") == "all":
        del method["strong_pass"]
    if method.get("name") == "mhct" and method.get("strong_views") == "routed":
        method |= {"name": "mhct_routed", "strong_views": "shared"}
    return {**values, "method": method} if "method" in values else dict(values)
