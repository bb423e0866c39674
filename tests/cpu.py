"""CPU seconds per file, test and shared fixture, with those of other processes: `pytest -p tests.cpu -n 0 FILES`.

On a busy machine they say more than the seconds on the clock.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import psutil
import pytest

LINES = 30
FILES, PARTS = Counter[str](), Counter[str]()


def used() -> float:
    """By this process and by all that it started, running or ended."""
    this, total = psutil.Process(), 0.0
    for process in [this, *this.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    before = used()
    result = yield
    seconds = used() - before
    FILES[item.nodeid.split("::")[0]] += seconds
    PARTS[item.nodeid] += seconds
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    before = used()
    result = yield
    if fixturedef.scope != "function":
        PARTS[f"{request.node.nodeid} fixture {fixturedef.argname}"] += used() - before
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("CPU seconds")
    for table in (FILES, PARTS):
        for name, seconds in table.most_common(LINES):
            terminalreporter.write_line(f"{seconds:8.2f}  {name}")
        terminalreporter.write_line(f"{sum(FILES.values()):8.2f}  in all tests\n")
