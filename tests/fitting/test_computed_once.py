"""A run computes its trunk, bank and statistics once, and does not read back what it has just written."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cotrain
from cotrain import Config
from cotrain.audit import neighbours
from cotrain.data.kinds import Pixels
from cotrain.inference import model
from cotrain.runs import checkpoint, result, run
from cotrain.training import experiment
from tests.trunk.fixtures import counting, shared_home, tiny_is_known  # noqa: F401
from tests.trunk.tiny import CONFIG, small_data

pytestmark = pytest.mark.usefixtures("shared_home")

AS_BY_DEFAULT = CONFIG.changed(
    {
        "data.labels": 16,
        "run.baseline": True,
        "run.warm_start": True,
        "run.report": True,
        "run.repeats": 1,
        "run.folds": 2,
        "robust.false_alarms": 0.1,
        "method": "mhct_graph",
    }
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these was called; of what reads files, by the name of the file."""
    counts = Counter[str]()

    def counted(owner: Any, name: str, key: Callable[..., str]) -> None:
        real = getattr(owner, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            counts[key(*arguments)] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, counting)

    for owner, name in (
        (experiment, "build_trunk"),
        (experiment, "open_bank"),
        (experiment, "pixel_statistics"),
        (Pixels, "statistics"),
        (model, "build_trunk"),
        (neighbours, "projection_of"),
    ):
        counted(owner, name, lambda *_, name=name: name)
    for owner, name in ((result, "read_json"), (run, "read_tensors"), (checkpoint, "read_tensors")):
        counted(owner, name, lambda path, *_: f"read {Path(path).name}")
    return counts


def test_on_a_bank(calls: Counter[str], tmp_path: Path) -> None:
    fitted = cotrain.fit(small_data(), out=tmp_path / "run", config=AS_BY_DEFAULT)
    assert (fitted.folder / "report.html").exists() and fitted.result["cross_validation"] is not None
    once = ("build_trunk", "open_bank", "pixel_statistics", "projection_of")
    assert {name: calls[name] for name in once} == dict.fromkeys(once, 1)
    assert calls["statistics"] == 0, "the network expects those of its own pixels"
    assert calls["read result.json"] == calls["read model.safetensors"] == 0
    assert dict(fitted.run.result) == json.loads((fitted.folder / "result.json").read_text())


def test_from_scratch(calls: Counter[str], tiny: Config, tmp_path: Path) -> None:
    changes = {"run.baseline": True, "run.report": True, "data.labels": 12, "data.valid_share": 0.2}
    cotrain.fit(small_data(valid=0), out=tmp_path / "run", config=tiny.changed(changes))
    assert calls["statistics"] == calls["pixel_statistics"] == 1
    assert calls["read result.json"] == calls["read model.safetensors"] == 0


def test_in_a_comparison_for_all_methods_with_the_same_trunk(calls: Counter[str], tmp_path: Path) -> None:
    cotrain.compare(small_data(), out=tmp_path / "both", methods="mhct,fixmatch", seeds=1, config=CONFIG)
    assert calls["build_trunk"] == calls["open_bank"] == 1
