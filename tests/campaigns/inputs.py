"""Inputs for fuzzing: valid files with a few changes, and JSON with a few values replaced. Every input is bytes."""

import io
import json
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from tests.data.test_cifar import ten_python

Bytes = st.SearchStrategy[bytes]
RAMP = np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)
INTERESTING = [
    b"\x00",
    b"\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x80",
    b"-1",
    b"NaN",
    b"[" * 40,
]

numbers = st.one_of(st.integers(-2, 300), st.sampled_from([2**31, 2**63, -(2**63), 2**70, 10**400]))
leaves = st.one_of(st.none(), st.booleans(), numbers, st.floats(), st.text(max_size=8), st.sampled_from(["", "\ud800"]))
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def changed(draw: st.DrawFn, whole: bytes) -> bytes:
    """The file with up to six changes: bytes overwritten, removed, repeated, or the rest cut off."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, max(0, min(len(content), 4096) - 1)))
        match draw(st.sampled_from(["set", "interesting", "remove", "repeat", "cut"])):
            case "set":
                new = draw(st.binary(min_size=1, max_size=4))
                content[place : place + len(new)] = new
            case "interesting":
                new = draw(st.sampled_from(INTERESTING))
                content[place : place + len(new)] = new
            case "remove":
                del content[place : place + draw(st.integers(1, 40))]
            case "repeat":
                content[place:place] = content[place : place + draw(st.integers(1, 200))]
            case "cut":
                del content[place:]
    return bytes(content)


@st.composite
def edited(draw: st.DrawFn, value: Any) -> Any:
    """The JSON value with up to three of its parts replaced, removed or renamed."""
    value = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(value))
        if not places:
            return draw(values)
        container, key = draw(st.sampled_from(places))
        match draw(st.sampled_from(["replace", "replace", "remove", "rename"])):
            case "replace":
                container[key] = draw(values)
            case "remove":
                del container[key]
            case "rename" if isinstance(container, dict):
                container[draw(st.text(max_size=5))] = container.pop(key)
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every part of a JSON value, by what holds it; of a long list only the first parts."""
    keys = list(value) if isinstance(value, dict) else [*range(min(len(value), 5))] if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def one_of(*wholes: bytes) -> Bytes:
    return st.one_of([changed(whole) for whole in wholes])


def image(format: str, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    deep = Image.fromarray(RAMP[..., 0].astype(np.uint16) * 257)
    (deep if mode == "I;16" else Image.fromarray(RAMP).convert(mode)).save(file, format, **options)
    return file.getvalue()


def tables() -> Bytes:
    rows = "path,label\n0.png,cat\nsub/1.png,dog\n2.png,\n"
    text = st.text(alphabet=st.sampled_from('path,label;\t"\n\r=+-@0123.png/\\\u00e9\ud800'), max_size=80)
    arbitrary = text.map(lambda drawn: drawn.encode(errors="surrogatepass"))
    return st.one_of(one_of(rows.encode(), rows.encode("utf-16"), rows.replace(",", ";").encode()), arbitrary)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zipped(parts: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def npz(arrays: dict[str, np.ndarray]) -> Bytes:
    """Damage of the zip file, and damage of an array inside a zip file whose checksums are right."""
    parts = {f"{name}.npy": npy(array) for name, array in arrays.items()}
    inside = st.sampled_from(sorted(parts)).flatmap(
        lambda name: changed(parts[name]).map(lambda content: zipped({**parts, name: content}))
    )
    return st.one_of(changed(zipped(parts)), changed(zipped(parts, zipfile.ZIP_LZMA)), inside)


def cifar() -> Bytes:
    """Damage of the archive, and damage of a pickle inside a whole archive."""
    files = ten_python(lambda value: pickle.dumps(value, protocol=2))

    def archive(parts: dict[str, bytes]) -> bytes:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
            for name, content in parts.items():
                entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        return file.getvalue()

    inside = st.sampled_from(["data_batch_1", "batches.meta"]).flatmap(
        lambda name: changed(files[name]).map(lambda content: archive({**files, name: content}))
    )
    return st.one_of(changed(archive(files)), inside)


def svhn() -> Bytes:
    """Damage of the file, and damage inside its compressed variables."""
    from scipy.io import savemat

    file = io.BytesIO()
    variables = {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.array([[1], [2], [3], [10]], np.uint8)}
    savemat(file, variables, do_compression=True)
    whole = file.getvalue()
    length = int.from_bytes(whole[132:136], "little")
    variable = zlib.decompress(whole[136 : 136 + length])

    def compressed(content: bytes) -> bytes:
        packed = zlib.compress(content)
        return whole[:132] + len(packed).to_bytes(4, "little") + packed + whole[136 + length :]

    return st.one_of(changed(whole), changed(variable).map(compressed))


def requests(paths: list[str]) -> Bytes:
    """HTTP requests: method, path, headers and body as JSON."""
    bodies = st.one_of(values, st.fixed_dictionaries({"class": values, "images": values, "name": values}))
    simple = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12)
    request: Callable[..., Any] = st.fixed_dictionaries
    return request(
        {
            "method": st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]),
            "path": st.one_of(st.sampled_from(paths), simple.map(lambda text: f"/{text}")),
            "query": st.one_of(st.just(""), simple.map(lambda text: f"?{text}")),
            "body": st.one_of(bodies.map(json.dumps), st.text(max_size=20)),
            "headers": st.dictionaries(st.sampled_from(["Origin", "Host", "Range", "X-A"]), simple, max_size=2),
        }
    ).map(as_json)
