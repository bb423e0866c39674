"""What a run may name: its settings are data, and only the user allows code or downloads."""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cotrain
from cotrain import Config, UserError, recipe_named
from cotrain.model.trust import Trust, check_trusted
from cotrain.runs.checkpoint import read_tensors, write_tensors
from cotrain.runs.run import Run
from tests.made_up import made_up_run, some_data
from tests.processes import here

IMAGES = np.zeros((1, 8, 8, 3), np.uint8)
NETWORK = """
from pathlib import Path
from torch import nn
Path("canary").write_text("imported")
def build(*, channels, classes):
    head = lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))
    return nn.Conv2d(channels, 4, 3), head
"""


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current folder, and no trace of it in this process."""
    monkeypatch.chdir(tmp_path)
    Path("mynetwork.py").write_text(NETWORK)
    yield "mynetwork:build"
    sys.modules.pop("mynetwork", None)


@pytest.fixture
def run(tmp_path: Path, network: str) -> Path:
    """A finished run with this network. Whatever is imported now, its own process had imported it."""
    made = made_up_run(tmp_path / "run", some_data(), alone=None, changes={"model.backbone": network})
    del sys.modules["mynetwork"]
    Path("canary").unlink()
    return made.folder


def named(run: Path, backbone: str, *, config: bool = True, header: bool = True) -> Path:
    """The run, with another backbone in these files."""
    if config:
        values = json.loads((run / "config.json").read_text())
        values["model"]["backbone"] = backbone
        (run / "config.json").write_text(json.dumps(values))
    if header:
        tensors, facts = read_tensors(run / "model.safetensors")
        facts["config"]["model"]["backbone"] = backbone
        write_tensors(run / "model.safetensors", tensors, facts)
    return run


def test_a_run_imports_its_network_only_if_the_user_allows_it(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"mynetwork.*--trust-code"):
        cotrain.load(run)
    with pytest.raises(UserError, match="PYTHONPATH"):  # the current folder is not searched
        cotrain.load(run, trust_code=True)
    assert not Path("canary").exists()
    capfd.readouterr()
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path.cwd())])  # as PYTHONPATH does
    allowed = cotrain.load(run, trust_code=True).predict(IMAGES)
    assert "mynetwork" in capfd.readouterr().err and Path("canary").exists()
    handed_over = cotrain.load(run, model=sys.modules["mynetwork"].build).predict(IMAGES)
    np.testing.assert_array_equal(allowed.probabilities, handed_over.probabilities)


def test_each_command_takes_trust_code(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [
        ["predict", run, "no.png"],
        ["evaluate", run, "--data", "digits"],
        ["report", run, "--data", "digits"],
        ["fit", "digits", "--out", run, "--resume"],
    ]
    for command in commands:
        refused = here(capsys, *command)
        assert refused.returncode == 2 and not Path("canary").exists(), command
        allowed = here(capsys, *command, "--trust-code")
        assert "mynetwork" in allowed.stderr and "--trust-code" not in allowed.stderr, command
    opened = Run.open(run)
    with_source = replace(opened, split=opened.split.model_copy(update={"source": "digits"}))
    assert with_source.resume_command.endswith("--resume --trust-code")


def test_the_header_of_the_model_cannot_name_another_network_than_the_config(tmp_path: Path) -> None:
    made = made_up_run(tmp_path / "run", some_data()).folder
    for files in ({"config": False}, {"header": False}):
        crafted = named(Path(shutil.copytree(made, tmp_path / "crafted")), "resnet18", **files)
        with pytest.raises(UserError, match=r"model\.safetensors.*config\.json.*model\.backbone"):
            cotrain.load(crafted)
        shutil.rmtree(crafted)


def test_a_baseline_is_not_allowed_by_a_word_about_the_run(run: Path, tmp_path: Path) -> None:
    """The module that was printed is the run's; its baseline names another one."""
    trusted = named(made_up_run(tmp_path / "with baseline", some_data()).folder, "mynetwork:build")
    named(trusted / "labelled_only", "another:build")
    with pytest.raises(UserError, match="another"):
        cotrain.load(trusted, use="labelled_only", trust_code=True)


@pytest.mark.parametrize("name", ["a:b", "torch.hub:load", "timm:local-dir:x", "timm:hf-hub:a/b", "os.path:join"])
def test_a_file_names_no_code(name: str) -> None:
    with pytest.raises(UserError, match=name):
        check_trusted(name, Trust.FILE)
    check_trusted(name, Trust.ALLOWED)


@pytest.mark.parametrize("name", ["lite0", "wrn-28-2", "timm:resnet18", "timm:vit_tiny.in1k", "hf:some/model"])
def test_a_file_names_networks_that_are_installed(name: str) -> None:
    check_trusted(name, Trust.FILE)


def test_settings_that_were_read_are_not_trusted_and_settings_that_were_typed_are() -> None:
    typed = recipe_named("digits").changed({"model.backbone": "a:b"})
    assert typed.model.trust is Trust.USER is typed.changed({"optim.steps": 5}).model.trust
    read = Config.parse(typed.model_dump())
    assert read.model.trust is Trust.FILE is read.changed({"optim.steps": 5}).model.trust
    assert read.with_network_of(typed).model.trust is Trust.USER
    other = Config.parse(recipe_named("digits").changed({"model.backbone": "c:d"}).model_dump())
    assert other.with_network_of(typed).model.trust is Trust.FILE
