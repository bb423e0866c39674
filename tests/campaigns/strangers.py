"""Files of a stranger that try to run code: crafted runs, and payloads in every kind of file that cotrain reads.

    python -m tests.campaigns.strangers [--only runs files folder]

Every payload writes the same file, the canary. An audit hook also reports code that runs from a stranger's folder,
shells, and connections. The exit code is 1 if anything ran.
"""

import argparse
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.campaigns.fuzz import sandbox

RUN = "stranger"  # the folder of the run, in the current folder
EVIL = """
import os
open(os.environ["CANARY"], "w").write(__file__)
def build(*, channels, classes, **rest):
    open(os.environ["CANARY"], "w").write("build")
"""
LAUNCHERS = ("os.system", "os.exec", "os.posix_spawn", "os.startfile", "pty.spawn")
OF_TARGETS = ("JSONDecode", "Unicode")  # errors of the targets themselves, which parse their input first
CALLS_OUT = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname")

BACKBONES: dict[str, dict[str, Any] | None] = {  # what the settings name, and model.arguments
    f"{RUN}.evil:build": None,  # a folder is a namespace package
    f"{RUN}.model.evil:build": {"width": 3},
    "evil:build": None,
    "torch.hub:load": {"repo_or_dir": RUN, "model": "build", "source": "local"},
    "transformers:AutoModel.from_pretrained": {"pretrained_model_name_or_path": RUN, "trust_remote_code": True},
    "os:system": {"command": "touch $CANARY"},
    "builtins:exec": {"source": EVIL},
    "runpy:run_path": {"path_name": f"{RUN}/evil.py"},
    "pickle:load": {"file": f"{RUN}/evil.pickle"},
    "torch.serialization:load": {"f": f"{RUN}/evil.pickle", "weights_only": False},
    f"hf:{RUN}/model": None,
    "hf:somebody/model": None,
    f"timm:local-dir:{RUN}/model": None,
    "timm:hf-hub:somebody/model": None,
    "timm:resnet18": None,
}


class Touch:
    """Unpickling it writes the canary."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ('touch "$CANARY"',)


class Watch:
    """Reports what ran. An audit hook stays for the rest of the process, so it is switched on and off."""

    def __init__(self, place: Path) -> None:
        self.canary, self.place, self.on, self.seen = place / "canary", str(place), False, set[str]()
        os.environ["CANARY"] = str(self.canary)
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "exec" and isinstance(arguments[0], CodeType) and arguments[0].co_filename.startswith(self.place):
            self.seen.add(f"ran {arguments[0].co_filename}")
        elif event.startswith(LAUNCHERS):
            self.seen.add(event)
        elif event in CALLS_OUT:
            self.seen.add(f"{event} {arguments[-1] if event == 'socket.connect' else arguments[0]}")

    def during(self, work: Callable[[], object]) -> list[str]:
        """What ran, and whether it ended as it must: with a result, or with one line for the user."""
        from cotrain import UserError

        self.seen.clear()
        self.canary.unlink(missing_ok=True)
        ended: list[str] = []
        self.on = True
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                work()
        except UserError:
            pass
        except SystemExit as end:
            if end.code not in (0, 2):
                ended = [f"exit code {end.code}"]
        except Exception as error:
            ended = [f"{type(error).__name__}: {error}"]
        finally:
            self.on = False
        written = ["wrote the canary"] if self.canary.exists() else []
        return [*sorted(self.seen), *written, *ended]


def runs(watch: Watch) -> Iterator[tuple[str, list[str]]]:
    """A run whose settings name code: in config.json, in the header of the model, in a baseline, in all of them."""
    from tests.campaigns.own_files import finished

    for backbone, arguments in BACKBONES.items():
        for where in (("config",), ("header",), ("baseline",), ("config", "header", "baseline")):
            for name, use in USES.items():
                shutil.rmtree(RUN, ignore_errors=True)
                shutil.copytree(finished(), RUN)
                _craft(Path(RUN), backbone, arguments, where)
                yield f"{name} of a run with {backbone} in {'+'.join(where)}", watch.during(use)


def _craft(run: Path, backbone: str, arguments: dict[str, Any] | None, where: tuple[str, ...]) -> None:
    from cotrain.runs.checkpoint import read_tensors, write_tensors

    def named(config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "model": {**config["model"], "backbone": backbone, "arguments": arguments}}

    folders = [run / "labelled_only"] if where == ("baseline",) else [run, run / "labelled_only"]
    for folder in folders[: 1 + ("baseline" in where)]:
        if "config" in where or "baseline" in where:
            path = folder / "config.json"
            path.write_text(json.dumps(named(json.loads(path.read_text()))))
        if "header" in where or "baseline" in where:
            tensors, facts = read_tensors(folder / "model.safetensors")
            write_tensors(folder / "model.safetensors", tensors, {**facts, "config": named(facts["config"])})
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "used": "labelled_only"}))
    for folder in (run, run / "model"):
        folder.mkdir(exist_ok=True)
        for name in ("evil.py", "hubconf.py", "modeling_evil.py"):
            (folder / name).write_text(EVIL)
        (folder / "evil.pickle").write_bytes(pickle.dumps(Touch()))
    parts = {part: f"modeling_evil.{part}" for part in ("AutoConfig", "AutoModel")}
    (run / "model" / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": parts}))
    (run / "model" / "pytorch_model.bin").write_bytes(pickle.dumps(Touch()))
    (run / "model" / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes())
    Path("evil.py").write_text(EVIL)


def _command(*words: str) -> Callable[[], None]:
    def use() -> None:
        from cotrain.cli.main import main

        main(words)

    return use


def _load() -> None:
    import cotrain

    cotrain.load(RUN, use="method")


USES: dict[str, Callable[[], object]] = {
    "load": _load,
    "predict": _command("predict", RUN, "photo.png"),
    "predict --use labelled_only": _command("predict", RUN, "photo.png", "--use", "labelled_only"),
    "export": _command("export", RUN, "model.onnx", "--overwrite"),
    "evaluate": _command("evaluate", RUN, "--data", "data.npz"),
    "report": _command("report", RUN, "--data", "data.npz"),
    "fit --resume": _command("fit", "data.npz", "--out", RUN, "--resume"),
}


def payloads() -> dict[str, bytes]:
    """Files that run code in a reader that trusts them."""
    pickled = pickle.dumps(Touch())
    arrays, saved, packed = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(arrays, test_rows=np.array([Touch()]), x=np.array([Touch()]), y=np.array([Touch()]))
    torch.save({"a": Touch()}, saved)
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("__main__.py", EVIL)
    header = json.dumps({"__metadata__": {"cotrain": pickle.dumps(Touch(), 0).decode("latin-1")}}).encode()
    return {
        "pickle": pickled,
        "old pickle": pickle.dumps(Touch(), 0),
        "npz of objects": arrays.getvalue(),
        "torch file": saved.getvalue(),
        "zip with __main__": packed.getvalue(),
        "safetensors with a pickle": len(header).to_bytes(8, "little") + header,
        "yaml": b'!!python/object/apply:os.system ["touch $CANARY"]\n',
        "python": EVIL.encode(),
        "json": json.dumps({"py/reduce": [{"py/function": "os.system"}, ["touch $CANARY"]]}).encode(),
    }


def files(watch: Watch) -> Iterator[tuple[str, list[str]]]:
    """A payload in place of each kind of file."""
    from tests.campaigns.own_files import featured, finished
    from tests.campaigns.targets import TARGETS

    inside = {
        "run": sorted(str(path.relative_to(finished())) for path in finished().rglob("*") if path.is_file()),
        "bank": sorted(featured()[1]),
        "columns": ["csv", "npz", "parquet"],
    }
    for kind, target in TARGETS.items():
        if kind == "http":
            continue
        for name, payload in payloads().items():
            for member in inside.get(kind, [""]):
                content = f"{member}\n".encode() + payload if member else payload
                with tempfile.TemporaryDirectory(dir=watch.place) as place:
                    found = watch.during(partial(target.use, content, Path(place)))
                yield f"{name} as {kind} {member}", [each for each in found if not each.startswith(OF_TARGETS)]


def folder(watch: Watch) -> Iterator[tuple[str, list[str]]]:
    """The command line, started in a folder of photographs with files that Python and libraries look for."""
    here = Path("photos")
    here.mkdir()
    rng = np.random.default_rng(0)
    for number in range(8):
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(here / f"{number}.png")
    (here / "labels.csv").write_text("path,label\n0.png,a\n1.png,b\n2.png,a\n3.png,b\n")
    for name in ("numpy", "torch", "PIL", "json", "cotrain", "sitecustomize", "usercustomize", "encodings", "conftest"):
        (here / f"{name}.py").write_text(EVIL)
    plug_in = here / "evil-1.0.dist-info"
    plug_in.mkdir()
    (plug_in / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (plug_in / "entry_points.txt").write_text(
        "[cotrain.backbones]\nlite0 = evil:build\n[cotrain.datasets]\na = evil:b\n"
    )
    (here / "evil.py").write_text(EVIL)
    (here / "matplotlibrc").write_text("backend: module://evil\ntext.usetex: True\n")
    (here / ".numba_config.yaml").write_text("cache_dir: kept\n")
    script = Path(sysconfig.get_path("scripts")) / "cotrain"
    small = ["--labels", "4", "--recipe", "digits", "--steps", "3", "--optim.labelled", "4", "--optim.unlabelled", "4"]
    small += ["--data.test_share", "0"]
    for words in (["data", "check", "."], ["fit", ".", "--out", "run", *small], ["predict", "run", "."]):
        done = subprocess.run([script, *words], cwd=here, capture_output=True, text=True, check=False)
        ran = ["wrote the canary"] if watch.canary.exists() else []
        ended = [] if done.returncode == 0 else [f"exit code {done.returncode}: {done.stderr[-500:]}"]
        kept = ["numba keeps its pickles there"] if (here / "kept").exists() else []
        yield f"{' '.join(words[:2])} in a folder of Python files", [*ran, *ended, *kept]


PARTS: dict[str, Callable[[Watch], Iterator[tuple[str, list[str]]]]] = {"runs": runs, "files": files, "folder": folder}


def campaign(name: str, watch: Watch) -> tuple[int, list[str]]:
    """How many attacks there were, and what came of those that did anything."""
    attacks = [*PARTS[name](watch)]
    return len(attacks), [f"{attack}: {', '.join(found)}" for attack, found in attacks if found]


def prepare() -> None:
    """What the attacks are about, in the current folder."""
    from tests.made_up import some_data

    data = some_data()
    train, labels = data.images[: len(data.train)].numpy(), data.labels[: len(data.train)].numpy()
    np.savez("data.npz", train_images=train, train_labels=labels, classes=np.array(data.classes))
    Image.new("RGB", (8, 8), (200, 30, 30)).save("photo.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS])
    options = parser.parse_args()
    total, broken = 0, []
    with sandbox() as place:
        watch = Watch(place)
        prepare()
        for name in options.only:
            count, found = campaign(name, watch)
            total, broken = total + count, broken + found
            print(f"{name}: {count} attacks, {len(found)} ran something or ended badly", flush=True)
    for line in broken:
        print(f"FOUND: {line}", flush=True)
    print(f"{total} attacks: {len(broken)} findings")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
