"""A run that nobody trained, and its page."""

import pytest

from cotrain import Dataset
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
