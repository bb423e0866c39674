"""What the server of `processes.py` has done before it forks: slow imports, and the compiled kernel is loaded."""

import scipy.stats  # noqa: F401
import sklearn.datasets
import sklearn.model_selection  # noqa: F401
import torch
import torch._dynamo  # which optimisers import
import torch.distributed.run

import cotrain.labelling.serving  # noqa: F401
import tests.processes  # noqa: F401
from cotrain.augment import Policy, draw_plain, normalised
from cotrain.augment.views import pixels

IMAGES = torch.zeros(1, 8, 8, 1, dtype=torch.uint8)
normalised(IMAGES, [0], draw_plain(1), Policy(), [0.5], [0.5])
pixels(IMAGES, [0], draw_plain(1), Policy())
