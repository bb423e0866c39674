"""Fill a bank: every image in its views through the frozen trunk, on all cores, resumable, only what is missing."""

import hashlib
import json
import os
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from cotrain.augment import Draw, Policy, draw_plain, draw_strong, draw_weak, joined, pixels
from cotrain.data.bank import PLAIN, Bank, view_names
from cotrain.data.dataset import Dataset
from cotrain.data.inputs import near
from cotrain.data.settings import BankSettings
from cotrain.progress import clock, counted, say, size_of
from cotrain.storage.location import home, one_at_a_time
from cotrain.storage.rows import Damaged
from cotrain.trunk.runtime import Compute, Kind, compiled, has_onnxruntime, is_prepared
from cotrain.trunk.store import Store
from cotrain.trunk.trunk import Trunk
from cotrain.types import UserError

VERSION = 3
SEED = 0  # of the views: every run uses the same ones
DRAWN = 16  # views of an image drawn at once; the first ones are the same however many there are
AT_ONCE = 8  # views per call of the trunk
IMAGES_PER_TASK = 8
SAVE_SECONDS = 5.0
FLOAT16 = (float(np.finfo(np.float16).min), float(np.finfo(np.float16).max))


@dataclass(frozen=True)
class Task:
    """Some images that lack the same views."""

    rows: NDArray[np.int64]  # of the dataset
    names: tuple[str, ...]


def open_bank(
    dataset: Dataset,
    trunk: Trunk,
    policy: Policy,
    settings: BankSettings,
    console: Console,
    runtime: Kind = "auto",
    *,
    augmented: bool = True,
) -> Bank:
    """The bank of the dataset's images. Views that are not there yet are computed first; without `augmented`, the
    plain ones.

    Each view of an image depends only on the image, the policy and `SEED`.
    """
    making = Making(dataset, trunk, policy, runtime, console)
    with making.explained():
        store = making.completed(view_names(settings.weak, settings.strong) if augmented else [PLAIN])
    read = Reading(making, store)
    return Bank(making.folder, dataset.hashes, making.shape, settings.weak, settings.strong, read, trunk.weights)


@dataclass(frozen=True)
class Making:
    """What is needed to compute the features of a dataset."""

    dataset: Dataset
    trunk: Trunk
    policy: Policy
    runtime: Kind
    console: Console

    @cached_property
    def facts(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "trunk": self.trunk.digest,
            "images": list(self.trunk.images),
            "policy": self.policy.model_dump(),
            "seed": SEED,
            "shape": list(self.shape),
        }

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        return self.trunk.shape

    @cached_property
    def folder(self) -> Path:
        return home() / "banks" / hashlib.blake2b(json.dumps(self.facts).encode(), digest_size=8).hexdigest()

    def store(self) -> Store:
        return Store(self.folder, self.shape, self.dataset.hashes)

    def completed(self, names: Sequence[str]) -> Store:
        """The store, after computing what it lacks of these views."""
        store = self.store()
        if any(True for _ in missing(store, self.dataset, names)):
            with self.alone():
                store = self.store()
                self.fill(store, names)
        return store

    def fill(self, store: Store, names: Sequence[str]) -> None:
        if not any(True for _ in missing(store, self.dataset, names)):  # another process computed it in the meantime
            return
        if self.runtime == "auto" and not has_onnxruntime():
            say(self.console, "onnxruntime is not installed: with torch, this takes about three times as long")
        if not is_prepared(self.trunk, self.runtime):
            say(self.console, f"preparing {self.trunk.name} for onnxruntime, once")
        work = Work(store, self.dataset, self.policy, compiled(self.trunk, self.runtime))
        _fill(work, names, self.console)

    @contextmanager
    def alone(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(self.folder / ".lock", "computing the same features", self.console):
            yield

    @contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"cannot keep the features in {self.folder}: {error.strerror or error}; "
                "set COTRAIN_HOME to a folder with room"
            ) from error


class Reading:
    """Reads features of the dataset's images. Damaged ones are computed again."""

    def __init__(self, making: Making, store: Store) -> None:
        self.making, self.store = making, store

    def __call__(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        with self.making.explained():
            try:
                return self.store.read(name, rows)
            except Damaged:
                self._compute_again(name)
                assert (self.store.places(name)[rows] >= 0).all(), "these images are in no part of the dataset"
                return self.store.read(name, rows)

    def _compute_again(self, name: str) -> None:
        """All damaged rows of this view."""
        with self.making.alone():
            self.store = self.making.store()
            say(self.making.console, f"{self.store.folder / name} is damaged: computing these features again")
            self.store.view(name).drop_damaged()
            self.making.fill(self.store, [name])


def missing(store: Store, dataset: Dataset, names: Sequence[str]) -> Iterator[Task]:
    """What is not there of these views: the plain one of every image, all of the training images."""
    used = np.concatenate([dataset.train, dataset.valid, dataset.test])
    _, first = np.unique(dataset.hashes[used], return_index=True)  # the same image twice is computed once
    rows = used[np.sort(first)]
    training = np.isin(dataset.hashes[rows], dataset.hashes[dataset.train])
    done = np.stack([store.done(name)[rows] for name in names])
    augmented = np.array([name != PLAIN for name in names])
    done[np.ix_(augmented, ~training)] = True
    lacking, group = np.unique(~done, axis=1, return_inverse=True)
    for number, which in enumerate(lacking.T):
        these = np.flatnonzero(group.reshape(-1) == number)
        if which.any():
            wanted = tuple(name for name, lacks in zip(names, which, strict=True) if lacks)
            for part in np.array_split(these, -(-len(these) // IMAGES_PER_TASK)):
                yield Task(rows[part], wanted)


def _fill(work: "Work", names: Sequence[str], console: Console) -> None:
    store, dataset = work.store, work.dataset
    tasks = [*missing(store, dataset, names)]
    images, views = sum(len(task.rows) for task in tasks), sum(len(task.rows) * len(task.names) for task in tasks)
    lacking = {name: [task.rows for task in tasks if name in task.names] for name in names}
    wanted = [name for name in names if lacking[name]]
    for name in wanted:
        store.add(name, np.concatenate(lacking[name]))
    store.reserve(wanted)
    seconds, size = work.seconds_per_view(tasks[0]) * views / cores(), views * store.view(PLAIN).row_bytes
    say(console, f"computing {views:,} views of {images:,} images once: about {clock(seconds)} and {size_of(size)}")
    with closing(_each_image(work, tasks, cores())) as finished:
        for _ in counted(finished, images, "computing features of images", console):
            pass


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _each_image(work: "Work", tasks: Sequence[Task], threads: int) -> Generator[None]:
    """Yields once per finished image; a few tasks at a time are in memory. Whatever happens, finished ones are kept."""
    saved, waiting = time.monotonic(), set[Future[int]]()
    remaining = iter(tasks)
    with ThreadPoolExecutor(threads) as pool:
        try:
            while True:
                while len(waiting) < 2 * threads and (task := next(remaining, None)) is not None:
                    waiting.add(pool.submit(work.compute, task))
                if not waiting:
                    return
                finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for each in finished:
                    yield from [None] * each.result()
                if time.monotonic() - saved > SAVE_SECONDS:
                    work.store.save()
                    saved = time.monotonic()
        finally:
            pool.shutdown(cancel_futures=True)
            work.store.save()


@dataclass(frozen=True)
class Work:
    store: Store
    dataset: Dataset
    policy: Policy
    trunk: Compute

    def compute(self, task: Task) -> int:
        """Compute and store the views of a task. Returns its number of images."""
        features = self.features(task)
        for number, name in enumerate(task.names):
            self.store.write(name, task.rows, features[:, number])
        return len(task.rows)

    def features(self, task: Task) -> NDArray[np.float16]:
        """(images, views, C, h, w)."""
        images, (places,) = near(self.dataset.kind.pixels, [task.rows], torch.device("cpu"))
        height, width = images.shape[1:3]
        draws = [
            view_draw(name, self.policy, int(self.dataset.hashes[row]), height, width)
            for row in task.rows
            for name in task.names
        ]
        views = pixels(images, np.repeat(places, len(task.names)), joined(draws), self.policy).numpy()
        parts = [self.trunk(views[start : start + AT_ONCE]) for start in range(0, len(views), AT_ONCE)]
        features = np.concatenate(parts).clip(*FLOAT16).astype(np.float16)
        return features.reshape(len(task.rows), len(task.names), *features.shape[1:])

    def seconds_per_view(self, task: Task) -> float:
        """Measured on one image, after a first call that loads code and memory."""
        one = Task(task.rows[:1], task.names)
        self.features(one)
        began = time.monotonic()
        self.features(one)
        return (time.monotonic() - began) / len(task.names)


def view_draw(name: str, policy: Policy, image: int, height: int, width: int) -> Draw:
    """The random decisions for one view of one image: the same in every dataset and for any number of views."""
    if name == PLAIN:
        return draw_plain(1)
    kind, number = name.split("-")
    block, place = divmod(int(number), DRAWN)
    return _drawn(kind, block, policy, image, height, width)[place : place + 1]


@lru_cache(maxsize=64)
def _drawn(kind: str, block: int, policy: Policy, image: int, height: int, width: int) -> Draw:
    draw = {"weak": draw_weak, "strong": draw_strong}[kind]
    rng = np.random.default_rng((SEED, image, ["weak", "strong"].index(kind), block))
    return draw(policy, DRAWN, height, width, rng)
