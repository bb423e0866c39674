"""For tests on the tiny trunk, in this folder and elsewhere: import the ones that a file uses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trunk.tiny import Counting, known


@pytest.fixture(scope="module", autouse=True)
def tiny_is_known() -> Iterator[None]:
    with known():
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty, and used by this test only."""
    folder = tmp_path / "home"
    monkeypatch.setenv("COTRAIN_HOME", str(folder))
    return folder


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tests of a file share their banks."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        patch.setenv("COTRAIN_HOME", str(folder))
        yield folder


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(monkeypatch)
