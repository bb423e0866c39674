"""What is fuzzed: for each kind of input, how to draw one and how to use it. Only a `UserError` may come of it."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import cotrain
from cotrain.config import Config, settings_of
from cotrain.data.decode import FORMATS
from tests.campaigns import given_files, inputs, own_files
from tests.labelling.served import photos, serving
from tests.trunk.tiny import known

ASKED = ("state", "next", "grid", "card/0", "look/all")
CHANGED = ("label", "clear", "skip", "class", "rename", "merge", "undo")  # not finish, which trains
PATHS = ["/", "/page/page.js", "/page/..", "/image/0", "/image/99", *(f"/api/{name}" for name in ASKED + CHANGED)]


@dataclass(frozen=True)
class Target:
    inputs: Callable[[], st.SearchStrategy[bytes]]
    use: Callable[[bytes, Path], object]  # the input, and a folder that is empty and thrown away


def setting(content: bytes, folder: Path) -> None:
    changes = json.loads(content)
    config = cotrain.recipe_named("digits").changed(changes)
    json.dumps(config.model_dump(), allow_nan=False)


def settings() -> st.SearchStrategy[bytes]:
    keys = st.sampled_from([each.key for each in settings_of(Config())])
    words = st.sampled_from(["none", "true", "1e38", "nan", "-inf", "0", "-1", "9" * 30, "[/x]", "mhct", "lite0", "{"])
    return st.dictionaries(keys, st.one_of(inputs.values, words), min_size=1, max_size=3).map(inputs.as_json)


@cache
def served() -> Any:
    """A server that stays open until this process ends."""
    torch.set_num_threads(1)
    known().__enter__()
    return serving(photos(Path(tempfile.mkdtemp()) / "photos", 6)).__enter__()


def http(content: bytes, folder: Path) -> None:
    asked = json.loads(content)
    headers = {name.replace("-", "_"): value for name, value in asked["headers"].items()}
    body = None if asked["method"] in ("GET", "HEAD") else asked["body"].encode(errors="surrogatepass")
    answer = served().client.request(asked["method"], asked["path"] + asked["query"], body, **headers)
    assert answer.status < 500, (answer.status, answer.body)
    assert b"Traceback" not in answer.body


TARGETS = {
    "table": Target(inputs.tables, given_files.table),
    **{
        f"image-{format.lower()}": Target(lambda format=format: inputs.one_of(inputs.image(format)), given_files.image)
        for format in FORMATS
    },
    "image-modes": Target(
        lambda: inputs.one_of(
            *(inputs.image("PNG", mode) for mode in ("RGBA", "P", "LA", "1", "I;16")),
            inputs.image("TIFF", compression="tiff_lzw"),
            inputs.image("GIF", save_all=True),
        ),
        given_files.image,
    ),
    "npz": Target(
        lambda: inputs.npz(
            {
                "train_images": np.zeros((4, 8, 8), np.uint8),
                "train_labels": np.array([[0], [1], [0], [-1]]),
                "classes": np.array(["a", "b"]),
            }
        ),
        given_files.npz,
    ),
    "columns": Target(given_files.tables_of_numbers, given_files.columns),
    "archive": Target(inputs.cifar, given_files.archive),
    "mat": Target(inputs.svhn, given_files.mat),
    "run": Target(own_files.run_files, own_files.run_file),
    "facts": Target(own_files.model_facts, own_files.facts),
    "scores": Target(own_files.score_arrays, own_files.scores),
    "weights": Target(
        lambda: inputs.changed((own_files.finished() / "model.safetensors").read_bytes()), given_files.weights
    ),
    "split": Target(own_files.splits, own_files.split),
    "graph": Target(lambda: inputs.changed(bytes(range(256)) * 4), own_files.graph),
    "plan": Target(own_files.plans, own_files.plan),
    "folds": Target(lambda: inputs.npz({"method/0": np.zeros((3, 2, 2), np.float32)}), own_files.folds),
    "journal": Target(own_files.journals, own_files.journal),
    "copy": Target(own_files.copied_files, own_files.decoded_copy),
    "bank": Target(own_files.bank_files, own_files.bank),
    "setting": Target(settings, setting),
    "http": Target(lambda: inputs.requests(PATHS), http),
}
