"""Batches of views of the rows of a table. Rows and views depend only on (seed, step)."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.augment.feature_views import changed, draw_strong_features, draw_weak_features
from cotrain.data.inputs import FeatureInputs
from cotrain.data.source import BatchSource, Drawing
from cotrain.types import Batch, Pool

Floats = NDArray[np.float32]


class FeatureSource(BatchSource):
    """Makes the views of a step's rows. Strong views mix in other unlabelled rows of the same step."""

    inputs: FeatureInputs

    def __init__(self, inputs: FeatureInputs, pool: Pool, drawing: Drawing, device: torch.device) -> None:
        super().__init__(pool, drawing, device)
        self.inputs, self.policy, self.categorical = inputs, drawing.rows, inputs.features.categorical

    def batch(self, step: int, rates: Tensor | None = None) -> Batch:
        rng, wanted = np.random.default_rng((self.seed, step)), self.views
        rows, index = self._rows(step, rng)
        labelled, unlabelled = self.inputs.standardised(rows), self.inputs.standardised(index)
        x = self._weak(labelled, 1, rng)[0]
        plain = np.tile(unlabelled, (wanted.weak, 1, 1))
        return Batch(
            x=x,
            y=self.labels[torch.from_numpy(rows).to(self.device)],
            labelled_rows=torch.from_numpy(rows).to(self.device),
            weak=self._weak(unlabelled, wanted.weak, rng) if wanted.weak_augment else self._inputs(plain),
            strong=self._strong(unlabelled, wanted.strong, unlabelled, rng),
            unlabelled_rows=torch.from_numpy(index).to(self.device),
            x_strong=self._strong(labelled, wanted.labelled_strong, unlabelled, rng),
        )

    def _weak(self, rows: Floats, views: int, rng: np.random.Generator) -> Tensor:
        """(views, n, D', 1, 1)."""
        n, columns = rows.shape
        draw = draw_weak_features(self.policy, views * n, columns, len(self.categorical), rng)
        made = changed(np.tile(rows, (views, 1)), draw, rows, self.categorical)
        return self._inputs(made.reshape(views, n, columns))

    def _strong(self, rows: Floats, views: int, others: Floats, rng: np.random.Generator) -> Tensor:
        """(views, n, D', 1, 1)."""
        n, columns = rows.shape
        draw = draw_strong_features(self.policy, views * n, columns, len(self.categorical), len(others), rng)
        made = changed(np.tile(rows, (views, 1)), draw, others, self.categorical)
        return self._inputs(made.reshape(views, n, columns))

    def _inputs(self, values: Floats) -> Tensor:
        return self.inputs.of(values, self.device)
