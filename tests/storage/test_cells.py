"""Cells that a spreadsheet does not run, and that are read back as they were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain.storage.cells import from_safe, safe, safe_path

FORMULAS = ("=", "+", "-", "@", "\t", "\r")


@given(st.text(alphabet=st.sampled_from("=+-@'\t\rab ,\"")))
def test_any_text_comes_back(text: str) -> None:
    assert from_safe(safe(text)) == text
    assert not safe(text).startswith(FORMULAS)
    assert not safe_path(text).startswith(FORMULAS)


@pytest.mark.parametrize("text", ["cat", "", "'quoted'", "a=b", "12"])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert safe(text) == from_safe(text) == safe_path(text) == text
