"""What the README tells people to type works as it says."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cotrain import Dataset
from cotrain.cli.main import main
from tests.processes import Running

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.system
def test_the_python_example_runs(tmp_path: Path) -> None:
    """With fewer steps, which changes only the numbers that it prints."""
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    short = example.replace('"optim.steps": 50}', '"optim.steps": 5}')
    assert short != example
    done = Running(exec, short, {"__name__": "__main__"}, cwd=tmp_path).wait()
    assert done.stderr == ""
    errors, predictions = done.stdout.strip().split("\n", 1)
    assert all(0 <= float(number) <= 100 for number in errors.split())
    assert predictions.startswith("['")


@pytest.mark.parametrize(
    "command", sorted(set(re.findall(r"^    cotrain (describe[^#\n]*|fit --help)", README, flags=re.M)))
)
def test_describing_commands_run(command: str, capsys: pytest.CaptureFixture) -> None:
    main(command.split())
    assert capsys.readouterr().out


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    missing = [link for link in links if not (ROOT / link).exists()]
    assert missing == []


def commands(page: str) -> list[str]:
    """The commands that a page has on lines of their own, without their comments."""
    return [
        line.split("  #")[0].strip()
        for line in re.findall(r"^    cotrain ((?:data|fit|predict|evaluate) .*)$", page, re.M)
    ]


@pytest.mark.parametrize("page", ["README.md", pytest.param("docs/guide/data.md", marks=pytest.mark.system)])
def test_the_commands_for_own_images_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy: Dataset
) -> None:
    """In the order in which they stand there, on a small folder and file; training is cut short."""
    monkeypatch.chdir(tmp_path)
    images, labels = toy.images.numpy(), toy.labels.numpy()
    for name in ("photos", "more"):
        Path(name).mkdir()
        for row in range(40):
            Image.fromarray(images[row, :, :, 0]).save(f"{name}/{row}.png")
    Path("photos/labels.csv").write_text("\n".join(["path,label", *(f"{row}.png,{labels[row]}" for row in range(20))]))
    np.savez("images.npz", train_images=np.tile(images, (4, 1, 1, 1)), train_labels=np.tile(labels, 4))
    short = ["--steps", "2", "--optim.labelled", "8", "--optim.unlabelled", "8", "--no-baseline"]
    ran = []
    for command in commands((ROOT / page).read_text()):
        words = shlex.split(command)
        own = words[0] != "fit" or words[1] in ("photos/", "images.npz")
        if own and words[0] != "label" and words[:2] != ["data", "fetch"]:  # tests/labelling/ runs `label`
            main([*words, *(short if words[0] == "fit" and "--resume" not in words else [])])
            ran.append(command)
    assert len(ran) >= 4
