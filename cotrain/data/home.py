"""The folder where cotrain keeps downloaded and decoded data."""

import os
from pathlib import Path

import platformdirs


def home() -> Path:
    """$COTRAIN_HOME, or the user's cache folder."""
    chosen = os.environ.get("COTRAIN_HOME")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("cotrain")
