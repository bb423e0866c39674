"""The contract of methods and networks, for tests of your own.

    import cotrain.testing

    def test_contract():
        cotrain.testing.check_method(MyMethod)

A broken rule raises an AssertionError that names it. All rules together take seconds: they use a small network and a
few digits.
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
    """Check all rules. `settings` (dotted keys) must bring every phase of the method into the first 20 steps."""
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
        error.add_note(f"{title}, or has a bug")
        raise
