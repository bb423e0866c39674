"""What the server of `processes.py` has done before it forks: slow imports, and the compiled kernels are loaded."""

import sklearn.datasets
import sklearn.model_selection  # noqa: F401
import torch._dynamo  # which the processes of a job import
import torch.distributed.run  # noqa: F401

import cotrain.labelling.launch  # noqa: F401
import tests.kernels
import tests.processes  # noqa: F401
