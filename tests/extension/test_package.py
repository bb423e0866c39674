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
from tests.processes import Done, Running

from .distribution import GUIDE, blocks_of_the_guide, install_the_guides_package

pytestmark = pytest.mark.system
SHORT = ["--steps", "2", "--optim.labelled", "4", "--optim.unlabelled", "8", "--run.report", "false"]
ROOT = GUIDE.parent.parent.parent


EVERYTHING = """
import contextlib, io, json, sys, traceback
from cotrain.cli.main import main
from tests.processes import Done, Running

def recorded(action):
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            action()
        except SystemExit as end:
            code = end.code or 0
        except Exception:
            traceback.print_exc()
            code = 1
    return {"returncode": code, "stdout": out.getvalue(), "stderr": err.getvalue()}

commands, test = json.load(sys.stdin)
done = {words[0]: recorded(lambda: main(words)) for words in commands}
done["test"] = recorded(lambda: exec(test, {"__name__": "test"}))
print(json.dumps(done))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guide")


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, Done]:
    """What a process with their package says: the guide's own command, shortened, two others, and the guide's test."""
    install_the_guides_package(folder / "site")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "image.png")
    (line,) = [line for line in GUIDE.read_text().splitlines() if line.startswith("    cotrain fit stripes")]
    fit = [*line.split()[1:], *SHORT, "--out", "run"]
    commands = [fit, ["predict", "run", "image.png"], ["evaluate", "run"]]
    test = blocks_of_the_guide()["tests/test_soft_labels.py"] + "\ntest_contract()\n"
    ended = subprocess.run(
        [sys.executable, "-c", EVERYTHING],
        input=json.dumps([commands, test]),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return {name: Done(**values) for name, values in json.loads(ended.stdout).items()}


@pytest.fixture(scope="module")
def their_run(folder: Path, done: dict[str, Done]) -> Path:
    assert (done["fit"].returncode, done["fit"].stderr) == (0, "")
    return folder / "run"


def test_the_run_has_their_settings_and_knows_their_package(their_run: Path, done: dict[str, Done]) -> None:
    assert "; tinycnn-8, on cpu" in done["fit"].stdout and "soft_labels" in done["fit"].stdout
    config = json.loads((their_run / "config.json").read_text())
    assert config["method"]["name"] == "soft_labels" and config["method"]["temperature"] == 0.7
    assert json.loads((their_run / "packages.json").read_text()) == {
        what: {"name": name, "package": "mycotrain", "version": "1.0"}
        for what, name in (("method", "soft_labels"), ("backbone", "tinycnn-8"), ("data", "stripes"))
    }
    assert json.loads((their_run / "result.json").read_text())["versions"]["mycotrain"] == "1.0"


def test_it_predicts_and_evaluates(done: dict[str, Done]) -> None:
    predicted, evaluated = done["predict"], done["evaluate"]
    assert predicted.returncode == 0
    assert predicted.stdout.splitlines()[1].split(",")[:2] in (["image.png", "horizontal"], ["image.png", "vertical"])
    assert (evaluated.returncode, evaluated.stderr) == (0, "")


def test_the_guides_method_keeps_the_contract(done: dict[str, Done]) -> None:
    assert (done["test"].returncode, done["test"].stderr) == (0, "")


@pytest.mark.parametrize(
    "words", ["predict run image.png", "evaluate run", "report run", "fit stripes --out run --resume"]
)
def test_without_the_package_every_command_says_what_to_install(
    their_run: Path, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(their_run.parent)
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
    their_run: Path, tmp_path: Path, method, backbone, words, expected, monkeypatch, capsys
) -> None:
    """As if a run had needed less of the package."""
    shutil.copytree(their_run, tmp_path / "run")
    values = json.loads((tmp_path / "run/config.json").read_text())
    values["method"], values["model"]["backbone"] = {"name": method}, backbone
    (tmp_path / "run/config.json").write_text(json.dumps(values))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    said = capsys.readouterr().err
    assert ended.value.code == 2 and expected in said and said.count("\n") == 1


def run_script(source: str) -> None:
    sys.path.insert(0, "")
    exec(source, {"__name__": "__main__"})


def test_the_guides_own_network_trains_and_loads(tmp_path: Path) -> None:
    blocks = blocks_of_the_guide()
    (tmp_path / "networks.py").write_text(blocks["networks.py"])
    short = blocks["train.py"].replace('{"optim.steps": 20}', '{"optim.steps": 2, "run.report": False}')
    assert short != blocks["train.py"]
    done = Running(run_script, short, cwd=tmp_path).wait()
    assert done.stderr == ""
    error, names = done.stdout.splitlines()
    assert 0 <= float(error) <= 100 and names.startswith("['")
    assert json.loads(next(tmp_path.glob("runs/*/config.json")).read_text())["model"]["arguments"] == {"width": 8}


def test_the_guides_pretrained_network_is_frozen(tmp_path: Path) -> None:
    blocks = blocks_of_the_guide()
    (tmp_path / "mytrunk.py").write_text(blocks["mytrunk.py"])
    quick = '"optim.steps": 2, "run.report": False, "run.runtime": "torch", "bank.weak": 1, "bank.strong": 1}'
    short = blocks["frozen.py"].replace('"optim.steps": 20}', quick)
    assert short != blocks["frozen.py"]
    done = Running(run_script, short, cwd=tmp_path).wait()
    assert done.stderr == ""
    error, names = done.stdout.splitlines()[-2:]
    assert 0 <= float(error) <= 100 and names.startswith("['")
    (saved,) = tmp_path.glob("runs/*/model.safetensors")
    with safe_open(saved, framework="pt") as tensors:
        assert all(key.startswith("heads.") for key in tensors.keys())  # noqa: SIM118
