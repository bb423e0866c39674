"""A training problem: settings, data and a split, and what follows from them, each computed once when it is needed."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from cotrain.audit.neighbours import Neighbours, Similarity, neighbours_of
from cotrain.config import Config
from cotrain.data import BatchSource, Dataset, Drawing, Split
from cotrain.data.bank import Bank
from cotrain.data.inputs import Inputs
from cotrain.data.kinds import Kind
from cotrain.graph import Graphs
from cotrain.model.trust import is_import_path
from cotrain.networks import Statistics, build_trunk, pixel_statistics
from cotrain.training.distributed import ALONE, Ranks
from cotrain.training.selection import Selection, Used, selection_of
from cotrain.training.state import begin, pool_of
from cotrain.training.step import Training
from cotrain.trunk.building import open_bank
from cotrain.trunk.trunk import Trunk
from cotrain.types import Pool

Rows = NDArray[np.int64]
QUIET = Console(quiet=True)


class Prepared:
    """What is the same for every method, split and set of labels: the frozen trunk, its features, and their graphs."""

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        ranks: Ranks = ALONE,
        console: Console = QUIET,
        *,
        augmented: bool = True,
    ) -> None:
        """Without `augmented`, a bank has only the features of the images as they are: enough for evaluation."""
        self.config, self.dataset, self.ranks, self.console, self.augmented = config, dataset, ranks, console, augmented
        self.graphs = Graphs()
        self._inputs: tuple[Rows, Inputs] | None = None

    def serves(self, config: Config) -> bool:
        """Whether other settings have the same trunk and the same views."""
        ours, theirs = ((own.model, own.augment, own.bank, own.run.runtime) for own in (self.config, config))
        shares = [own.method.share or own.model.share for own in (self.config, config)]
        own_network = is_import_path(config.model.backbone) or config.model.own is not None
        same_method = not own_network or self.config.method == config.method  # which the user's function may look at
        return ours == theirs and shares[0] == shares[1] and same_method

    @cached_property
    def trunk(self) -> Trunk | None:
        return build_trunk(self.config, len(self.dataset.classes), self.dataset.shape)

    @cached_property
    def statistics(self) -> Statistics | None:
        """Of the pixels that a pretrained network expects; None: nothing is pretrained."""
        return pixel_statistics(self.config, len(self.dataset.classes), self.dataset.shape[-1])

    @cached_property
    def bank(self) -> Bank | None:
        """Rank 0 computes the features for all ranks."""
        if self.dataset.kind.bank is not None or self.trunk is None:
            return self.dataset.kind.bank
        trunk, config, opened = self.trunk, self.config, list[Bank]()

        def open_once() -> None:
            if not opened:
                views, runtime = (config.augment, config.bank, self.console), config.run.runtime
                opened.append(open_bank(self.dataset, trunk, *views, runtime, augmented=self.augmented))

        self.ranks.from_first(open_once)
        open_once()
        return opened[0]

    @cached_property
    def kind(self) -> Kind:
        return self.with_bank(self.dataset).kind

    def with_bank(self, dataset: Dataset) -> Dataset:
        """The dataset, whose images are the same, with their features, if the network has a frozen trunk."""
        return replace(dataset, bank=self.bank)

    @cached_property
    def similarity(self) -> Similarity:
        assert self.bank is not None
        return Similarity(self.bank, self.graphs)

    def inputs(self, rows: Rows) -> Inputs:
        """Standardised by these rows; those of the last ones are kept, because folds differ only in their labels."""
        if self._inputs is None or not np.array_equal(self._inputs[0], rows):
            self._inputs = rows, self.kind.inputs(rows, self.statistics)
        return self._inputs[1]


class Experiment:
    """Derived experiments, such as a fold or a baseline, share what is the same."""

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        split: Split,
        device: torch.device,
        ranks: Ranks = ALONE,
        *,
        prepared: Prepared | None = None,
    ) -> None:
        self.config, self.split, self.device, self.ranks = config, split, device, ranks
        self.given = dataset
        self.prepared = prepared or Prepared(config, dataset, ranks)

    def with_split(self, split: Split) -> "Experiment":
        return Experiment(self.config, self.given, split, self.device, self.ranks, prepared=self.prepared)

    def with_config(self, config: Config) -> "Experiment":
        """Another method or other heads on the same inputs: the trunk and its views are those of this experiment."""
        return Experiment(config, self.given, self.split, self.device, self.ranks, prepared=self.prepared)

    def alone(self) -> "Experiment":
        """The same in this process only, whatever the other ranks do."""
        return Experiment(self.config, self.given, self.split, self.device, prepared=self.prepared)

    @property
    def trunk(self) -> Trunk | None:
        return self.prepared.trunk

    @property
    def kind(self) -> Kind:
        return self.prepared.kind

    @cached_property
    def dataset(self) -> Dataset:
        """With the features of its images, if the network has a frozen trunk."""
        return self.prepared.with_bank(self.given)

    @cached_property
    def neighbours(self) -> Neighbours:
        """What the neighbours of each training image say about it; needs a bank."""
        return neighbours_of(self.prepared.similarity, self.given, self.split, self.config.run.seed)

    @cached_property
    def selection(self) -> Selection:
        """What training uses of the data, on this rank."""
        return selection_of(self.config, self.given, self.split, self.prepared.bank, lambda: self.neighbours)

    @cached_property
    def used(self) -> Used:
        """What training uses of the data, on every rank."""
        return self.ranks.from_first(lambda: self.selection.used)

    @cached_property
    def pool(self) -> Pool:
        return pool_of(self.given, *self.used)

    @cached_property
    def inputs(self) -> Inputs:
        return self.prepared.inputs(np.asarray(self.split.unlabelled))

    @property
    def drawing(self) -> Drawing:
        config = self.config
        return Drawing(
            config.method.views,
            labelled=config.optim.labelled,
            unlabelled=config.unlabelled,
            seed=config.run.seed,
            balanced=config.robust.balances,
            images=config.augment,
            rows=config.features,
            part=(self.ranks.rank, self.ranks.size),
        )

    @cached_property
    def source(self) -> BatchSource:
        return self.kind.source(self.inputs, self.pool, self.drawing, self.device)

    def start(self, weights: Mapping[str, Tensor] | None = None) -> Training:
        """Training before its first step. `weights` replace the random ones, except where a method has more outputs."""
        state = begin(
            self.config,
            self.pool,
            self.inputs,
            self.given.shape[-1],
            self.device,
            pretrained=self.prepared.statistics is not None,
            weights=weights,
        )
        return Training(self.config, state, self.source, self.pool, self.ranks, self.prepared.graphs)
