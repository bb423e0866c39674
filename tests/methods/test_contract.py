"""What holds for every method in the folder. (Two processes against one: tests/training/test_distributed.py.)"""

from functools import cache
from pathlib import Path

import pytest

from cotrain import graph
from cotrain.graph import divided
from cotrain.methods import METHODS
from cotrain.testing import RULES, Subject, check_rule
from cotrain.testing.rules import a_resumed_run_ends_with_the_same_bits
from cotrain.testing.trial import LATE, Trial

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs" / "methods"
FOR_FEW_STEPS = {
    "trinet": {"method.initial": 0.5, "method.rounds": 3, "method.passes": 3, "method.threshold": 0.7},
    "remixmatch": {"method.strong_views": 2},
    "mhct_graph": {"method.rounds": 3},
}
ONLY_SELECTED = ("fixmatch", "fixmatch_cta", "pseudo_label", "uda")  # nothing else is in their unlabelled term
each_name = pytest.mark.parametrize("name", METHODS.built_in)


@cache
def subject(name: str) -> Subject:
    return Subject(METHODS.built_in[name], FOR_FEW_STEPS.get(name, {}))


@pytest.mark.no_cover  # the same lines again and again; the tests of each method and of check_method cover them
@each_name
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_method_keeps_the_contract(name: str, rule) -> None:
    check_rule(subject(name), rule)


@pytest.mark.parametrize("name", ["mhct_graph", "laplacenet"])
def test_a_run_whose_graph_is_a_sample_resumes_with_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []

    def observed(*given):
        nodes, others = divided(*given)
        sizes.append((len(nodes), len(others)))
        return nodes, others

    monkeypatch.setattr(graph, "LARGEST", 20)
    monkeypatch.setattr(graph, "NODES", 12)
    monkeypatch.setattr(f"cotrain.methods.{name}.divided", observed)
    check_rule(subject(name), a_resumed_run_ends_with_the_same_bits)
    assert len(sizes) > 3 and all(nodes == 12 and others > 0 for nodes, others in sizes)


def test_every_file_of_the_folder_is_a_method() -> None:
    files = {path.stem for path in (ROOT / "cotrain" / "methods").glob("*.py")} - {"__init__"}
    assert files == set(METHODS.built_in)


@each_name
def test_there_is_a_page_about_it(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text()
    assert f"(`{name}`)" in page
    assert f"cotrain/methods/{name}.py" in page


@pytest.mark.parametrize("name", ONLY_SELECTED)
def test_without_a_pseudo_label_there_is_no_unlabelled_term(name: str) -> None:
    losses = Trial(subject(name).config).confident(0.0).late().loss(LATE)
    assert losses["unsupervised"].item() == 0 and losses["unsupervised"].requires_grad
