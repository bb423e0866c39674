"""The model card: the numbers of result.json, as Hugging Face's library reads them, whatever the classes are called."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cotrain.cli.main import main
from cotrain.report.card import CARD, as_code, as_markdown, card, write_card
from cotrain.runs.run import Run
from cotrain.runs.schema import ColumnFacts
from tests.made_up import made_up_run, some_data, with_result

pytestmark = pytest.mark.usefixtures("unrendered")

HOSTILE = ("a|b", "---\nlicense: mit", "`<b>*_x_*</b>`")
TESTED = {
    "test_error": 25.0,
    "test_images": 20,
    "data": "/home/me/photos: \"mine\" # \x07\udc80 {x}",
    "labels_by_class": [4, 1, 12],
    "labelled_only_error": 40.0,
    "logistic_regression_error": None,
    "verdict": {
        "labelled_only": 40.0, "error": 25.0, "difference": -15.0, "low": -30.0, "high": -2.5, "word": "helped"
    },
    "calibration": {"ensemble": {"as it is": {"temperature": 1.0, "ece": 7.25, "confidence": 81.0, "accuracy": 75.0}}},
    "temperature": None,
    "warnings": ["the heads have become too similar"],
    "leaks": 2,
}  # fmt: skip
CHECKED = {
    "test_error": None,
    "test_images": 0,
    "used": "labelled_only",
    "cross_validation": {
        "images": 12, "folds": 4, "repeats": 2,
        "errors": {
            "method": {"error": 33.0, "low": 15.0, "high": 60.0},
            "labelled_only": {"error": 12.5, "low": 3.0, "high": 40.0},
        },
        "against": {"baseline": "labelled_only", "difference": 20.5, "low": 4.0, "high": 31.0, "word": "hurt"},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Run:
    data = replace(some_data(), classes=HOSTILE)
    return made_up_run(tmp_path_factory.mktemp("card") / "a run: #1", data, result=TESTED)


@pytest.fixture(scope="module")
def untested(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_up_run(tmp_path_factory.mktemp("card") / "untested", some_data(test=0), result=CHECKED)


def copy_with(run: Run, folder: Path, **changes: Any) -> Run:
    return with_result(Run.open(shutil.copytree(run.folder, folder)), **changes)


def front(text: str) -> dict[str, Any]:
    start, header, _ = text.split("---\n", 2)
    assert start == ""
    return yaml.safe_load(header)


def test_the_front_matter_has_the_numbers_of_the_result(hostile: Run) -> None:
    header = front(card(hostile))
    assert header["library_name"] == "cotrain" and header["pipeline_tag"] == "image-classification"
    assert "license" not in header
    ((index,),) = [header["model-index"]]
    assert index["name"] == "a run: #1"
    (found,) = index["results"]
    assert found["dataset"]["name"] == r'photos: "mine" # \x07\udc80 {x}'
    assert found["dataset"]["split"] == "test"
    assert {one["type"]: one["value"] for one in found["metrics"]} == {"error": 25.0, "accuracy": 0.75}


@pytest.mark.parametrize("which", ["hostile", "untested"])
def test_hugging_face_reads_it(which: str, request: pytest.FixtureRequest) -> None:
    hub = pytest.importorskip("huggingface_hub")
    read = hub.ModelCard(card(request.getfixturevalue(which)))
    (accuracy,) = [one for one in read.data.eval_results if one.metric_type == "accuracy"]
    assert accuracy.metric_value == (0.75 if which == "hostile" else 0.875)
    assert accuracy.task_type == "image-classification"
    assert read.data.library_name == "cotrain"
    assert (
        front(f"---\n{read.data.to_yaml()}\n---\n")["model-index"]
        == front(card(request.getfixturevalue(which)))["model-index"]
    ), "and writes it as it was"


def test_the_text_says_how_good_it_is_and_how_that_is_known(hostile: Run) -> None:
    text = " ".join(card(hostile).split())
    assert "Its error is **25.0 %** (95 % confidence interval 11.2 to 46.9 %, 20 test images)" in text
    assert "| the same network on labelled images only | 40.00 % |" in text and "logistic" not in text
    assert "**The unlabelled images helped**: -15.00 points" in text and "-30.00 to -2.50" in text
    assert "expected calibration error is 7.25 %" in text and "uncalibrated" in text
    assert "- The heads have become too similar." in text
    assert "2 test images also occur in the training set" in text
    assert "fewer than 5 labels; the rarest had 1" in text and "from 1 to 12" in text
    assert "cotrain 0.1.0, torch 2.13.0" in text and "cotrain fit noise" in text


def test_names_break_neither_the_front_matter_nor_the_tables(hostile: Run) -> None:
    lines = card(hostile).splitlines()
    assert lines.count("---") == 2
    rows = lines[lines.index("| class | labels |") + 2 :][:3]
    assert rows == [
        r"| a\|b | 4 |",
        r"| ---\\nlicense: mit | 1 |",
        r"| \`\<b\>\*\_x\_\*\</b\>\` | 12 |",
    ]
    assert as_code("a`` `") == "``` a`` ` ```"
    assert as_markdown("1. plain") == "1. plain"


def test_without_test_images_the_error_is_that_of_the_model_in_use(untested: Run) -> None:
    text = card(untested)
    (found,) = front(text)["model-index"][0]["results"]
    assert found["dataset"]["split"] == "cross-validation" and found["metrics"][0]["value"] == 12.5
    flat = " ".join(text.split())
    assert "(95 % confidence interval 3.0 to 40.0 %, 12 labelled images, by cross-validation)" in flat
    assert "The same network on labelled images only is clearly better in cross-validation." in flat
    assert "**The unlabelled images hurt**: +20.50 points" in flat
    assert "estimated on the labelled images" in flat and "only 12 images" in flat


def test_an_unknown_error_is_no_number(untested: Run, tmp_path: Path) -> None:
    text = card(copy_with(untested, tmp_path / "run", cross_validation=None, used="method"))
    assert "model-index" not in front(text) and "metrics" not in front(text)
    assert "Its error is unknown." in text


def test_only_a_card_of_ours_is_overwritten(hostile: Run, tmp_path: Path, capsys) -> None:
    run = copy_with(hostile, tmp_path / "run", data=None)
    assert write_card(run) == run.folder / CARD
    (run.folder / CARD).write_text((run.folder / CARD).read_text().replace("25.0 %", "0.0 %"))
    main(["report", str(run.folder)])
    assert "**25.0 %**" in (run.folder / CARD).read_text()
    (run.folder / CARD).write_text("# Mine")
    assert write_card(run) is None
    capsys.readouterr()
    main(["report", str(run.folder)])
    assert "README.md was not written by cotrain" in " ".join(capsys.readouterr().out.split())
    assert (run.folder / CARD).read_text() == "# Mine"


def test_many_classes_are_counted(hostile: Run) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cotrain.report.card.MANY_CLASSES", 2)
        text = card(hostile)
    assert "The 3 classes are listed in `model.safetensors`." in text and "| class |" not in text


def test_a_result_of_an_older_version_has_a_card_too(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "older", some_data(), alone=None)
    (run.folder / "result.json").write_text(json.dumps({"test_error": 10.0}))
    assert "Its error is **10.0 %** (95 % confidence interval 4.7 to 20.1 %, 60 test images)." in card(run)


def test_a_table_has_rows_and_columns(hostile: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, facts = hostile.read_model()
    columns = [ColumnFacts(name="a", categories=None), ColumnFacts(name="b", categories=["x", "y"])]
    table = facts.model_copy(update={"columns": columns})
    monkeypatch.setattr(Run, "read_model", lambda run: (tensors, table))
    text = card(hostile)
    assert front(text)["pipeline_tag"] == "tabular-classification"
    assert "| rows | 2 columns |" in text and "20 test rows" in text and "image" not in text.split("## Use")[0]
