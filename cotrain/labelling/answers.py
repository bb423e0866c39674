"""What the page shows, as plain values: the state of the session, cards of images, and second looks."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from cotrain.labelling.book import CONFLICT
from cotrain.labelling.labels import last_undoable
from cotrain.labelling.session import Session

Look = Literal["disputed", "conflicts", "strangers", "marked", "skipped", "gallery", "confident", "unsure"]
GUESSES = 3  # classes that a card names


def state(session: Session, who: str) -> dict[str, Any]:
    """Everything on the page except images."""
    labels, model = session.book.labels, session.model
    guessed = _guessed(session)
    undo = last_undoable(session.book.events, who)
    snapshot = model.snapshot if model else None
    return {
        "version": session.version,
        "you": labels.people.get(who, ""),
        "name": session.dataset.name,
        "table": str(session.book.table.path),
        "total": len(session.askable),
        "unasked": len(session.unasked()),
        "labelled": len(labels.classes),
        "strangers": len(labels.strangers),
        "skipped": len(labels.skipped),
        "conflicts": len(labels.conflicts),
        "disputed": len(_disputed(session)),
        "audited": len(labels.audit),
        "classes": [
            {"class": number, "name": name, "count": labels.counts[number], "guessed": guessed.get(number, 0)}
            for number, name in labels.names.items()
        ],
        "undo": undo.kind if undo else None,
        "training": session.trainer.training,
        "estimating": session.trainer.estimating,
        "preparing": session.trainer.preparing,
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


def _guessed(session: Session) -> dict[int, int]:
    """For each class, how many of the unlabelled images the model takes for it."""
    if (model := session.model) is None:
        return {}
    rows = sorted(session.unasked())
    chosen = np.bincount(model.snapshot.probabilities[rows].argmax(axis=1), minlength=len(model.numbers))
    counts: dict[int, int] = {}
    for number, count in zip(model.numbers, chosen.tolist(), strict=True):
        resolved = session.book.labels.resolve(number)
        counts[resolved] = counts.get(resolved, 0) + count
    return counts


def cards(session: Session, rows: Sequence[int]) -> list[dict[str, Any]]:
    return [card(session, row) for row in rows]


def card(session: Session, row: int) -> dict[str, Any]:
    """An image: what people say about it, and what the model guesses."""
    image, labels = session.dataset.paths[row], session.book.labels
    values = labels.values(image)
    return {
        "row": row,
        "path": image,
        "hash": f"{int(session.dataset.hashes[row]):016x}",
        "seen": CONFLICT if len(values) > 1 else values[0] if values else None,
        "said": [
            {"class": labels.resolve(one.number), "who": one.who, "person": labels.people.get(one.who, "")}
            for one in labels.said.get(image, ())
        ],
        "guesses": _guesses(session, row),
    }


def _guesses(session: Session, row: int) -> list[dict[str, Any]]:
    """The most probable classes. Merged classes add up."""
    if (model := session.model) is None:
        return []
    labels, sums = session.book.labels, dict[int, float]()
    for number, probability in zip(model.numbers, model.snapshot.probabilities[row].tolist(), strict=True):
        number = labels.resolve(number)
        if number in labels.names:
            sums[number] = sums.get(number, 0.0) + probability
    best = sorted(sums.items(), key=lambda item: -item[1])[:GUESSES]
    return [{"class": number, "probability": round(value, 4)} for number, value in best]


def taken_for(session: Session, number: int, count: int) -> list[int]:
    """Unlabelled images that the model takes for a class, the most confident first."""
    if (model := session.model) is None:
        return []
    rows = np.array(sorted(session.unasked()), np.int64)
    places = [place for place, one in enumerate(model.numbers) if session.book.labels.resolve(one) == number]
    probabilities = model.snapshot.probabilities[rows]
    mine = np.isin(probabilities.argmax(axis=1), places)
    order = np.argsort(-probabilities[mine].max(axis=1), kind="stable")
    return [int(row) for row in rows[mine][order][:count]]


def look(session: Session, what: Look, number: int | None) -> tuple[Sequence[int], Callable[[int], dict[str, Any]]]:
    """The rows of a second look, the most interesting first, and how to make a card of one."""
    labels = session.book.labels
    match what:
        case "disputed":
            proposed = dict(_disputed(session))
            return list(proposed), lambda row: {**card(session, row), "proposed": proposed[row]}
        case "conflicts":
            rows = session.rows(labels.conflicts)
        case "marked":
            rows = session.rows(labels.strangers)
        case "skipped":
            rows = session.rows(labels.skipped)
        case "gallery":
            rows = session.rows(reversed([image for image, value in labels.classes.items() if value == number]))
        case _:
            rows = _ranked(session, what)
    return rows, lambda row: card(session, row)


def _ranked(session: Session, what: Look) -> list[int]:
    """Unlabelled images: the least likely to belong to any class, the most or the least confident."""
    if (model := session.model) is None:
        return []
    snapshot, rows = model.snapshot, np.array(sorted(session.unasked()), np.int64)
    confidence = snapshot.probabilities[rows].max(axis=1, initial=0)
    score = {"strangers": snapshot.stranger_score[rows], "confident": confidence, "unsure": -confidence}[what]
    return [int(row) for row in rows[np.argsort(-score, kind="stable")]]


def _disputed(session: Session) -> list[tuple[int, int]]:
    """Labels that the model disputes and nobody has changed since: row and proposed class."""
    if (model := session.model) is None:
        return []
    labels, found = session.book.labels, []
    for one in model.snapshot.disputed:
        image = session.dataset.paths[one.row]
        value, proposed = labels.settled.get(image), labels.resolve(model.numbers[one.proposed])
        unchanged = value == labels.resolve(model.numbers[one.label]) and proposed != value
        if unchanged and not any(said.reviewed for said in labels.said[image]):
            found.append((one.row, proposed))
    return found
