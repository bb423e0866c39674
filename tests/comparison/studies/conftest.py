from collections.abc import Iterator

import pytest

from cotrain.training.timing import Pace


@pytest.fixture(scope="module")
def known_pace() -> Iterator[None]:
    """No trial steps, which would take as long as the runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cotrain.comparison.budget.pace", lambda *given, **named: Pace(0.01, 0.0))
        yield
