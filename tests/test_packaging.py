"""What people expect of a package: a licence, types, one version, complete reference pages, pinned tools."""

import hashlib
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

import cotrain
import cotrain.sklearn

ROOT = Path(__file__).parent.parent
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"  # SHA-256 of the text as published
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")


def test_there_is_one_version() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert cotrain.__version__ == version("cotrain")


def test_the_licence_is_apache_2_everywhere() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert PROJECT["license"] == citation["license"] == "Apache-2.0"


def test_types_are_announced() -> None:
    assert (ROOT / "cotrain" / "py.typed").exists()


def test_every_public_name_has_a_docstring_and_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert set(re.findall(r"cotrain\.(\w+)", reference)) - {"sklearn"} == set(cotrain.__all__)
    assert set(re.findall(r"cotrain\.sklearn\.(\w+)", reference)) == set(cotrain.sklearn.__all__)
    public = {name: getattr(cotrain, name) for name in cotrain.__all__ if name != "__version__"}
    public |= {name: getattr(cotrain.sklearn, name) for name in cotrain.sklearn.__all__}
    docstrings = {name: value.__doc__ or "" for name, value in public.items()}
    made = [name for name, text in docstrings.items() if not text or text.startswith(f"{name}(")]  # by dataclass
    assert made == []


def test_only_kinds_of_data_know_which_kind_they_are() -> None:
    own = {"dataset.py", "kinds.py"}
    asks = re.compile(
        r"(?<!cotrain\.)\bdata(set)?\.bank\b|\.features is (not )?None|\.source == [\"']"
        r"|isinstance\([^()]*\b(Pixels|Banked|Rows)\)"
    )
    asked = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in [*(ROOT / "cotrain").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
        for line in path.read_text(encoding="utf-8").splitlines()
        if asks.search(line) and not (path.parent.name == "data" and path.name in own)
    ]
    assert asked == []


def test_linters_are_pinned_exactly() -> None:
    pins = dict(line.split("==") for line in PROJECT["optional-dependencies"]["dev"] if "==" in line)
    assert pins == {name: version(name) for name in ("ruff", "mypy", "import-linter")}


def test_the_workflow_tests_every_announced_python_with_pinned_actions() -> None:
    announced = {name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)}
    matrix = yaml.safe_load(WORKFLOW)["jobs"]["test"]["strategy"]["matrix"]
    assert set(matrix["python"]) == announced
    uses = re.findall(r"uses: (\S+)", WORKFLOW)
    assert uses
    assert [action for action in uses if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)] == []


def test_hooks_download_nothing() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert {repository["repo"] for repository in config["repos"]} == {"local"}
    assert {hook["language"] for repository in config["repos"] for hook in repository["hooks"]} == {"system"}
