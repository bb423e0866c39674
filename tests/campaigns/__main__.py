"""All campaigns in at most 15 minutes: strangers' code, kills, damaged files, hostile requests. `make campaigns`.

    python -m tests.campaigns [--minutes 15] [--kills 60] [--inputs 2500] [--requests 500]

Prints the numbers that docs/security.md gives. The exit code is 1 if something was found, or if a campaign could not
end in time.
"""

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Ended:
    words: tuple[str, ...]
    output: str
    code: int | None  # None: stopped at the end of its time

    def number(self, pattern: str) -> int:
        """The sum of the numbers that the pattern finds."""
        return sum(int(found.replace(",", "")) for found in re.findall(pattern, self.output))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="for everything")
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--inputs", type=int, default=2500, help="changed files and settings")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    until, seed = time.monotonic() + 60 * options.minutes, ("--seed", str(options.seed))
    ended = [
        run(until, "strangers"),
        run(until, "fuzz", "--only", "http", "--inputs", str(options.requests), *seed),
        run(until, "chaos", "--kills", str(options.kills), *seed),
        run(until, "fuzz", "--inputs", str(options.inputs), *seed),
    ]
    print()
    for line in summary(*ended):
        print(line)
    sys.exit(any(each.code != 0 for each in ended))


def run(until: float, name: str, *words: str) -> Ended:
    """One campaign. Its output is shown when it ends."""
    command = (sys.executable, "-m", f"tests.campaigns.{name}", *words)
    print(f"$ python {' '.join(command[1:])}", flush=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired as stopped:
        output = (stopped.output or b"").decode(errors="replace")
        print(f"{output}stopped: the time is over", flush=True)
        return Ended((name, *words), output, None)
    print(done.stdout + done.stderr, end="", flush=True)
    return Ended((name, *words), done.stdout, done.returncode)


def summary(strangers: Ended, requests: Ended, kills: Ended, files: Ended) -> Iterator[str]:
    """The rows of docs/security.md."""
    rows = {
        "crafted runs loaded": (strangers.number(r"runs: ([\d,]+)"), strangers.number(r"runs: .*, ([\d,]+) ran")),
        "payloads in place of files": (
            strangers.number(r"files: ([\d,]+)"),
            strangers.number(r"files: .*, ([\d,]+) ran"),
        ),
        "hostile requests": (requests.number(r"http +([\d,]+)"), requests.number(r"http .*, ([\d,]+) findings")),
        "kills": (kills.number(r"([\d,]+) kills"), kills.output.count("BROKEN")),
        "files and settings damaged": (
            files.number(r"([\d,]+) inputs in"),
            files.number(r"inputs in .*: ([\d,]+) findings"),
        ),
    }
    for what, (tried, found) in rows.items():
        yield f"{what}: {tried:,} tried, {found:,} found something"


if __name__ == "__main__":
    main()
