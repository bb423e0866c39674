"""Every setting of a run, the recipes that choose them, and the defaults that follow the data."""

from cotrain.config.config import (
    PER_METHOD,
    TABLE_BACKBONE,
    Config,
    DataSettings,
    ModelSettings,
    Setting,
    data_settings,
    differences,
    plain,
    settings_of,
)
from cotrain.config.sections import OptimSettings, RobustSettings, RunSettings

__all__ = [
    "PER_METHOD",
    "TABLE_BACKBONE",
    "Config",
    "DataSettings",
    "ModelSettings",
    "OptimSettings",
    "RobustSettings",
    "RunSettings",
    "Setting",
    "data_settings",
    "differences",
    "plain",
    "settings_of",
]
