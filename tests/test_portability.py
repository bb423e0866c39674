"""The package on a system that is not Unix, simulated: without the modules and functions that only Unix has.

What other packages do there is their business: they are imported first.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.photos import by_class

WITHOUT_UNIX = """
import os, subprocess, sys, stat
import cyclopts, filelock, jinja2, matplotlib.pyplot, numba, numpy, PIL.Image, platformdirs, psutil, pydantic, rich.live
import safetensors.torch, scipy.special, torch, torch.distributed.nn, torch.profiler

for name in ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
for name in ("fork", "geteuid", "getloadavg", "getuid", "killpg", "mkfifo", "posix_fallocate", "pread", "pwrite",
             "sched_getaffinity", "setsid", "sysconf", "uname"):
    delattr(os, name)
sys.platform = "win32"
open_file = os.open

def open_no_folder(path, *arguments, **named):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return open_file(path, *arguments, **named)

os.open = open_no_folder
"""


@pytest.mark.system
def test_training_on_a_folder_resuming_and_predicting_need_no_unix(tmp_path: Path) -> None:
    by_class(tmp_path / "photos")
    script = """
for impossible in (lambda: __import__("fcntl"), lambda: os.open(".", os.O_RDONLY), lambda: os.sysconf("SC_PAGE_SIZE")):
    try:
        impossible()
    except (ImportError, PermissionError, AttributeError) as error:
        print("refused:", type(error).__name__)

import cotrain.comparison.step_worker, cotrain.comparison.studies
from cotrain.cli.main import main

short = ["--steps", "3", "--optim.labelled", "4", "--optim.unlabelled", "4", "--run.checkpoint_every", "2"]
short += ["--bank.weak", "1", "--bank.strong", "1", "--run.runtime", "torch"]  # onnxruntime is not ours
main(["fit", "photos", "--out", "run", "--no-baseline", *short])
os.remove("run/result.json")
main(["fit", "photos", "--out", "run", "--resume"])
main(["predict", "run", "photos", "--out", "predictions.csv"])
"""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_UNIX + script], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    refused = ["refused: ModuleNotFoundError", "refused: PermissionError", "refused: AttributeError"]
    assert done.stdout.splitlines()[:3] == refused
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    assert len((tmp_path / "predictions.csv").read_text(encoding="utf-8").splitlines()) > 20
