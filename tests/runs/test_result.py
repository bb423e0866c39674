"""The result of a run: written and read back as the same object, by this version and by earlier ones."""

import json
import shutil
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import cotrain
from cotrain import UserError
from cotrain.cli.report import report_command
from cotrain.cli.result_table import result_table
from cotrain.runs.result import CrossValidation, OnTest, Recalls, Result, Temperature, Verdict
from cotrain.runs.run import Run
from tests.made_up import made_up_run, some_data, with_result

EARLIER = sorted((Path(__file__).parent / "results").glob("*.json"))  # written before there was `Result`
ERROR = {"error": 9.0, "low": 5.0, "high": 14.0}
CHECKED = {"images": 12, "folds": 2, "repeats": 1, "errors": {"method": ERROR}, "against": None}


def of_type(annotation: Any) -> st.SearchStrategy[Any]:
    """Valid values of a field."""
    arguments = get_args(annotation)
    match get_origin(annotation):
        case None:
            return SIMPLE[annotation] if annotation in SIMPLE else a_part(annotation)
        case found if found is Annotated:
            return of_type(arguments[0])
        case found if found is Literal:
            return st.sampled_from(arguments)
        case found if found in (Union, types.UnionType):
            return st.one_of(*map(of_type, arguments))
        case found if found is list:
            return st.lists(of_type(arguments[0]), max_size=3)
        case found if found is dict:
            return st.dictionaries(of_type(arguments[0]), of_type(arguments[1]), max_size=3)
        case found if found is tuple:
            return st.tuples(*map(of_type, arguments))
    raise AssertionError(annotation)


def a_part(model: type[BaseModel]) -> st.SearchStrategy[Any]:
    """Some of its fields may not be known."""
    fields = {name: of_type(field.annotation) for name, field in model.model_fields.items()}
    optional = {name: fields.pop(name) for name, field in model.model_fields.items() if not field.is_required()}
    if model is CrossValidation:
        fields["errors"] = st.tuples(fields["errors"], of_type(ErrorOf)).map(lambda two: {"method": two[1], **two[0]})
    if model is Recalls:
        fields["balanced_error"] = SIMPLE[float]
        del optional["balanced_error"]
    for always, name in ((Result, "temperature"), (Temperature, "value")):  # only an earlier version leaves them out
        if model is always:
            fields[name] = optional.pop(name)
    return st.fixed_dictionaries(fields, optional=optional).map(lambda each: model(**each))


ErrorOf = get_args(CrossValidation.model_fields["errors"].annotation)[1]
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**63 - 1),
    float: st.floats(1e-3, 100),  # percentages and temperatures have bounds
    bool: st.booleans(),
    str: st.text(st.characters(exclude_categories=()), max_size=9),  # also what is no character: from names of files
    type(None): st.none(),
}


@settings(max_examples=40)
@given(result=a_part(Result))
def test_a_result_is_read_back_as_it_was_written(result: Result, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "result.json"
    path.write_text(json.dumps(result.flat, allow_nan=False))
    again = Result.read(path)
    assert again == result
    assert dict(again) == dict(result)


@pytest.mark.parametrize("path", EARLIER, ids=lambda path: path.stem)
def test_a_result_of_an_earlier_version_keeps_every_key_and_value(path: Path, tmp_path: Path) -> None:
    whole, result = json.loads(path.read_text()), Result.read(path)
    assert dict(result) == whole
    Run(tmp_path, None, None).finish(result)  # type: ignore[arg-type]
    assert json.loads((tmp_path / "result.json").read_text()) == whole


def test_the_fields_are_those_of_the_file() -> None:
    cross_validated, fitted, made_up = map(Result.read, EARLIER)
    assert (fitted.test.images, fitted.training.steps, fitted.data.labels) == (500, 12, 40)
    assert fitted.temperature.fitted_on is not None and fitted.temperature.fitted_on.valid_images == 388
    assert cross_validated.test.error is None and cross_validated.cross_validation is not None
    assert "random_forest" in cross_validated.cross_validation.errors
    assert made_up.strangers is not None and made_up.strangers.left_out == 3


def test_a_result_is_a_mapping_with_the_keys_of_the_file() -> None:
    result = Result(test=OnTest(error=4.0, images=50))
    assert isinstance(result, Mapping)
    assert {**result} == {"test_error": 4.0, "test_images": 50}
    assert "test_error" in result and result.get("labelled_only_error") is None
    with pytest.raises(KeyError):
        result["error"]


def test_the_key_of_a_later_version_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"test_error": 4.0, "later": {"a": 1}, "test": 3}))
    assert {**Result.read(tmp_path / "result.json")} == {"test_error": 4.0}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_run(tmp_path_factory.mktemp("made") / "run", some_data(test=0)).folder


WRONG: dict[str, dict[str, Any]] = {
    "a model that is not the method": {"cross_validation": {**CHECKED, "errors": {"labelled_only": ERROR}}},
    "an error of an unknown model": {"cross_validation": {**CHECKED, "errors": {"method": ERROR, "magic": ERROR}}},
    "against an unknown model": {
        "cross_validation": {**CHECKED, "against": {**ERROR, "baseline": "magic", "difference": 1.0, "word": "hurt"}}
    },
    "an unknown word": {
        "cross_validation": {
            **CHECKED,
            "against": {**ERROR, "baseline": "labelled_only", "difference": 1.0, "word": "magic"},
        }
    },
    "metrics": {"calibration": {"ensemble": {"as it is": {"temperature": 1.0, "ece": "small"}}}},
    "a curve": {"heads": {"errors": "few"}},
    "shares": {"class_shares": [{"class": 3, "share": 0.5, "low": 0.4, "high": 0.6, "pseudo_labels": 3}]},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_what_the_page_could_not_show_is_named(changes: dict[str, Any], finished: Path, tmp_path: Path) -> None:
    run = with_result(Run.open(shutil.copytree(finished, tmp_path / "run")), **changes)
    with pytest.raises(UserError, match=rf"result\.json is damaged: {next(iter(changes))}"):
        report_command(run.folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"calibration": {"ensemble": {"as it is": {"temperature": 1.0}}}, "temperature": None},
        {"cross_validation": CHECKED, "test_images": 0},
        {"strangers": None, "temperature_fitted_on": None, "labels_by_class": None, "versions": {}},
        {"seconds": 3.0, "device": None, "steps": None, "parameters": None},
    ],
)
def test_what_is_unknown_is_left_out(changes: dict[str, Any], finished: Path, tmp_path: Path) -> None:
    run = with_result(Run.open(shutil.copytree(finished, tmp_path / "run")), **changes)
    report_command(run.folder)
    cotrain.load(run.folder)


@pytest.mark.parametrize("key", ["agreement", "test_interval", "head_errors"])
def test_a_number_that_the_table_shows_may_not_be_null(key: str, finished: Path) -> None:
    known = {"test_error": 4.0, "test_images": 50, "test_interval": [1.0, 9.0], "head_errors": [4.0], "agreement": 0.5}
    run = Run.open(finished)
    result_table(run, Result.parse(known, "result.json"))
    with pytest.raises(UserError, match=key):
        result_table(run, Result.parse({**known, key: None}, "result.json"))


def test_few_images_that_differ_are_said() -> None:
    numbers = {"labelled_only": 9.0, "error": 5.0, "difference": -4.0, "low": -8.0, "high": -0.5}
    assert Verdict(**numbers, word="no clear difference").few and not Verdict(**numbers, word="helped").few
