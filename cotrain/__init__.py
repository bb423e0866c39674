"""Train an image classifier from a few labelled and many unlabelled images by Multi-Head Co-Training."""

import cotrain.openmp  # noqa: F401  # before anything that loads torch
from cotrain.comparison.compare import compare
from cotrain.config import Config
from cotrain.data import Dataset, from_arrays, open_data
from cotrain.evaluation.predict import Model, Predictions, load
from cotrain.model import MultiHead
from cotrain.pipeline.fit import Fitted, fit
from cotrain.recipes import recipe_named
from cotrain.types import UserError

__version__ = "0.1.0"

__all__ = [
    "Config",
    "Dataset",
    "Fitted",
    "Model",
    "MultiHead",
    "Predictions",
    "UserError",
    "__version__",
    "compare",
    "fit",
    "from_arrays",
    "load",
    "open_data",
    "recipe_named",
]
