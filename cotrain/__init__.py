"""Train an image classifier from a few labelled and many unlabelled images by Multi-Head Co-Training."""

import cotrain.environment  # before anything that loads a library
import cotrain.openmp  # noqa: F401  # before anything that loads torch
from cotrain.comparison.compare import compare
from cotrain.config import Config
from cotrain.config.recipes import recipe_named
from cotrain.data import ArrayFormat, Column, DataFormat, Dataset, from_arrays, from_features, open_data
from cotrain.data.format import Request
from cotrain.fitting.fit import Fitted, fit
from cotrain.inference.export import Exported, export
from cotrain.inference.model import Model, Predictions, load
from cotrain.model import Backbone, BackboneFamily, MultiHead, Output, Pretrained, Stage, Wanted
from cotrain.types import Batch, Learner, Look, Losses, Method, Pool, SingleModel, Term, UserError, Views

__version__ = "0.1.0"

__all__ = [
    "ArrayFormat",
    "Backbone",
    "BackboneFamily",
    "Batch",
    "Column",
    "Config",
    "DataFormat",
    "Dataset",
    "Exported",
    "Fitted",
    "Learner",
    "Look",
    "Losses",
    "Method",
    "Model",
    "MultiHead",
    "Output",
    "Pool",
    "Predictions",
    "Pretrained",
    "Request",
    "SingleModel",
    "Stage",
    "Term",
    "UserError",
    "Views",
    "Wanted",
    "__version__",
    "compare",
    "export",
    "fit",
    "from_arrays",
    "from_features",
    "load",
    "open_data",
    "recipe_named",
]
