"""What the trainer does first: new labels before an estimate, and neither waits for ever."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, cast

import pytest
from rich.console import Console

from cotrain.labelling import trainer as trainer_module
from cotrain.labelling.learning import Estimate, Known, PageModel, Point, Snapshot
from cotrain.labelling.revision import Revision
from cotrain.labelling.trainer import EVERY, FIRST_ESTIMATE, Prepare, Trainer
from tests.labelling.learned import CLASSES, a_snapshot

STEPS = 5


class FakePageModel(PageModel):
    """Notes what it is asked for, and lets people do something meanwhile."""

    def __init__(self, meanwhile: Callable[[str], None]) -> None:
        self.asked: list[tuple[str, int]] = []
        self.meanwhile = meanwhile

    def train(self, known: Known, earlier: Snapshot | None = None) -> Snapshot:
        self._note("train", known)
        return a_snapshot(labels=len(known.labels), curve=earlier.curve if earlier else ())

    def estimate(self, known: Known, snapshot: Snapshot) -> Iterator[Estimate | None]:
        assert snapshot.labels == len(known.labels), "the snapshot of these labels"
        for step in range(STEPS):
            self._note("step", known)
            done = step == STEPS - 1
            yield an_estimate(len(known.labels)) if done else None

    def ranking(self, snapshot: Snapshot | None, known: Known) -> list[int]:
        return []

    def _note(self, what: str, known: Known) -> None:
        self.asked.append((what, len(known.labels)))
        self.meanwhile(what)


def an_estimate(labels: int) -> Estimate:
    return Estimate(Point(labels, 20.0, 10.0, 30.0, "cross-validation"), 2.0, (), True, "Label more.")


class People:
    """Label images when they are told to."""

    def __init__(self, labels: int) -> None:
        self.labels = labels

    def known(self) -> Known:
        return Known(CLASSES, {row: row % 3 for row in range(self.labels)})


def ran(page_model: PageModel, people: People, enough: Callable[[Trainer], bool]) -> Trainer:
    """The trainer, after running here until it has done enough."""

    def prepare(console: Console) -> list[PageModel]:
        return [page_model]

    return run_here(prepare, people, enough)


class Watcher(Revision):
    """Ends a trainer that has done enough."""

    def __init__(self, enough: Callable[[Trainer], bool]) -> None:
        super().__init__()
        self.enough, self.trainer = enough, cast(Trainer, None)

    def bump(self) -> None:
        super().bump()
        if self.enough(self.trainer):
            self.trainer.end()


def run_here(prepare: Prepare, people: People, enough: Callable[[Trainer], bool]) -> Trainer:
    watcher = Watcher(enough)
    watcher.trainer = Trainer(prepare, people.known, watcher)
    watcher.trainer.run()
    return watcher.trainer


def points(trainer: Trainer) -> list[int]:
    return [point.labels for point in trainer.guesses.snapshot.curve] if trainer.guesses else []


def test_new_labels_interrupt_an_estimate_which_then_continues() -> None:
    people = People(FIRST_ESTIMATE)

    def meanwhile(what: str) -> None:
        if page_model.asked.count(("step", FIRST_ESTIMATE)) == 2 and what == "step":
            people.labels += EVERY

    page_model = FakePageModel(meanwhile)
    trainer = ran(page_model, people, lambda trainer: bool(points(trainer)))
    first, late = FIRST_ESTIMATE, FIRST_ESTIMATE + EVERY
    assert page_model.asked == [("train", first), *[("step", first)] * 2, ("train", late), *[("step", first)] * 3]
    assert trainer.guesses is not None
    assert trainer.guesses.snapshot.labels == late
    assert (trainer.guesses.snapshot.temperature, trainer.guesses.snapshot.advice) == (2.0, "Label more.")
    assert points(trainer) == [first], "the estimate is about the labels with which it began"


def test_somebody_who_never_stops_labelling_starves_neither_guesses_nor_estimates() -> None:
    people = People(FIRST_ESTIMATE)

    def label(_: str) -> None:
        people.labels += EVERY

    page_model = FakePageModel(label)
    trainer = ran(page_model, people, lambda trainer: len(points(trainer)) == 3)
    kinds = [what for what, _ in page_model.asked]
    assert "step step" not in " ".join(kinds), "new guesses wait for one step at most"
    assert kinds.count("step") == 3 * STEPS
    assert points(trainer) == sorted(points(trainer))


def test_an_estimate_that_fails_is_reported_once_and_guesses_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    people = People(FIRST_ESTIMATE)

    def broken(*_: Any) -> Iterator[None]:
        people.labels += EVERY
        raise RuntimeError("no memory")
        yield

    page_model = FakePageModel(lambda _: None)
    monkeypatch.setattr(page_model, "estimate", broken)
    problems = []

    def enough(trainer: Trainer) -> bool:
        problems.append(trainer.problem)
        return trainer.guesses is not None and trainer.guesses.snapshot.labels > FIRST_ESTIMATE

    ran(page_model, people, enough)
    assert "The error could not be estimated: no memory. Your labels are safe." in problems


def test_an_estimate_of_classes_that_are_gone_is_dropped() -> None:
    people = People(FIRST_ESTIMATE)

    class Forgetful(FakePageModel):
        def train(self, known: Known, earlier: Snapshot | None = None) -> Snapshot | None:  # type: ignore[override]
            return super().train(known, earlier) if known.labels else None

    def undo(what: str) -> None:
        if what == "step":
            people.labels = 0

    trainer = ran(
        Forgetful(undo),
        people,
        lambda trainer: trainer.guesses is None and trainer.estimating is False and people.labels == 0,
    )
    assert trainer.guesses is None


def a_full_disk_for(times: int, work: Callable[..., Any]) -> Callable[..., Any]:
    """The same, which fails the first few times."""
    calls = iter(range(times))

    def failing(*arguments: Any) -> Any:
        if next(calls, None) is not None:
            raise OSError(28, "No space left on device")
        return work(*arguments)

    return failing


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "FIRST_PAUSE", 0.01)


@pytest.mark.usefixtures("impatient")
def test_what_a_full_disk_prevented_is_tried_again_without_new_labels() -> None:
    class Unlucky(FakePageModel):
        def train(self, known: Known, earlier: Snapshot | None = None) -> Snapshot:
            return training(known, earlier)

        def estimate(self, known: Known, snapshot: Snapshot) -> Iterator[Estimate | None]:
            yield from estimating(known, snapshot)

    page_model, people, problems = Unlucky(lambda _: None), People(FIRST_ESTIMATE), list[str]()
    training = a_full_disk_for(3, super(Unlucky, page_model).train)
    estimating = a_full_disk_for(2, super(Unlucky, page_model).estimate)
    prepare = a_full_disk_for(3, lambda console: [page_model])

    def enough(trainer: Trainer) -> bool:
        problems.append(trainer.problem)
        return bool(points(trainer))

    trainer = run_here(prepare, people, enough)
    assert points(trainer) == [FIRST_ESTIMATE]
    assert trainer.problem == ""
    kinds = ("cannot learn", "training failed", "could not be estimated")
    assert [any(kind in problem and "No space left" in problem for problem in problems) for kind in kinds] == [True] * 3


@pytest.mark.usefixtures("impatient")
def test_while_views_are_missing_images_are_chosen_and_nothing_is_trained() -> None:
    page_model, attempts = FakePageModel(lambda _: None), count(1)

    def prepare(console: Console) -> Iterator[PageModel]:
        yield page_model  # knows each image as it is
        assert seen[-1].page_model is page_model
        assert page_model.asked == []
        if next(attempts) < 3:
            raise MemoryError
        yield page_model

    def enough(trainer: Trainer) -> bool:
        seen.append(trainer)
        return trainer.guesses is not None

    seen = list[Trainer]()
    run_here(prepare, People(FIRST_ESTIMATE), enough)
    assert next(attempts) == 4


def test_the_pause_before_the_next_attempt_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(trainer_module.time, "monotonic", lambda: now[0])
    attempt, pauses = trainer_module.Attempt(), list[float]()
    for _ in range(9):
        attempt.failed("full")
        began = now[0]
        while not attempt.is_due:
            now[0] += 1.0
        pauses.append(now[0] - began)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    attempt.succeeded()
    assert not attempt.is_due and attempt.problem == ""
