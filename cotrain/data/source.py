"""Batches. Rows and views depend only on (seed, step), so resuming needs no loader state."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.augment import Draw, Policy, ctaugment, draw_plain, draw_strong, draw_weak, normalised, pixels
from cotrain.augment.feature_views import FeaturePolicy
from cotrain.data.bank import choose_views
from cotrain.data.imagefile import Images
from cotrain.data.inputs import BankInputs, ImageInputs, Inputs, near
from cotrain.progress import needed_and_free
from cotrain.types import NOTHING, Batch, Pool, UserError, Views


@dataclass(frozen=True)
class Drawing:
    """How the batch of a step is drawn, and what its views are."""

    views: Views
    labelled: int
    unlabelled: int
    seed: int = 0
    balanced: bool = False  # labelled images of all classes are drawn equally often, however many there are of each
    images: Policy = field(default_factory=Policy)  # how images are augmented
    rows: FeaturePolicy = field(default_factory=FeaturePolicy)  # how rows of a table are
    part: tuple[int, int] = (0, 1)  # (rank, ranks)


class BatchSource(ABC):
    """Draws B labelled and U unlabelled images per step.

    Images are drawn with replacement, unless the method passes over the unlabelled images in shuffled order.
    """

    inputs: Inputs

    def __init__(self, pool: Pool, drawing: Drawing, device: torch.device) -> None:
        """Among the labelled images of a class, each is drawn in proportion to its weight in the pool."""
        labels, self.labelled_rows = pool.labels.numpy(), pool.labelled.numpy()
        self.labels = torch.full((pool.images,), -1)
        self.labels[pool.labelled] = pool.labels
        self.labels = self.labels.to(device)
        self.chances = equal_chances(labels) if drawing.balanced else None
        self.exchange = None if pool.weights is None else Exchange(labels, pool.weights.numpy())
        self.unlabelled_rows = pool.unlabelled.numpy()
        self.views = drawing.views
        self.passes: dict[int, NDArray[np.int64]] = {}  # the current pass number and its shuffled unlabelled rows
        self.labelled, self.unlabelled = drawing.labelled, drawing.unlabelled
        self.seed, self.device = drawing.seed, device

    @abstractmethod
    def batch(self, step: int, rates: Tensor | None = None) -> Batch:
        """The batch of one step. `rates` are those of CTAugment, if the views need them; None: the initial rates."""

    def _rows(self, step: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The labelled and the unlabelled rows of a step."""
        places = rng.choice(len(self.labelled_rows), self.labelled, p=self.chances)
        if self.exchange is not None:
            places = self.exchange(places, np.random.default_rng((self.seed, step, 3)))
        rows = self.labelled_rows[places]
        index = self._next_of_pass(step) if self.views.every_pass else rng.choice(self.unlabelled_rows, self.unlabelled)
        return rows, index

    def unlabelled_of(self, first: int, end: int) -> NDArray[np.int64]:
        """The unlabelled rows of these steps, each once, sorted."""
        used = np.zeros(len(self.labels), np.bool_)
        for step in range(first, end):
            used[self._rows(step, np.random.default_rng((self.seed, step)))[1]] = True
        return np.flatnonzero(used)

    def _next_of_pass(self, step: int) -> NDArray[np.int64]:
        """The next U unlabelled rows; every pass has a new order."""
        places = np.arange(step * self.unlabelled, (step + 1) * self.unlabelled)
        passes, places = np.divmod(places, len(self.unlabelled_rows))
        return np.concatenate([self._shuffled(number)[places[passes == number]] for number in np.unique(passes)])

    def _shuffled(self, number: int) -> NDArray[np.int64]:
        order = self.passes.get(number)
        if order is None:
            order = np.random.default_rng((self.seed, number, 2)).permutation(self.unlabelled_rows)
            self.passes = {number: order}  # another thread may do the same
        return order

    def generator(self, step: int) -> torch.Generator:
        """The random generator of the method at this step."""
        state = np.random.SeedSequence((self.seed, step, 1)).generate_state(1, np.uint64)
        return torch.Generator(self.device).manual_seed(int(state[0]))

    def batches(self, first: int, end: int, rates: Tensor | None = None) -> Iterator[Batch]:
        """The batches of these steps, in order.

        A thread makes the next batch while this one is used, unless its views depend on the rates that this step
        learns.
        """
        if self.views.ctaugment != "none":
            yield from (self.batch(step, rates) for step in range(first, end))
            return
        with ThreadPoolExecutor(1) as executor:
            upcoming = executor.submit(self.batch, first)
            for step in range(first, end):
                batch = upcoming.result()
                if step + 1 < end:
                    upcoming = executor.submit(self.batch, step + 1)
                yield batch


def equal_chances(labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n,) the probability to draw each image, so that every class has the same."""
    weights = 1 / np.bincount(labels)[labels]
    return weights / weights.sum()


class Exchange:
    """Exchanges some of the images drawn for others of their class, so that each is drawn in proportion to its weight.

    As few as possible are exchanged: where all weights of a class are the same, none.
    """

    def __init__(self, labels: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """`labels` and `weights` (n,) of the images to draw."""
        relative = weights * np.bincount(labels)[labels] / np.bincount(labels, weights)[labels]
        self.kept = np.where(np.isclose(relative, 1), 1.0, relative)  # probability; above 1, certain
        self.order = np.argsort(labels, kind="stable")
        gain = np.maximum(self.kept - 1, 0)
        self.until = np.cumsum(gain[self.order])
        ends = self.until[np.cumsum(np.bincount(labels)) - 1]
        self.first, self.width = np.concatenate([[0.0], ends[:-1]])[labels], np.diff(ends, prepend=0.0)[labels]

    def __call__(self, places: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        keep, other = rng.random((2, len(places)))
        at = np.searchsorted(self.until, self.first[places] + other * self.width[places], side="right")
        return np.where(keep < self.kept[places], places, self.order[np.minimum(at, len(self.order) - 1)])


class Source(BatchSource):
    """Makes the views of a step's images from their pixels.

    All ranks draw the same images, and each makes only the views of its own rows, every `ranks`-th; the others are
    zeros, unless the method needs all views.
    """

    def __init__(self, inputs: ImageInputs, pool: Pool, drawing: Drawing, device: torch.device) -> None:
        super().__init__(pool, drawing, device)
        images, views, policy = inputs.images, drawing.views, drawing.images
        check_fits(images, device)
        self.images = images.to(device) if isinstance(images, Tensor) else images
        self.policy = policy
        changes = {} if views.labelled_operations is None else {"operations": views.labelled_operations}
        self.labelled_policy = policy.model_copy(update=changes)
        self.own = slice(None) if views.whole else slice(drawing.part[0], None, drawing.part[1])
        self.mean, self.std = inputs.mean, inputs.std
        self.inputs = replace(inputs, images=self.images)

    def batch(self, step: int, rates: Tensor | None = None) -> Batch:
        rng = np.random.default_rng((self.seed, step))
        rows, index = self._rows(step, rng)
        height, width = self.images.shape[1:3]
        weak, strong, x_strong = self.views.weak, self.views.strong, self.views.labelled_strong
        images, (held_rows, held_index) = near(self.images, [rows[self.own], index[self.own]], self.device)
        x = self._render(images, held_rows, draw_weak(self.policy, len(rows), height, width, rng))
        n = weak * len(index)
        weak_draw = draw_weak(self.policy, n, height, width, rng) if self.views.weak_augment else draw_plain(n)
        probe, probe_bins = NOTHING, NOTHING
        if self.views.ctaugment == "none":
            draw = draw_strong(self.policy, strong * len(index), height, width, rng)
            x_draw = draw_strong(self.labelled_policy, x_strong * len(rows), height, width, rng)
            strong_views = self._render(images, np.tile(held_index, strong), draw)
            x_strong_views = self._render(images, np.tile(held_rows, x_strong), x_draw)
        else:
            rates = ctaugment.initial_rates() if rates is None else rates
            strong_views = self._by_rates(images, np.tile(held_index, strong), strong * len(index), rates, rng)
            x_strong_views = self._by_rates(images, np.tile(held_rows, x_strong), x_strong * len(rows), rates, rng)
            changes = ctaugment.draw_probe(len(rows), rng)
            probe = self._changed(images, held_rows, changes, rng)
            probe_bins = torch.from_numpy(changes.bins).to(self.device)
        return Batch(
            x=x,
            y=self.labels[torch.from_numpy(rows).to(self.device)],
            labelled_rows=torch.from_numpy(rows).to(self.device),
            weak=self._render(images, np.tile(held_index, weak), weak_draw).unflatten(0, (weak, len(index))),
            strong=strong_views.unflatten(0, (strong, len(index))),
            unlabelled_rows=torch.from_numpy(index).to(self.device),
            x_strong=x_strong_views.unflatten(0, (x_strong, len(rows))),
            probe=probe,
            probe_bins=probe_bins,
        )

    def _render(self, images: Tensor, own_rows: NDArray[np.int64], draw: Draw) -> Tensor:
        return self._among_all(
            normalised(images, own_rows, draw[self.own], self.policy, self.mean, self.std), len(draw)
        )

    def _by_rates(
        self, images: Tensor, own_rows: NDArray[np.int64], n: int, rates: Tensor, rng: np.random.Generator
    ) -> Tensor:
        """Strong views by CTAugment."""
        changes = ctaugment.draw_policy(rates, n, rng)
        if self.views.ctaugment == "cutout":
            changes = ctaugment.then_cutout(changes, rng)
        return self._changed(images, own_rows, changes, rng)

    def _changed(
        self, images: Tensor, own_rows: NDArray[np.int64], changes: ctaugment.Recipe, rng: np.random.Generator
    ) -> Tensor:
        """Weak views with these operations applied, on the CPU."""
        height, width = self.images.shape[1:3]
        draw = draw_weak(self.policy, len(changes), height, width, rng)[self.own]
        weak = pixels(images, own_rows, draw, self.policy).cpu().numpy()
        changed = torch.from_numpy(ctaugment.render(weak, changes[self.own])).to(self.device)
        rows, plain = np.arange(len(draw)), draw_plain(len(draw))
        return self._among_all(normalised(changed, rows, plain, self.policy, self.mean, self.std), len(changes))

    def _among_all(self, own: Tensor, n: int) -> Tensor:
        """All n views: this rank's own at their places, zeros elsewhere."""
        if len(own) == n:
            return own
        every = own.new_zeros(n, *own.shape[1:]).to(memory_format=torch.channels_last)
        every[self.own] = own
        return every


def check_fits(images: Images, device: torch.device) -> None:
    if isinstance(images, Tensor) and device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if images.nbytes > free:
            needed, left = needed_and_free(images.nbytes, free)
            raise UserError(
                f"the images need {needed}, but the GPU has only {left} left; "
                "if they are files in a folder, use --memory 0 to read them during training"
            )


class BankSource(BatchSource):
    """Draws the views of a step's images from a bank."""

    def __init__(self, inputs: BankInputs, pool: Pool, drawing: Drawing, device: torch.device) -> None:
        super().__init__(pool, drawing, device)
        self.inputs, self.bank = inputs, inputs.bank

    def batch(self, step: int, rates: Tensor | None = None) -> Batch:
        rng, wanted = np.random.default_rng((self.seed, step)), self.views
        rows, index = self._rows(step, rng)
        plain = not wanted.weak_augment and wanted.weak
        return Batch(
            x=self._drawn("weak", rows, 1, rng)[0],
            y=self.labels[torch.from_numpy(rows).to(self.device)],
            labelled_rows=torch.from_numpy(rows).to(self.device),
            weak=self._plain(index, wanted.weak) if plain else self._drawn("weak", index, wanted.weak, rng),
            strong=self._drawn("strong", index, wanted.strong, rng),
            unlabelled_rows=torch.from_numpy(index).to(self.device),
            x_strong=self._drawn("strong", rows, wanted.labelled_strong, rng),
        )

    def _drawn(self, kind: str, rows: NDArray[np.int64], views: int, rng: np.random.Generator) -> Tensor:
        """(views, n, C, h, w)."""
        available = self.bank.weak if kind == "weak" else self.bank.strong
        chosen = choose_views(views, len(rows), available, rng)
        features = self.bank.views(kind, np.tile(rows, views), chosen.ravel())
        return features.to(self.device).unflatten(0, (views, len(rows)))

    def _plain(self, rows: NDArray[np.int64], views: int) -> Tensor:
        return self.bank.plain(rows).to(self.device).expand(views, -1, -1, -1, -1)
