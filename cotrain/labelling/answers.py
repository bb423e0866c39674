"""What the API answers: the state of the session, cards of images, and second looks, as plain values."""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Literal

from cotrain.labelling.events import CONFLICT, STRANGER
from cotrain.labelling.guesses import Guesses
from cotrain.labelling.labels import Labels
from cotrain.labelling.session import Session

Look = Literal["disputed", "conflicts", "strangers", "marked", "skipped", "gallery", "confident", "unsure"]
GUESSES = 3  # classes that a card names


def state(session: Session, who: str) -> dict[str, Any]:
    """Everything on the page except images. The version comes first: what follows is at least as new."""
    version = session.revision.number
    labels, guesses, trainer = session.labels, session.guesses, session.trainer
    guessed = _guessed(session, labels, guesses)
    undo = session.history.last_undoable(who)
    snapshot = guesses.snapshot if guesses else None
    return {
        "version": version,
        "you": labels.people.get(who, ""),
        "name": session.dataset.name,
        "table": str(session.history.table.path),
        "total": len(session.index),
        "unasked": len(session.queue),
        "labelled": labels.labelled,
        "strangers": labels.counts[STRANGER],
        "skipped": len(labels.skipped),
        "conflicts": labels.counts[CONFLICT],
        "disputed": len(_disputed(session, labels)),
        "audited": len(labels.audit),
        "classes": [
            {"class": number, "name": name, "count": labels.counts[number], "guessed": guessed.get(number, 0)}
            for number, name in labels.names.items()
        ],
        "undo": undo.kind if undo else None,
        "training": trainer.training,
        "estimating": trainer.estimating,
        "preparing": trainer.preparing,
        "model": {"labels": snapshot.labels, "seconds": round(snapshot.seconds, 1)} if snapshot else None,
        "curve": [_point(point) for point in snapshot.curve] if snapshot else [],
        "paying": snapshot.paying if snapshot else None,
        "advice": snapshot.advice if snapshot else "",
        "notices": session.notices(),
        "finish": {"stage": session.finishing.stage, "line": session.finishing.line},
    }


def _point(point: Any) -> dict[str, Any]:
    numbers = {name: round(float(getattr(point, name)), 2) for name in ("error", "low", "high")}
    return {"labels": point.labels, "by": point.by, **numbers}


def _guessed(session: Session, labels: Labels, guesses: Guesses | None) -> dict[int, int]:
    """For each class, how many of the unlabelled images the model takes for it. Merged classes add up."""
    counts: dict[int, int] = {}
    for number, count in session.queue.guessed(guesses).items() if guesses else ():
        resolved = labels.resolve(number)
        counts[resolved] = counts.get(resolved, 0) + count
    return counts


def cards(session: Session, images: Iterable[str]) -> list[dict[str, Any]]:
    return [card(session, image) for image in images]


def card(session: Session, image: str) -> dict[str, Any]:
    """An image: what people say about it, and what the model guesses."""
    row, labels = session.index.row(image), session.labels
    return {
        "row": row,
        "path": image,
        "hash": f"{int(session.dataset.hashes[row]):016x}",
        "seen": labels.values.get(image),
        "said": [
            {"class": labels.resolve(one.number), "who": one.who, "person": labels.people.get(one.who, "")}
            for one in labels.opinions.get(image, ())
        ],
        "guesses": _guesses(labels, session.guesses, row),
    }


def _guesses(labels: Labels, guesses: Guesses | None, row: int) -> list[dict[str, Any]]:
    """The most probable classes. Merged classes add up."""
    sums: dict[int, float] = {}
    for number, probability in guesses.of(row) if guesses else ():
        number = labels.resolve(number)
        if number in labels.names:
            sums[number] = sums.get(number, 0.0) + probability
    best = sorted(sums.items(), key=lambda item: -item[1])[:GUESSES]
    return [{"class": number, "probability": round(value, 4)} for number, value in best]


def grid(session: Session, number: int, count: int) -> list[dict[str, Any]]:
    """Unlabelled images that the model takes for a class, the most confident first."""
    if (guesses := session.guesses) is None:
        return []
    numbers = {one for one in guesses.classes if session.labels.resolve(one) == number}
    rows = guesses.most_confident(session.queue.open_images(), numbers)[:count]
    return cards(session, session.index.images(rows.tolist()))


def look(session: Session, what: Look, number: int | None, start: int, count: int) -> dict[str, Any]:
    """A part of a second look, the most interesting images first, and how many there are."""
    labels, index = session.labels, session.index
    match what:
        case "disputed":
            disputed = _disputed(session, labels)
            part = islice(disputed.items(), start, start + count)
            shown = [{**card(session, image), "proposed": proposed} for image, proposed in part]
            return {"total": len(disputed), "cards": shown}
        case "conflicts":
            images = index.among(labels.having(CONFLICT))
        case "marked":
            images = index.among(labels.having(STRANGER))
        case "skipped":
            images = index.among(labels.skipped)
        case "gallery":
            images = index.among(reversed([image for image, value in labels.classes.items() if value == number]))
        case _:
            return _ranked(session, what, start, count)
    return {"total": len(images), "cards": cards(session, images[start : start + count])}


def _ranked(session: Session, what: Look, start: int, count: int) -> dict[str, Any]:
    """Unlabelled images: the least likely to belong to any class, the most or the least confident."""
    if (guesses := session.guesses) is None:
        return {"total": 0, "cards": []}
    order = {
        "strangers": guesses.strangest,
        "confident": guesses.most_confident,
        "unsure": guesses.least_confident,
    }[what]
    rows = order(session.queue.open_images())
    part = session.index.images(rows[start : start + count].tolist())
    return {"total": len(rows), "cards": cards(session, part)}


def _disputed(session: Session, labels: Labels) -> dict[str, int]:
    """Labels that the model disputes and nobody has changed since: image and proposed class."""
    if (guesses := session.guesses) is None:
        return {}
    found = {}
    for one in guesses.snapshot.disputed:
        image, proposed = session.dataset.paths[one.row], labels.resolve(one.proposed)
        value = labels.values.get(image)
        unchanged = value == labels.resolve(one.label) and proposed != value
        if unchanged and not any(opinion.reviewed for opinion in labels.opinions[image]):
            found[image] = proposed
    return found
