"""Labels are what the events say: undone, renamed, merged, and in conflict."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain.data.settings import DataSettings
from cotrain.labelling.events import CONFLICT, STRANGER, Refused, class_name
from cotrain.labelling.history import LabelHistory
from cotrain.labelling.journal import Journal
from cotrain.labelling.labels import replay
from cotrain.labelling.labels_csv import LabelTable

IMAGES = [f"{number}.png" for number in range(6)]


class Memory(Journal):
    """A journal without a file."""

    def _append(self, line: bytes) -> None:
        pass


def a_history(*names: str) -> LabelHistory:
    history = LabelHistory(Memory(Path("none")), LabelTable(Path("labels.csv"), Path("."), IMAGES, DataSettings()))
    for name in names:
        history.new_class(name, who="me", how="key")
    return history


def say(history: LabelHistory, image: int, number: int, who: str = "me", seen: int | None = None) -> None:
    history.label({IMAGES[image]: seen}, number, who=who, how="key")


def test_the_newest_label_of_one_person_counts() -> None:
    history = a_history("cat", "dog")
    say(history, 0, 1)
    say(history, 0, 2)
    assert history.labels.by_name == {"0.png": "dog"}
    assert not history.labels.having(CONFLICT)


def test_two_people_who_disagree_are_a_conflict_until_somebody_who_saw_it_decides() -> None:
    history = a_history("cat", "dog")
    say(history, 0, 1, "me")
    say(history, 0, 2, "you")
    assert history.labels.by_name == {}
    assert [(one.who, one.number) for one in history.labels.opinions["0.png"]] == [("me", 1), ("you", 2)]
    say(history, 0, 1, "a third person", seen=CONFLICT)
    assert history.labels.by_name == {"0.png": "cat"}


def test_two_people_who_agree_are_none() -> None:
    history = a_history("cat", "dog")
    say(history, 0, 1, "me")
    say(history, 0, 1, "you")
    assert history.labels.by_name == {"0.png": "cat"}


def test_a_correction_by_somebody_who_saw_the_label_is_no_conflict() -> None:
    history = a_history("cat", "dog")
    say(history, 0, 1, "me")
    say(history, 0, 2, "you", seen=1)
    assert history.labels.by_name == {"0.png": "dog"}


def test_strangers_and_skipped_images_have_no_class() -> None:
    history = a_history("cat")
    say(history, 0, STRANGER)
    history.skip(["1.png"], who="me", how="key")
    assert history.labels.having(STRANGER) == ["0.png"]
    assert (set(history.labels.skipped), history.labels.by_name) == ({"1.png"}, {})
    say(history, 1, 1)
    assert not history.labels.skipped
    history.clear(["0.png", "1.png"], who="me", how="key")
    assert not history.labels.opinions


def test_merged_classes_are_one_even_for_a_page_that_has_not_heard_of_it() -> None:
    history = a_history("cat", "kitten", "dog")
    say(history, 0, 1)
    say(history, 1, 2, "you")
    history.merge(2, 1, who="me", how="click")
    say(history, 2, 2, "you")
    assert history.labels.by_name == {"0.png": "cat", "1.png": "cat", "2.png": "cat"}
    assert list(history.labels.names.values()) == ["cat", "dog"]
    with pytest.raises(Refused, match="itself"):
        history.merge(1, 2, who="me", how="click")


def test_merging_settles_a_conflict_between_the_two_classes() -> None:
    history = a_history("cat", "kitten")
    say(history, 0, 1, "me")
    say(history, 0, 2, "you")
    history.merge(2, 1, who="me", how="click")
    assert history.labels.by_name == {"0.png": "cat"}


def test_the_audit_remembers_whether_the_guess_was_right() -> None:
    history = a_history("cat", "dog")
    for image, guess in ((0, 1), (1, 2)):
        history.label({IMAGES[image]: None}, 1, who="me", how="audit", guess=guess)
    assert history.labels.audit == {"0.png": True, "1.png": False}


def test_undo_takes_back_what_this_person_did_last() -> None:
    history = a_history("cat", "dog")
    say(history, 0, 1, "me")
    say(history, 1, 2, "you")
    history.rename(1, "lion", who="me", how="click")
    history.undo(who="me", how="key")
    assert history.labels.by_name == {"0.png": "cat", "1.png": "dog"}
    history.undo(who="me", how="key")
    assert history.labels.by_name == {"1.png": "dog"}
    history.undo(who="you", how="key")
    with pytest.raises(Refused, match="nothing to undo"):
        history.undo(who="you", how="key")


def test_a_class_that_somebody_else_uses_is_not_undone() -> None:
    history = a_history("cat")
    say(history, 0, 1, "you")
    with pytest.raises(Refused, match="somebody else has used this class"):
        history.undo(who="me", how="key")
    assert history.labels.by_name == {"0.png": "cat"}


def test_an_undo_does_not_give_two_classes_one_name() -> None:
    history = a_history("cat")
    history.rename(1, "lion", who="me", how="click")
    history.new_class("cat", who="you", how="click")
    with pytest.raises(Refused, match="another class has this name"):
        history.undo(who="me", how="key")


@pytest.mark.parametrize("name", ["", "  ", "nan", "unlabelled", "-1", "a\x00b", "x" * 101, "\ud800"])
def test_names_that_a_table_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(Refused):
        a_history().new_class(name, who="me", how="key")


def test_names_are_kept_in_one_spelling_and_not_given_twice() -> None:
    assert class_name("  cafe\u0301   noir ") == "caf\u00e9 noir"
    with pytest.raises(Refused, match="already a class Cat"):
        a_history("Cat").new_class("cat", who="me", how="key")


WHO = st.sampled_from(["me", "you"])
IMAGE, CLASS = st.integers(0, 5), st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("label"), WHO, IMAGE, CLASS, st.none() | st.integers(-1, 3)),
    st.tuples(st.just("skip"), WHO, IMAGE),
    st.tuples(st.just("clear"), WHO, IMAGE),
    st.tuples(st.just("rename"), WHO, CLASS, st.sampled_from("abcdef")),
    st.tuples(st.just("merge"), WHO, CLASS, CLASS),
    st.tuples(st.just("undo"), WHO),
)


@given(st.lists(STEPS, max_size=25))
def test_a_replay_gives_the_same_labels_and_every_image_is_in_one_state(steps: list[tuple]) -> None:
    history = a_history("one", "two", "three")
    for kind, who, *rest in steps:
        try:
            match kind:
                case "label":
                    say(history, rest[0], rest[1], who, rest[2])
                case "skip" | "clear":
                    getattr(history, kind)([IMAGES[rest[0]]], who=who, how="key")
                case "undo":
                    history.undo(who=who, how="key")
                case _:
                    getattr(history, kind)(*rest, who=who, how="key")
        except Refused:
            continue
        assert replay(history.events) == history.labels
        parts = [
            set(history.labels.classes),
            set(history.labels.having(STRANGER)),
            set(history.labels.having(CONFLICT)),
        ]
        assert sum(map(len, parts)) == len(set().union(*parts)) == len(history.labels.opinions)
