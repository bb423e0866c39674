"""Images as uint8 tensors, named splits of them, and batches that depend only on (seed, step)."""

from cotrain.data.dataset import Dataset, Images, from_arrays
from cotrain.data.duplicates import contradicts, duplicates, leaks
from cotrain.data.folder import check_complete
from cotrain.data.format import ArrayFormat, DataFormat, Request
from cotrain.data.opening import is_openable, open_data
from cotrain.data.settings import BankSettings, DataSettings
from cotrain.data.source import BankSource, BatchSource, Source
from cotrain.data.split import Split, draw_split

__all__ = [
    "ArrayFormat",
    "BankSettings",
    "BankSource",
    "BatchSource",
    "DataFormat",
    "DataSettings",
    "Dataset",
    "Images",
    "Request",
    "Source",
    "Split",
    "check_complete",
    "contradicts",
    "draw_split",
    "duplicates",
    "from_arrays",
    "is_openable",
    "leaks",
    "open_data",
]
