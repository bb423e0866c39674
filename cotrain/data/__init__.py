"""Images as uint8 tensors or rows of features, named splits of them, and batches that depend only on (seed, step)."""

from cotrain.data.dataset import Dataset, from_arrays
from cotrain.data.feature_arrays import from_features
from cotrain.data.feature_source import FeatureSource
from cotrain.data.feature_table import Column, Features
from cotrain.data.format import ArrayFormat, DataFormat, Request
from cotrain.data.formats.folder import check_complete
from cotrain.data.imagefile import Images
from cotrain.data.loading import is_openable, open_data
from cotrain.data.settings import BankSettings, DataSettings
from cotrain.data.source import BankSource, BatchSource, Drawing, Source
from cotrain.data.split import Split, draw_split

__all__ = [
    "ArrayFormat",
    "BankSettings",
    "BankSource",
    "BatchSource",
    "Column",
    "DataFormat",
    "DataSettings",
    "Dataset",
    "Drawing",
    "FeatureSource",
    "Features",
    "Images",
    "Request",
    "Source",
    "Split",
    "check_complete",
    "draw_split",
    "from_arrays",
    "from_features",
    "is_openable",
    "open_data",
]
