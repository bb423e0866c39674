"""`cotrain predict --unknown-below`, and what --target-error says about images of no class."""

from pathlib import Path

import numpy as np
import pytest

from cotrain.cli.main import main
from cotrain.inference.prediction_table import columns, is_unknown, least_confident_first, rows_of
from cotrain.inference.streaming import RECORD, UNREADABLE, Predicted
from tests.inference.many import words


def table() -> Predicted:
    """A typical image, a strange one, one of an older run, and an unreadable file."""
    records = [(0, 3, 0.9, 0.8), (1, 3, 0.95, 0.02), (0, 3, 0.7, np.nan), (UNREADABLE, 0, 0.0, np.nan)]
    return Predicted(np.array(records, RECORD), {3: "torn"})


def test_a_strange_image_is_unknown_and_deferred() -> None:
    rows = rows_of(["a", "b", "c", "d"], table(), ["cat", "dog"], 0.5, unknown=0.05)
    assert [row["class"] for row in rows] == ["cat", "unknown", "cat", ""]
    assert [row["defer"] for row in rows] == ["no", "yes", "no", "yes"]
    assert [is_unknown(row, 0.05) for row in rows] == [False, True, False, False]


def test_without_a_rate_every_image_has_a_class() -> None:
    assert [row["class"] for row in rows_of(["a", "b", "c", "d"], table(), ["cat", "dog"], None)] == [
        "cat",
        "dog",
        "cat",
        "",
    ]


def test_strange_images_come_before_the_uncertain_ones() -> None:
    parts = least_confident_first(["a", "b", "c", "d"], lambda: iter([table()]), ["cat", "dog"], 0.5, unknown=0.05)
    assert [row["path"] for rows in parts for row in rows] == ["d", "b", "c", "a"]


def test_there_is_a_column_only_if_the_run_knows() -> None:
    assert "belongs" not in columns(None)
    assert columns(0.5, belongs=True) == ["path", "class", "probability", "heads_agree", "belongs", "error", "defer"]


def test_a_rate_that_so_few_labels_cannot_show(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["predict", str(many / "run"), str(many / "photos" / "0"), "--unknown-below", "0.0001"])
    assert "labelled images allow no rate of false alarms below" in capsys.readouterr().err


def test_the_summary_counts_unknown_images(many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(words(many, tmp_path / "preds.csv", "--unknown-below", "0.9"))
    unknown = sum(",unknown," in line for line in (tmp_path / "preds.csv").read_text().splitlines())
    assert unknown > 0
    assert f", {unknown} unknown -> " in capsys.readouterr().out
