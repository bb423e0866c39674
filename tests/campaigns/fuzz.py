"""Fuzzing: changed files, settings and requests. Nothing but a `UserError` may come of them, within 20 s and 2 GB.

    python -m tests.campaigns.fuzz [--inputs 10000] [--only npz mat] [--seed 0] [--keep fuzz]
    python -m tests.campaigns.fuzz --repeat fuzz/npz-1a2b3c4d.bin

Each kind of input is used in processes of its own. An input that breaks something is made as small as possible and
kept, and the command that repeats it is printed. The exit code is 1 if there was one.
"""

import argparse
import hashlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
from hypothesis import HealthCheck, Phase, given, seed, settings

SECONDS, GIGABYTES = 20, 2  # of one input
BUSY = 10  # on a busy machine, 20 s of computing may take ten times as long
AT_ONCE = 250  # inputs per process
FOUND = 3  # exit code of a process that found something


class TooSlow(BaseException):
    """No `except Exception` hides it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000, help="over all kinds together")
    parser.add_argument("--only", nargs="+", help="kinds of input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz"), help="folder for inputs that break something")
    parser.add_argument("--repeat", type=Path, help="use one kept input again")
    options = parser.parse_args()
    with sandbox() as place:
        from tests.campaigns.targets import TARGETS  # after the sandbox is set up

        if options.repeat:
            name = options.repeat.name.rpartition("-")[0]
            _bound()
            _used(name, options.repeat.read_bytes(), place)
            print(f"{name}: nothing wrong")
            return
        names = options.only or [*TARGETS]
        each = max(1, options.inputs // len(names))
        began, findings = time.monotonic(), 0
        for name in names:
            found = campaign(name, each, options.seed, options.keep.resolve(), place)
            findings += found
            print(f"{name:12} {each:6,} inputs, {found} findings", flush=True)
        seconds = time.monotonic() - began
        print(f"{each * len(names):,} inputs in {seconds:.0f} s: {findings} findings")
    sys.exit(1 if findings else 0)


@contextmanager
def sandbox() -> Iterator[Path]:
    """A folder that is the home, the working and the temporary folder of everything below."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        place = Path(name)
        for variable in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "COTRAIN_HOME", "MPLCONFIGDIR"):
            folder = place / variable.lower()
            folder.mkdir()
            os.environ[variable] = str(folder)
        tempfile.tempdir = os.environ["TMPDIR"]
        os.environ["OMP_NUM_THREADS"] = "1"  # a forked process would wait for ever for the threads of its parent
        (place / "here").mkdir()
        before = os.getcwd()
        os.chdir(place / "here")
        try:
            yield place
        finally:
            os.chdir(before)


def campaign(name: str, inputs: int, start: int, keep: Path, place: Path) -> int:
    """Use so many inputs of one kind. Returns the number of findings."""
    from tests.campaigns.targets import TARGETS

    TARGETS[name].inputs()  # what it prepares is shared by the processes
    found = 0
    for number, first in enumerate(range(0, inputs, AT_ONCE)):
        current = place / f"current-{name}"
        current.unlink(missing_ok=True)
        count = min(AT_ONCE, inputs - first)
        process = multiprocessing.get_context("fork").Process(
            target=_explore, args=(name, count, 1000 * start + number, current, place)
        )
        process.start()
        _wait(process, current)
        outside = [str(path) for folder in ("here", "home") for path in (place / folder).rglob("*")]
        if process.exitcode == 0 and not outside:
            continue
        found += 1
        content = current.read_bytes() if current.exists() else b""
        kept = keep / f"{name}-{hashlib.sha256(content).hexdigest()[:8]}.bin"
        keep.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(content)
        what = f"wrote {outside}" if outside else f"ended with exit code {process.exitcode}"
        print(f"FOUND: {name} {what}; repeat with: python -m tests.campaigns.fuzz --repeat {kept}", flush=True)
        for folder in ("here", "home"):
            shutil.rmtree(place / folder)
            (place / folder).mkdir()
        os.chdir(place / "here")
    return found


def _wait(process: BaseProcess, current: Path) -> None:
    """Until it ends. No signal ends a process that hangs in compiled code, so it is killed after twice the time."""
    began = time.time()
    while process.exitcode is None:
        process.join(1)
        last = current.stat().st_mtime if current.exists() else began
        if time.time() - max(began, last) > 2 * SECONDS * BUSY:
            process.kill()


def _explore(name: str, count: int, number: int, current: Path, place: Path) -> None:
    """In a process of its own, with bounded memory."""
    from tests.campaigns.targets import TARGETS

    strategy = TARGETS[name].inputs()
    _bound()

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )
    @given(strategy)
    def explore(content: bytes) -> None:
        current.write_bytes(content)
        _used(name, content, place)

    try:
        explore()
    except BaseException as error:
        error.__notes__ = []  # the input, which may be long, is kept in a file
        print("".join(traceback.format_exception(error)[-6:]), flush=True)
        os._exit(FOUND)
    os._exit(0)


def _bound() -> None:
    """This process gets 2 GB more than it has now."""
    limit = psutil.Process().memory_info().vms + GIGABYTES * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def too_slow(signal_number: int, frame: object) -> None:
        raise TooSlow(f"more than {SECONDS} s")

    signal.signal(signal.SIGALRM, too_slow)
    signal.signal(signal.SIGPROF, too_slow)


def _used(name: str, content: bytes, place: Path) -> None:
    from cotrain import UserError
    from tests.campaigns.targets import TARGETS

    with tempfile.TemporaryDirectory(dir=place) as folder:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(SECONDS * BUSY)
        try:
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
                TARGETS[name].use(content, Path(folder))
        except UserError as error:
            assert str(error).strip(), "an empty message"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)


if __name__ == "__main__":
    main()
