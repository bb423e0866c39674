"""The contract of a method or a network, to be checked in anybody's tests:

    import cotrain.testing

    def test_contract():
        cotrain.testing.check_method(MyMethod)

A broken rule is an AssertionError that names it. All of it takes seconds, on a few digits with a small network.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from cotrain.testing.network import check_network
from cotrain.testing.rules import RULES
from cotrain.testing.trial import Subject
from cotrain.types import Method

__all__ = ["RULES", "Subject", "check_method", "check_network", "check_rule"]


def check_method(method: type[Method], settings: Mapping[str, Any] | None = None) -> None:
    """All rules. `settings` are dotted keys for a method that takes longer than 30 steps to do all it does."""
    subject = Subject(method, settings or {})
    for rule in RULES:
        check_rule(subject, rule)


def check_rule(subject: Subject, rule: Callable[[Subject], None]) -> None:
    title = f"{subject.method.__name__} breaks the rule {rule.__name__}"
    try:
        rule(subject)
    except AssertionError as error:
        raise AssertionError(f"{title}: {error} ({(inspect.getdoc(rule) or '').splitlines()[0]})") from error
    except Exception as error:
        error.add_note(f"{title}, or its code is wrong")
        raise
