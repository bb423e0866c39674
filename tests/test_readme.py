"""What the README tells people to type works as it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cotrain.cli import main

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_python_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=300)
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
    missing = [link for link in links if not (Path(__file__).parent.parent / link).exists()]
    assert missing == []
