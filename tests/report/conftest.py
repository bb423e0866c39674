"""A run that nobody trained, and its page."""

from collections.abc import Iterator
from typing import IO, Any

import pytest

from cotrain import Dataset
from cotrain.report.figures import Figure
from cotrain.report.page import write_report
from cotrain.runs.run import Run
from tests.made_up import made_up_run, some_data


@pytest.fixture(scope="module")
def data() -> Dataset:
    return some_data()


@pytest.fixture(scope="module")
def run(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_up_run(tmp_path_factory.mktemp("report") / "run", data)


@pytest.fixture(scope="module")
def html(run: Run, data: Dataset) -> str:
    return write_report(run, data).read_text()


@pytest.fixture(scope="module")
def unrendered() -> Iterator[None]:
    """Figures are made, with their texts, but not rendered, which is most of the time that a page takes."""

    def save(figure: Figure, content: IO[Any], kind: str, **how: Any) -> None:
        assert kind == "svg"
        content.write('<svg viewBox="0 0 1 1"></svg>')

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "_save", save)
        yield
