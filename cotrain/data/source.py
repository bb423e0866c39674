"""Batches: rows and views are a function of (seed, step), so resuming needs no loader state."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.augment import Draw, Policy, draw_plain, draw_strong, draw_weak, normalised
from cotrain.data.dataset import Dataset
from cotrain.data.split import Split
from cotrain.types import Batch, Views


class Source:
    """Draws B labelled and U unlabelled images a step, with replacement, and makes their views."""

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        policy: Policy,
        views: Views,
        *,
        labelled: int,
        unlabelled: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self.images = dataset.images.to(device)
        self.labels = dataset.labels.to(device)
        self.labelled_rows = np.asarray(split.labelled)
        self.unlabelled_rows = np.asarray(split.unlabelled)
        self.policy, self.views = policy, views
        self.labelled, self.unlabelled = labelled, unlabelled
        self.seed, self.device = seed, device
        self.mean, self.std = dataset.pixel_statistics(self.unlabelled_rows)

    def batch(self, step: int) -> Batch:
        rng = np.random.default_rng((self.seed, step))
        rows = rng.choice(self.labelled_rows, self.labelled)
        index = rng.choice(self.unlabelled_rows, self.unlabelled)
        height, width = self.images.shape[1:3]
        weak = self.views.weak * len(index)
        strong = self.views.strong * len(index)
        x = self.render(rows, draw_weak(self.policy, len(rows), height, width, rng))
        weak_draw = draw_weak(self.policy, weak, height, width, rng) if self.views.weak_augment else draw_plain(weak)
        return Batch(
            x=x,
            y=self.labels[torch.from_numpy(rows).to(self.device)],
            row=torch.from_numpy(rows).to(self.device),
            weak=self._of_each(index, self.views.weak, weak_draw),
            strong=self._of_each(index, self.views.strong, draw_strong(self.policy, strong, height, width, rng)),
            index=torch.from_numpy(index).to(self.device),
        )

    def generator(self, step: int) -> torch.Generator:
        """Randomness for the method itself."""
        state = np.random.SeedSequence((self.seed, step, 1)).generate_state(1, np.uint64)
        return torch.Generator(self.device).manual_seed(int(state[0]))

    def render(self, rows: NDArray[np.int64], draw: Draw) -> Tensor:
        return normalised(self.images, rows, draw, self.policy, self.mean, self.std)

    def _of_each(self, index: NDArray[np.int64], views: int, draw: Draw) -> Tensor:
        """(views, U, c, h, w): every view of every unlabelled image."""
        rendered = self.render(np.tile(index, views), draw)
        return rendered.unflatten(0, (views, len(index)))
