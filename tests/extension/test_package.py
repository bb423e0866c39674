"""The package of docs/guide/extending.md as somebody would install it, used from the command line, and then gone."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from cotrain.cli.main import main

from .distribution import GUIDE, blocks_of_the_guide, install_the_guides_package

SHORT = ["--steps", "2", "--optim.labelled", "4", "--optim.unlabelled", "8", "--run.report", "false"]
ROOT = GUIDE.parent.parent.parent


def run(site: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guide") / "site"
    install_the_guides_package(folder)
    return folder


@pytest.fixture(scope="module")
def folder(site: Path) -> Path:
    """Where a run was made with the guide's own command, shortened."""
    (command,) = [line.split() for line in GUIDE.read_text().splitlines() if line.startswith("    cotrain fit stripes")]
    done = run(site, "-m", *command, *SHORT, "--out", "run", cwd=site.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert "; tinycnn-8, on cpu" in done.stdout and "soft_labels" in done.stdout
    return site.parent


def test_the_run_has_their_settings_and_knows_their_package(folder: Path) -> None:
    config = json.loads((folder / "run/config.json").read_text())
    assert config["method"]["name"] == "soft_labels" and config["method"]["temperature"] == 0.7
    assert json.loads((folder / "run/packages.json").read_text()) == {
        what: {"name": name, "package": "mycotrain", "version": "1.0"}
        for what, name in (("method", "soft_labels"), ("backbone", "tinycnn-8"), ("data", "stripes"))
    }
    assert json.loads((folder / "run/result.json").read_text())["versions"]["mycotrain"] == "1.0"


def test_it_predicts_and_evaluates(site: Path, folder: Path) -> None:
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "image.png")
    predicted = run(site, "-m", "cotrain", "predict", "run", "image.png", cwd=folder)
    assert predicted.returncode == 0
    assert predicted.stdout.splitlines()[1].split(",")[:2] in (["image.png", "horizontal"], ["image.png", "vertical"])
    evaluated = run(site, "-m", "cotrain", "evaluate", "run", cwd=folder)
    assert (evaluated.returncode, evaluated.stderr) == (0, "")


@pytest.mark.parametrize(
    "words", ["predict run image.png", "evaluate run", "report run", "fit stripes --out run --resume"]
)
def test_without_the_package_every_command_says_what_to_install(
    folder: Path, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "cotrain: run uses the method 'soft_labels' from mycotrain 1.0, which is not installed; "
        "install it: pip install mycotrain==1.0\n"
    )


@pytest.mark.parametrize(
    ("method", "backbone", "words", "expected"),
    [
        ("fixmatch", "tinycnn-8", "evaluate run", "uses the backbone 'tinycnn-8' from mycotrain 1.0, which is"),
        ("fixmatch", "wrn-10-1", "evaluate run", "uses the data set 'stripes' from mycotrain 1.0, which is"),
        ("fixmatch", "wrn-10-1", "fit stripes --out run --resume", "uses the data set 'stripes' from mycotrain"),
    ],
)
def test_without_the_package_of_the_backbone_or_the_data(
    folder: Path, tmp_path: Path, method, backbone, words, expected, monkeypatch, capsys
) -> None:
    """As if a run had needed less of the package."""
    shutil.copytree(folder / "run", tmp_path / "run")
    values = json.loads((tmp_path / "run/config.json").read_text())
    values["method"], values["model"]["backbone"] = {"name": method}, backbone
    (tmp_path / "run/config.json").write_text(json.dumps(values))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    said = capsys.readouterr().err
    assert ended.value.code == 2 and expected in said and said.count("\n") == 1


def test_the_guides_own_network_trains_and_loads(site: Path, tmp_path: Path) -> None:
    blocks = blocks_of_the_guide()
    (tmp_path / "networks.py").write_text(blocks["networks.py"])
    short = blocks["train.py"].replace('{"optim.steps": 20}', '{"optim.steps": 2, "run.report": False}')
    assert short != blocks["train.py"]
    done = run(site, "-c", short, cwd=tmp_path)
    assert done.stderr == ""
    error, names = done.stdout.splitlines()
    assert 0 <= float(error) <= 100 and names.startswith("['")
    assert json.loads(next(tmp_path.glob("runs/*/config.json")).read_text())["model"]["arguments"] == {"width": 8}


def test_the_guides_pretrained_network_is_frozen(site: Path, tmp_path: Path) -> None:
    blocks = blocks_of_the_guide()
    (tmp_path / "mytrunk.py").write_text(blocks["mytrunk.py"])
    quick = '"optim.steps": 2, "run.report": False, "run.runtime": "torch", "bank.weak": 1, "bank.strong": 1}'
    short = blocks["frozen.py"].replace('"optim.steps": 20}', quick)
    assert short != blocks["frozen.py"]
    done = run(site, "-c", short, cwd=tmp_path)
    assert done.stderr == ""
    error, names = done.stdout.splitlines()[-2:]
    assert 0 <= float(error) <= 100 and names.startswith("['")
    (saved,) = tmp_path.glob("runs/*/model.safetensors")
    with safe_open(saved, framework="pt") as tensors:
        assert all(key.startswith("heads.") for key in tensors.keys())  # noqa: SIM118


def test_the_guides_method_keeps_the_contract(site: Path) -> None:
    test = blocks_of_the_guide()["tests/test_soft_labels.py"] + "\ntest_contract()\n"
    done = run(site, "-c", test, cwd=site.parent)
    assert (done.returncode, done.stderr) == (0, "")
