"""A page gets images that nobody has answered, in the order of the ranking, and no click costs a pass over all."""

import asyncio
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from cotrain.data.settings import DataSettings
from cotrain.labelling import queue as queue_module
from cotrain.labelling.answers import state
from cotrain.labelling.connections import Connection
from cotrain.labelling.events import Label, Refused
from cotrain.labelling.guesses import Guesses
from cotrain.labelling.history import LabelHistory
from cotrain.labelling.image_index import ImageIndex
from cotrain.labelling.journal import Journal, NotSaved
from cotrain.labelling.labels import Labels
from cotrain.labelling.labels_csv import LabelTable
from cotrain.labelling.queue import Queue
from cotrain.labelling.served_images import NotShown
from cotrain.labelling.snapshot import Known
from tests.labelling.learned import CLASSES, a_snapshot
from tests.labelling.served import Served, photos, serving
from tests.labelling.test_labels import Memory

IMAGES = tuple(f"{row}.png" for row in range(6))


def a_history(images: tuple[str, ...] = IMAGES) -> LabelHistory:
    history = LabelHistory(Memory(Path("none")), LabelTable(Path("labels.csv"), Path("."), images, DataSettings()))
    for name in CLASSES.values():
        history.new_class(name, who="me", how="key")
    return history


def a_queue(history: LabelHistory, images: tuple[str, ...] = IMAGES, seed: int = 0) -> Queue:
    return Queue(ImageIndex(images, np.arange(len(images))), history, seed)


def a_guess() -> Guesses:
    return Guesses(a_snapshot(), Known(CLASSES, {}))


def test_the_ranking_comes_first_and_then_the_others() -> None:
    queue = a_queue(a_history())
    assert queue.next("a", 2, [], [4, 1]) == ["4.png", "1.png"]
    assert queue.next("a", 9, ["4.png"], [4, 1])[0] == "1.png", "a page may ask again for what it did not keep"
    assert {*queue.next("b", 9, [], [4, 1])} == {*IMAGES}, "better twice than nothing to do"


def test_an_image_that_another_page_shows_comes_later_and_returns_when_the_page_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(queue_module.time, "monotonic", lambda: now[0])
    queue = a_queue(a_history())
    assert queue.next("a", 2, [], [0, 1, 2]) == ["0.png", "1.png"]
    assert queue.next("b", 2, [], [0, 1, 2])[0] == "2.png"
    now[0] += queue_module.LEASE + 1
    assert queue.next("c", 3, [], [0, 1, 2]) == ["0.png", "1.png", "2.png"]


def test_images_are_closed_by_a_label_or_a_skip_and_opened_by_an_undo() -> None:
    history = a_history()
    queue = a_queue(history)
    history.label({"0.png": None}, 1, who="me", how="key")
    history.skip(["1.png", "not here.png"], who="me", how="key")
    assert len(queue) == 4
    assert {*queue.next("a", 9, [], [0, 1, 2])} == {*IMAGES[2:]}
    for count in (5, 6):
        history.undo(who="me", how="key")
        assert len(queue) == count


def test_an_audit_draws_every_open_image_equally_often_and_once() -> None:
    drawn: Counter[str] = Counter()
    images = tuple(f"{row}.png" for row in range(20))
    for seed in range(300):
        history = a_history(images)
        history.label({"0.png": None}, 1, who="me", how="key")
        queue = a_queue(history, images, seed)
        asked = queue.next("a", 5, ["19.png"], [7, 8, 9], audit=True)
        assert len(set(asked)) == 5
        drawn.update(asked)
        history.label(dict.fromkeys(asked), 1, who="me", how="audit")
        assert not {*queue.next("a", 5, [], [], audit=True)} & {*asked}
    assert set(drawn) == {*images[1:19]}
    assert chisquare([*drawn.values()]).pvalue > 0.001


STEPS = st.tuples(
    st.sampled_from(["label", "skip", "clear", "undo"]), st.sampled_from(["me", "you"]), st.integers(0, 5)
)


@given(st.lists(STEPS, max_size=20))
def test_what_is_counted_step_by_step_is_what_a_new_count_gives(steps: list[tuple[str, str, int]]) -> None:
    history, guesses = a_history(), a_guess()
    queue = a_queue(history)
    for kind, who, image in steps:
        try:
            if kind == "label":
                history.label({IMAGES[image]: None}, 1 + image % 3, who=who, how="key")
            elif kind == "undo":
                history.undo(who=who, how="key")
            else:
                getattr(history, kind)([IMAGES[image]], who=who, how="key")
        except Refused:
            continue
        labels, fresh = history.labels, a_queue(history)
        is_open = [image not in labels.opinions and image not in labels.skipped for image in IMAGES]
        assert queue.open_images().tolist() == fresh.open_images().tolist() == is_open
        assert len(queue) == len(fresh) == sum(is_open)
        assert queue.guessed(guesses) == fresh.guessed(guesses)


def test_names_that_are_no_text_and_test_images_are_not_in_the_index() -> None:
    index = ImageIndex(("a.png", "\udcfe.png", "test.png"), np.array([0, 1]))
    assert (len(index), "a.png" in index, index.image(0)) == (1, True, "a.png")
    for row in (1, 2, 3, 2**53):
        with pytest.raises(NotShown):
            index.image(row)
    assert index.images([0, 1, 2, 3, 2**53]) == ["a.png"]
    assert index.by_row({"a.png": 5, "test.png": 6}) == {0: 5}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(photos(tmp_path / "photos")) as one:
        yield one


def test_a_change_while_the_state_is_read_gives_it_an_older_version(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the page would believe that it knows the change, and never ask for it."""
    session = served.session
    (number,) = served.client.name("red").values()
    read = type(session).labels.fget  # type: ignore[attr-defined]
    changes = iter([{"3.png": None}])

    def changed_after(one: object) -> Labels:
        labels: Labels = read(one)
        for change in changes:
            session.label({f"00{image}": seen for image, seen in change.items()}, number, who="you", how="key")
        return labels

    monkeypatch.setattr(type(session), "labels", property(changed_after))
    found = state(session, "me")
    monkeypatch.undo()
    assert found["labelled"] == 0, "the labels from before the change"
    assert served.client.get(f"/api/state?version={found['version']}")["labelled"] == 1


def test_pages_hear_of_the_part_of_a_change_that_was_saved(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of the two events of this label meets a full disk."""
    (number,) = served.client.name("red").values()
    served.client.label(number, 3)
    session, add, left = served.session, Journal.add, iter([True])

    def full(self: Journal, kind: Any, **details: Any) -> Any:
        if kind is Label and next(left, None) is None:
            raise NotSaved("full")
        return add(self, kind, **details)

    monkeypatch.setattr(Journal, "add", full)
    version = session.revision.number
    with pytest.raises(NotSaved):
        session.label({"004.png": None, "003.png": number}, number, who="me", how="grid")
    monkeypatch.undo()
    found = served.client.get(f"/api/state?version={version}")
    assert found["labelled"] == 2


def test_answers_are_sent_at_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TCP_NODELAY, an answer in two parts waits 40 ms until the client has confirmed the first one."""
    seen, connection_made = list[int](), Connection.connection_made

    def noting(self: Connection, transport: asyncio.Transport) -> None:
        connection_made(self, transport)
        seen.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(Connection, "connection_made", noting)
    assert served.client.state["total"]
    assert seen and all(seen)


def lines_of_a_click(images: int) -> int:
    """Lines of Python that run for a label, the next image, the counts and an undo."""
    paths = tuple(f"{row}.png" for row in range(images))
    history = a_history(paths)
    queue, ranking = a_queue(history, paths), list(range(50))
    blank = np.zeros(images, np.float32)
    ensemble = np.full((images, 3), 1 / 3, np.float32)
    guesses = Guesses(replace(a_snapshot(), ensemble=ensemble, stranger_score=blank), Known(CLASSES, {}))
    queue.guessed(guesses)
    count, before = 0, sys.gettrace()

    def trace(*_: object) -> object:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)
    try:
        history.label({paths[0]: None}, 1, who="me", how="key")
        queue.next("a", 6, [], ranking)
        queue.guessed(guesses)
        history.undo(who="me", how="key")
        queue.next("a", 6, [], [], audit=True)
    finally:
        sys.settrace(before)
    return count


def test_a_click_costs_no_pass_over_all_images() -> None:
    assert lines_of_a_click(4000) < lines_of_a_click(100) + 100
