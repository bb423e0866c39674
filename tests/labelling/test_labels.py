"""Labels are what the events say: undone, renamed, merged, and in conflict."""

from pathlib import Path

import pytest
from cotrain.labelling.book import CONFLICT, Book
from hypothesis import given
from hypothesis import strategies as st

from cotrain.data.settings import DataSettings
from cotrain.labelling.events import STRANGER, Refused, class_name
from cotrain.labelling.journal import Journal
from cotrain.labelling.labels import replay
from cotrain.labelling.labels_csv import LabelTable

IMAGES = [f"{number}.png" for number in range(6)]


class Memory(Journal):
    """A journal without a file."""

    def _append(self, line: bytes) -> None:
        pass


def a_book(*names: str) -> Book:
    book = Book(Memory(Path("none")), LabelTable(Path("labels.csv"), Path("."), IMAGES, DataSettings()))
    for name in names:
        book.new_class(name, who="me", how="key")
    return book


def say(book: Book, image: int, number: int, who: str = "me", seen: int | None = None) -> None:
    book.label({IMAGES[image]: seen}, number, who=who, how="key")


def test_the_newest_label_of_one_person_counts() -> None:
    book = a_book("cat", "dog")
    say(book, 0, 1)
    say(book, 0, 2)
    assert book.labels.by_name == {"0.png": "dog"}
    assert not book.labels.conflicts


def test_two_people_who_disagree_are_a_conflict_until_somebody_who_saw_it_decides() -> None:
    book = a_book("cat", "dog")
    say(book, 0, 1, "me")
    say(book, 0, 2, "you")
    assert book.labels.by_name == {}
    assert [(one.who, one.number) for one in book.labels.conflicts["0.png"]] == [("me", 1), ("you", 2)]
    say(book, 0, 1, "a third person", seen=CONFLICT)
    assert book.labels.by_name == {"0.png": "cat"}


def test_two_people_who_agree_are_none() -> None:
    book = a_book("cat", "dog")
    say(book, 0, 1, "me")
    say(book, 0, 1, "you")
    assert book.labels.by_name == {"0.png": "cat"}


def test_a_correction_by_somebody_who_saw_the_label_is_no_conflict() -> None:
    book = a_book("cat", "dog")
    say(book, 0, 1, "me")
    say(book, 0, 2, "you", seen=1)
    assert book.labels.by_name == {"0.png": "dog"}


def test_strangers_and_skipped_images_have_no_class() -> None:
    book = a_book("cat")
    say(book, 0, STRANGER)
    book.skip(["1.png"], who="me", how="key")
    assert (book.labels.strangers, set(book.labels.skipped), book.labels.by_name) == ({"0.png"}, {"1.png"}, {})
    say(book, 1, 1)
    assert not book.labels.skipped
    book.clear(["0.png", "1.png"], who="me", how="key")
    assert not book.labels.said


def test_merged_classes_are_one_even_for_a_page_that_has_not_heard_of_it() -> None:
    book = a_book("cat", "kitten", "dog")
    say(book, 0, 1)
    say(book, 1, 2, "you")
    book.merge(2, 1, who="me", how="click")
    say(book, 2, 2, "you")
    assert book.labels.by_name == {"0.png": "cat", "1.png": "cat", "2.png": "cat"}
    assert list(book.labels.names.values()) == ["cat", "dog"]
    with pytest.raises(Refused, match="itself"):
        book.merge(1, 2, who="me", how="click")


def test_merging_settles_a_conflict_between_the_two_classes() -> None:
    book = a_book("cat", "kitten")
    say(book, 0, 1, "me")
    say(book, 0, 2, "you")
    book.merge(2, 1, who="me", how="click")
    assert book.labels.by_name == {"0.png": "cat"}


def test_the_audit_remembers_whether_the_guess_was_right() -> None:
    book = a_book("cat", "dog")
    for image, guess in ((0, 1), (1, 2)):
        book.label({IMAGES[image]: None}, 1, who="me", how="audit", guess=guess)
    assert book.labels.audit == {"0.png": True, "1.png": False}


def test_undo_takes_back_what_this_person_did_last() -> None:
    book = a_book("cat", "dog")
    say(book, 0, 1, "me")
    say(book, 1, 2, "you")
    book.rename(1, "lion", who="me", how="click")
    book.undo(who="me", how="key")
    assert book.labels.by_name == {"0.png": "cat", "1.png": "dog"}
    book.undo(who="me", how="key")
    assert book.labels.by_name == {"1.png": "dog"}
    book.undo(who="you", how="key")
    with pytest.raises(Refused, match="nothing to undo"):
        book.undo(who="you", how="key")


def test_a_class_that_somebody_else_uses_is_not_undone() -> None:
    book = a_book("cat")
    say(book, 0, 1, "you")
    with pytest.raises(Refused, match="somebody else has used this class"):
        book.undo(who="me", how="key")
    assert book.labels.by_name == {"0.png": "cat"}


def test_an_undo_does_not_give_two_classes_one_name() -> None:
    book = a_book("cat")
    book.rename(1, "lion", who="me", how="click")
    book.new_class("cat", who="you", how="click")
    with pytest.raises(Refused, match="another class has this name"):
        book.undo(who="me", how="key")


@pytest.mark.parametrize("name", ["", "  ", "nan", "unlabelled", "-1", "a\x00b", "x" * 101, "\ud800"])
def test_names_that_a_table_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(Refused):
        a_book().new_class(name, who="me", how="key")


def test_names_are_kept_in_one_spelling_and_not_given_twice() -> None:
    assert class_name("  cafe\u0301   noir ") == "caf\u00e9 noir"
    with pytest.raises(Refused, match="already a class Cat"):
        a_book("Cat").new_class("cat", who="me", how="key")


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
    book = a_book("one", "two", "three")
    for kind, who, *rest in steps:
        try:
            match kind:
                case "label":
                    say(book, rest[0], rest[1], who, rest[2])
                case "skip" | "clear":
                    getattr(book, kind)([IMAGES[rest[0]]], who=who, how="key")
                case "undo":
                    book.undo(who=who, how="key")
                case _:
                    getattr(book, kind)(*rest, who=who, how="key")
        except Refused:
            continue
        assert replay(book.events) == book.labels
        parts = [set(book.labels.classes), set(book.labels.strangers), set(book.labels.conflicts)]
        assert sum(map(len, parts)) == len(set().union(*parts)) == len(book.labels.said)
