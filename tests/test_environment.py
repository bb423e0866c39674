"""cotrain sends nothing: no library reports to its makers, and no file with a device id appears."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

from cotrain.environment import SETTINGS
from tests.data.photos import by_class
from tests.processes import PATIENCE

OURS = ("HOME", "COTRAIN_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "MPLCONFIGDIR", *SETTINGS)
GUARD = """
import os, sys

def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg"):
        place = arguments[1] if event in ("socket.connect", "socket.sendto", "socket.sendmsg") else arguments[0]
        host = place[0] if isinstance(place, tuple) else place
        if host not in ("127.0.0.1", "::1", None):
            with open(os.environ["FORBIDDEN"], "a") as file:
                print(event, arguments[1:], file=file)
            raise PermissionError(13, f"{event} is forbidden here")

sys.addaudithook(watch)
"""
SHORT = [
    "--optim.steps=3",
    "--optim.labelled=4",
    "--optim.unlabelled=4",
    "--bank.weak=1",
    "--bank.strong=1",
    "--run.repeats=1",
    "--run.folds=2",
    "--run.runtime=onnxruntime",
]


def environment(home: Path, changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """As if this user had never run anything, and had decided nothing."""
    kept = {name: value for name, value in os.environ.items() if name not in OURS}
    return kept | {"HOME": str(home), "LOCALAPPDATA": str(home)} | {**(changes or {})}


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("first", ["cotrain.trunk.runtime", "cotrain.cli.main"])
def test_onnxruntime_writes_nothing_whatever_is_imported_first(first: str, tmp_path: Path) -> None:
    script = f"import {first}, onnxruntime, sys; onnxruntime.get_device(); assert 'onnxruntime' in sys.modules"
    subprocess.run([sys.executable, "-c", script], env=environment(tmp_path), check=True, timeout=PATIENCE)
    assert [name for name in files(tmp_path) if "matplotlib" not in name] == []


def test_every_process_that_cotrain_starts_gets_the_settings(tmp_path: Path) -> None:
    child = f"import os; print(*(os.environ[name] for name in {[*SETTINGS]}))"
    script = f"import cotrain, subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    for chosen in ({}, {"ORT_DISABLE_TELEMETRY": "0"}, {"HF_HUB_DISABLE_TELEMETRY": ""}):
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=environment(tmp_path, chosen), capture_output=True, text=True, check=True)
        expected = SETTINGS | chosen
        assert done.stdout == " ".join(expected.values()) + "\n", "what the user has set stays"


@pytest.mark.system
@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT cannot be sent to one process")
def test_no_command_talks_to_anybody(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(GUARD)
    home = tmp_path / "home"
    home.mkdir()
    changes = {
        "COTRAIN_HOME": os.environ["COTRAIN_HOME"],
        "FORBIDDEN": str(tmp_path / "forbidden"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)]),
    }
    jobs = Jobs(tmp_path, environment(home, changes))
    by_class(tmp_path / "photos")
    jobs.run("fit", "photos", "--out", "run", "--no-baseline", *SHORT)
    jobs.run("predict", "run", "photos", "--workers", "2", "--out", "predictions.csv")
    jobs.run("export", "run", "model.onnx")
    jobs.run("report", "run")
    jobs.label("photos", *SHORT)
    assert not (tmp_path / "forbidden").exists(), (tmp_path / "forbidden").read_text()
    assert [name for name in files(home) if "matplotlib" not in name] == []
    for trace in jobs.traces:
        reached = re.findall(r"sin6?_addr=.*?\"([^\"]+)\"", trace.read_text())
        assert set(reached) <= {"127.0.0.1", "::1"}, trace.read_text()


class Jobs:
    """Commands in processes whose calls of the network are recorded, if there is strace: not all are Python's."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.traces: list[Path] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "cotrain", *words]
        if shutil.which("strace"):
            self.traces.append(self.folder / f"{words[0]}.strace")
            watched = "trace=connect,sendto,sendmsg,sendmmsg"
            command = [
                "strace",
                "-D",
                "-f",
                "--seccomp-bpf",
                "-qq",
                "-e",
                watched,
                "-o",
                str(self.traces[-1]),
                *command,
            ]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str) -> None:
        with self.start(*words) as process:
            printed, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, printed

    def label(self, *words: str) -> None:
        """Opens the page, and waits until a model has learned."""
        with self.start("label", *words, "--no-browser", "--port", "0") as process:
            assert process.stdout is not None
            address = next(found[1] for line in process.stdout if (found := re.match(r"open (http://\S+)", line)))
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor())
            opener.open(address).close()
            base, end = address.partition("/?")[0], time.monotonic() + PATIENCE
            while '"model":null' in (state := opener.open(f"{base}/api/state").read().decode()):
                assert time.monotonic() < end, state
                time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            printed = process.stdout.read()
        assert process.returncode == 0, printed
