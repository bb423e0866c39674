from collections.abc import Iterator

import pytest

from tests.trunk.tiny import known


@pytest.fixture(scope="module", autouse=True)
def tiny_is_known() -> Iterator[None]:
    """The backbone `tiny`, whose features take milliseconds."""
    with known():
        yield
