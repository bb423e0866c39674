"""A bad day: processes killed at random moments, full and read-only disks, a clock that jumps, processes that meet.

    python -m tests.campaigns.chaos [--kills 100] [--seed 0] [--only fit label]

Whatever happens, the job that is resumed gives the same bits as one that was left alone, no confirmed label is lost,
and no file has its final name before it is complete. A part that cannot run here says why. The exit code is 1 if
something broke.
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.campaigns.bad_disks import Skipped, full_disk, read_only
from tests.campaigns.jobs import (
    FIT,
    Compare,
    FillBank,
    Fit,
    FitFeatures,
    FitFromBaseline,
    FitPhotos,
    Job,
    Predict,
    check_whole,
    journal_of,
    trained,
)
from tests.labelling.served import photos, start, visit
from tests.processes import Running
from tests.processes import start as started

LEAST = 0.05  # seconds before a kill


def killed(kind: type[Job], kills: int, draw: random.Random, place: Path) -> str:
    """Kill a job again and again; whenever it gets to its end, compare and begin anew."""
    job = kind(place / "job")
    began = time.monotonic()
    done = job.begin().wait()
    assert done.returncode == 0, done.stderr
    seconds, expected = time.monotonic() - began, job.made()
    job.clear()
    hit = finished = 0
    while hit < kills:
        began = time.monotonic()
        process = job.begin()
        process.process.join(max(LEAST, draw.random() * seconds))
        process.process.kill()
        code = process.wait().returncode
        assert code in (0, -signal.SIGKILL), f"exit code {code}"
        check_whole(job.folder)
        if code == 0:
            assert job.made() == expected
            seconds = min(seconds, time.monotonic() - began)  # it was ready sooner than the kill
            finished += 1
            job.clear()
        else:
            hit += 1
    done = job.begin().wait()
    assert done.returncode == 0, done.stderr
    assert job.made() == expected
    return f"{hit} kills, {finished + 1} jobs finished, all with the same bits"


def labelled(kills: int, draw: random.Random, place: Path) -> str:
    """Kill the labelling page while somebody labels: every label that it confirmed is in the journal."""
    folder = photos(place / "photos", 24)
    confirmed: dict[str, int] = {}
    for _ in range(kills):
        process, address = start(folder)
        client = visit(address)
        names = {one["name"]: one["class"] for one in client.state["classes"]}
        names |= client.name(*{"red", "green"} - names.keys())
        end = time.monotonic() + draw.random()
        while time.monotonic() < end:
            row, number = draw.randrange(24), draw.choice([*names.values()])
            seen = client.get(f"/api/card/{row}")["seen"]
            client.label(number, row, seen=seen)
            confirmed[f"{row:03d}.png"] = number
        process.process.kill()
        process.wait()
        assert journal_of(folder) == confirmed
    return f"{kills} kills, {len(confirmed)} images labelled, no confirmed label lost"


def two_processes(kills: int, draw: random.Random, place: Path) -> str:
    """Two processes resume one run: one trains it, the other one says so, and the result is the same."""
    job = Fit(place / "job")
    assert job.begin().wait().returncode == 0
    expected = job.made()
    job.clear()
    first = job.begin()
    first.wait_until(lambda: (job.folder / "run" / "log.jsonl").exists())
    second = started(*FIT, "--out", job.folder / "run", "--resume").wait()
    assert first.wait().returncode == 0
    refused = second.returncode == 2 and "another process is training" in second.stderr
    assert refused or second.returncode == 0, second.stderr
    assert job.made() == expected
    return f"the second was {'refused' if refused else 'late'}, and the result is the same"


def jumping_clock(words: list[str]) -> None:
    """In a process of its own: a clock that jumps by up to a day whenever somebody looks at it."""
    from cotrain.cli.main import main

    real, draw = time.time, random.Random(0)
    time.time = lambda: real() + draw.uniform(-86_400, 86_400)
    main(words)


def clock(kills: int, draw: random.Random, place: Path) -> str:
    assert started(*FIT, "--out", place / "calm").wait().returncode == 0
    done = Running(jumping_clock, [*FIT, "--out", str(place / "jumping")]).wait()
    assert done.returncode == 0, done.stderr
    calm, jumping = (trained(place / name) for name in ("calm", "jumping"))
    assert calm == jumping
    return "the result is the same"


def lost_workers(kills: int, draw: random.Random, place: Path) -> str:
    """The system kills decoding workers, as it does when memory is short: their files are decoded again."""
    job = Predict(place / "job")
    assert job.begin().wait().returncode == 0
    expected, number = job.made(), 0
    for _ in range(max(1, kills // 3)):
        job.clear()
        process = job.begin()
        while process.process.is_alive():
            workers = [
                child for child in psutil.Process(process.process.pid).children() if "decode.py" in _command(child)
            ]
            if workers:
                draw.choice(workers).kill()
                number += 1
                break
            time.sleep(0.01)
        assert process.wait().returncode == 0
        assert job.made() == expected
    return f"{number} workers killed, all rows the same"


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def changing_folder(kills: int, draw: random.Random, place: Path) -> str:
    """Somebody deletes, truncates and adds files while they are read: rows with errors, or one line, no traceback."""
    codes = []
    for number in range(max(2, kills // 3)):
        (place / str(number)).mkdir()
        job = (Predict, FitPhotos)[number % 2](place / str(number) / "job", photos=400)
        process = job.begin()
        while process.process.is_alive():
            path = draw.choice([*job.photos.glob("*.png")])
            match draw.randrange(3):
                case 0:
                    path.unlink()
                case 1:
                    path.write_bytes(path.read_bytes()[: draw.randrange(60)])
                case 2:
                    (job.photos / f"new-{number}-{draw.random()}.png").write_bytes(path.read_bytes())
            time.sleep(0.01)
        done = process.wait()
        assert done.returncode in (0, 2) and "Traceback" not in done.stderr, done.stderr
        check_whole(job.folder)
        codes.append(done.returncode)
    return f"exit codes {codes}"


Part = Callable[[int, random.Random, Path], str]
PARTS: dict[str, Part] = {
    "fit": lambda kills, draw, place: killed(Fit, kills, draw, place),
    "fit-from-baseline": lambda kills, draw, place: killed(FitFromBaseline, kills, draw, place),
    "fit-features": lambda kills, draw, place: killed(FitFeatures, kills, draw, place),
    "bank": lambda kills, draw, place: killed(FillBank, kills, draw, place),
    "predict": lambda kills, draw, place: killed(Predict, kills, draw, place),
    "compare": lambda kills, draw, place: killed(Compare, kills, draw, place),
    "label": labelled,
    "two-processes": two_processes,
    "clock": clock,
    "lost-workers": lost_workers,
    "changing-folder": changing_folder,
    "full-disk": full_disk,
    "read-only": read_only,
}
KILLING = ("fit", "fit-from-baseline", "fit-features", "bank", "predict", "compare", "label")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="over all jobs together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS])
    options = parser.parse_args()
    broken = []
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            os.environ["COTRAIN_HOME"] = str(Path(folder) / "home")
            kills = -(-options.kills // len(KILLING))
            try:
                said = PARTS[name](kills, random.Random(f"{options.seed} {name}"), Path(folder))
            except Skipped as why:
                said = f"skipped: {why}"
            except Exception:
                broken.append(name)
                said = f"BROKEN, repeat with --only {name} --seed {options.seed}\n{traceback.format_exc()}"
            print(f"{name}: {said}", flush=True)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    multiprocessing.freeze_support()
    main()
