"""Runs that an earlier version wrote can still be opened, used and shown."""

import json
from pathlib import Path

import pytest

import cotrain
from cotrain.cli.main import main
from cotrain.runs.checkpoint import read_tensors, write_tensors
from cotrain.runs.run import Run
from tests.made_up import made_up_run, some_data


def aged(run: Run, **method: str) -> Run:
    """The same run with these settings of its method in its files."""
    values = json.loads((run.folder / "config.json").read_text())
    values["method"] |= method
    (run.folder / "config.json").write_text(json.dumps(values))
    tensors, facts = read_tensors(run.model_path)
    write_tensors(run.model_path, tensors, facts | {"config": values})
    return Run.open(run.folder)


def test_a_setting_that_is_gone_is_left_out(tmp_path: Path) -> None:
    dataset = some_data()
    run = aged(made_up_run(tmp_path / "run", dataset), strong_pass="all")
    assert run.config.method.name == "mhct"
    assert len(cotrain.load(run.folder).predict(dataset.images[:2])) == 2


def test_routed_views_were_a_setting_of_mhct(tmp_path: Path) -> None:
    run = aged(made_up_run(tmp_path / "run", some_data()), strong_pass="all", strong_views="routed")
    assert run.config.method.name == cotrain.load(run.folder).config.method.name == "mhct_routed"


def test_a_variant_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(cotrain.UserError, match=r"config\.json is damaged: unknown setting method\.strong_pass"):
        aged(made_up_run(tmp_path / "run", some_data()), strong_pass="selected")


def test_the_page_shows_a_log_without_the_names_of_today(tmp_path: Path) -> None:
    """VAT once logged a weighted sum as its unsupervised loss, beside the parts of it."""
    run = made_up_run(tmp_path / "run", some_data(), changes={"method": "vat"})
    row = {"supervised": 1.0, "unsupervised": 0.3, "adversarial": 0.5, "entropy": 0.2}
    run.log_path.write_text("".join(json.dumps({"step": step, **row}) + "\n" for step in (1, 2)))
    main(["report", str(run.folder)])
    page = (run.folder / "report.html").read_text()
    assert "loss over 2 steps. supervised ends at 1; adversarial ends at 0.5; entropy ends at 0.2." in page
    assert "value over 2 steps. unsupervised ends at 0.3." in page
