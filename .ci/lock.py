"""Writes requirements-test.lock: every package that the tests need, with its version and the hash of its wheel.

    python .ci/lock.py     # with the Python and on the platform that the lock is for; uses pip's configured index

The lock is for one platform and one version of Python, which its first line names, and for a CPU build of torch; name
an index that has one with PIP_EXTRA_INDEX_URL. Renew the lock after a change of the dependencies in pyproject.toml or
constraints.txt, look at the difference, and run the tests with it:

    python -m venv fresh && fresh/bin/pip install --require-hashes -r requirements-test.lock
    fresh/bin/pip install --no-deps --editable . && fresh/bin/python -m pytest
"""

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements-test.lock"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += [
            "--disable-pip-version-check",
            "--constraint",
            str(ROOT / "constraints.txt"),
            "--report",
            str(report),
        ]
        subprocess.run([*command, f"{ROOT}[dev]", "hatchling"], check=True)
        installed = json.loads(report.read_text())["install"]
    lines = []
    for each in installed:
        name, version = each["metadata"]["name"], each["metadata"]["version"]
        if name == "cotrain":
            continue
        sha256 = each["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name.lower().replace('_', '-')}=={version} \\\n    --hash=sha256:{sha256}\n")
    python = f"Python {platform.python_version_tuple()[0]}.{platform.python_version_tuple()[1]}"
    head = f"# Written by .ci/lock.py for {python} on {platform.system()} {platform.machine()}; do not edit.\n"
    LOCK.write_text(head + "".join(sorted(lines)))
    print(f"{len(lines)} packages -> {LOCK.name}")


if __name__ == "__main__":
    main()
