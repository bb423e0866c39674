"""Builds the wheel and the sdist, checks what is in them, and trains with the wheel in a fresh environment."""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
IN_SDIST = (
    *("LICENSE", "CITATION.cff", "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "constraints.txt"),
    *("docs/conf.py", "docs/index.md", "docs/methods/mhct.md", "benchmarks/__main__.py"),
)


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    print("$", *command, flush=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    if done.returncode:
        sys.exit(f"{done.stdout}\n{command[0]} ended with {done.returncode}")
    return done.stdout


def built() -> tuple[Path, Path]:
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, sdist


def tracked(folder: str) -> set[str]:
    return set(run("git", "-c", "core.quotePath=off", "ls-files", folder).splitlines())


def require(what: str, missing: set[str]) -> None:
    if missing:
        sys.exit(f"{what} lacks {', '.join(sorted(missing))}")


def check_wheel(wheel: Path) -> None:
    """Every file of the package is there, templates and py.typed too, and the licence; nothing else is."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    package = tracked("cotrain")
    require(wheel.name, package - names)
    require(wheel.name, {"cotrain/py.typed", "cotrain/report/templates/report.html.jinja"} - names)
    if not any(name.endswith("licenses/LICENSE") for name in info):
        sys.exit(f"{wheel.name} lacks the licence")
    if extra := names - package - info:
        sys.exit(f"{wheel.name} holds what is not in the package: {', '.join(sorted(extra))}")


def check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    require(sdist.name, ({*IN_SDIST} | tracked("cotrain") | tracked("tests")) - names)


def check_training(wheel: Path, folder: Path) -> None:
    """The first steps of the demo, outside of the repository."""
    venv.create(folder / "env", with_pip=True)
    scripts = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / ("python.exe" if os.name == "nt" else "python")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--constraint", ROOT / "constraints.txt", wheel)
    elsewhere = run(python, "-c", "import cotrain; print(cotrain.__version__, cotrain.__file__)", cwd=folder).split()
    if elsewhere[0] not in wheel.name or str(ROOT) in elsewhere[1]:
        sys.exit(f"{python} imports cotrain {' from '.join(elsewhere)}")
    print(run(scripts / "cotrain", "fit", "digits", "--steps", "5", "--out", "run", cwd=folder))
    require("the run", {name for name in ("result.json", "report.html") if not (folder / "run" / name).exists()})


def main() -> None:
    wheel, sdist = built()
    check_wheel(wheel)
    check_sdist(sdist)
    with tempfile.TemporaryDirectory() as folder:
        check_training(wheel, Path(folder))
    for path in (wheel, sdist):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.2f} MB, checked")


if __name__ == "__main__":
    main()
