"""A model as an ONNX file: equal to `predict`, self-describing, and usable without cotrain."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

import cotrain
from cotrain import Backbone, Dataset, Exported, Predictions, Stage, UserError
from cotrain.cli.main import main
from cotrain.inference import export as exporting
from cotrain.inference.export import OPSET, OUTPUTS, Deployed
from cotrain.model.pretrained import FixedNorm, Head, Input, Sizes
from cotrain.model.stages import Extra, Pretrained
from cotrain.storage.reading import read_json
from cotrain.storage.writing import write_json
from cotrain.trunk.runtime import to_onnx
from tests.few_digits import few_digits

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide" / "export.md"
SHORT = {
    "optim.steps": 8,
    "optim.labelled": 8,
    "optim.unlabelled": 16,
    "run.baseline": False,
    "run.report": False,
    "run.seed": 3,
}


pytestmark = [pytest.mark.system, pytest.mark.usefixtures("quick_exports")]


def made_up(channels: int, side: int, classes: int = 3) -> Dataset:
    """Classes of different brightness that overlap, so that probabilities are neither 0 nor 1."""
    rng = np.random.default_rng(0)
    labels = np.arange(150) % classes
    images = rng.integers(0, 150, (150, side, side, channels)) + 25 * labels[:, None, None, None]
    images, names = images.astype(np.uint8), tuple("äbcdefghij"[:classes])
    return cotrain.from_arrays(images[:90], labels[:90], test=(images[90:], labels[90:]), classes=names)


def pretrained(*, channels: int, classes: int, extra: Extra) -> Backbone:
    """A trunk with fixed weights, on images enlarged to 20x20, and heads on its features."""

    def trunk(dropout: float) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(nn.Conv2d(3, 8, 5, 2), FixedNorm(8, 1e-3), nn.ReLU6(), nn.AdaptiveAvgPool2d(1))

    stages = (Stage("input", lambda dropout: Input("tiny", channels, 20, Sizes())), Stage("features", trunk))
    weights = Pretrained(20, (0.4, 0.5, 0.6), (0.1, 0.2, 0.3), "made up", "features", "input")
    head = Head(hidden=6).stages(8, classes, extra)
    return Backbone("pretrained", (*stages, *head), "features", channels, classes, weights)


FROZEN = {
    "data.labels": 45,
    "data.valid_share": 0.4,
    "method.heads": 4,
    "run.ensemble": "logits",
    "run.runtime": "torch",  # an independent reference, and nothing to compile
    "bank.weak": 1,
    "bank.strong": 1,
}
RUNS: dict[str, tuple[Callable[[], Dataset], str, dict[str, Any]]] = {  # data, recipe, settings
    "wrn, grey, 3 heads, temperature": (few_digits, "digits", {"data.valid_share": 0.2}),
    "wrn, colour, 1 head, logits": (
        lambda: made_up(3, 12),
        "small32",
        {"data.labels": 30, "method": "supervised", "run.ensemble": "logits"},
    ),
    "frozen trunk, 4 heads, logits, temperature": (
        lambda: made_up(3, 16),
        "photos",
        {**FROZEN, "model.backbone": f"{__name__}:pretrained"},
    ),
    "lite0": (lambda: made_up(3, 16), "photos", {**FROZEN, "model.enlarge": 32, "run.runtime": "auto"}),
}
MARKS = {"lite0": pytest.mark.slow}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=MARKS.get(name, ())) for name in RUNS])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    """A run's folder and its exported file."""
    data, recipe, settings = RUNS[request.param]
    folder = tmp_path_factory.mktemp("export")
    config = cotrain.recipe_named(recipe).changed(SHORT | settings)
    cotrain.fit(data(), out=folder / "run", config=config)
    return folder / "run", cotrain.export(folder / "run", folder / "model.onnx", trust_code=True)


def outputs(path: Path, images: NDArray[np.uint8], at_once: int = 100) -> dict[str, NDArray]:
    session = onnxruntime.InferenceSession(path)
    parts = [session.run(OUTPUTS, {"images": images[at : at + at_once]}) for at in range(0, len(images), at_once)]
    return {
        name: np.concatenate(of_name, axis=1 if name == "head_logits" else 0)
        for name, of_name in zip(OUTPUTS, zip(*parts, strict=True), strict=True)
    }


def assert_same(given: Mapping[str, NDArray], expected: Predictions) -> None:
    np.testing.assert_allclose(given["probabilities"], expected.probabilities, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(given["labels"], expected.labels)
    np.testing.assert_array_equal(given["heads_agree"], expected.heads_agree)


def many_images(shape: tuple[int, ...], count: int = 400) -> NDArray[np.uint8]:
    """Noise of different brightness and contrast, and flat images."""
    rng = np.random.default_rng(1)
    low, high = np.sort(rng.integers(0, 256, (2, count, 1, 1, 1)), axis=0)
    images = rng.integers(low, high + 1, (count, *shape))
    images[:16] = np.linspace(0, 255, 16).astype(int)[:, None, None, None]
    return images.astype(np.uint8)


def test_the_file_predicts_what_predict_does(exported: tuple[Path, Exported]) -> None:
    folder, file = exported
    model = cotrain.load(folder, trust_code=True)
    images = many_images((*model.size, model.channels))
    expected = model.predict(images)
    given = outputs(file.path, images)
    assert_same(given, expected)
    assert len(np.unique(expected.labels)) > 1
    logits = model.logits(torch.from_numpy(images), np.arange(len(images))).numpy()
    np.testing.assert_allclose(given["head_logits"], logits, rtol=1e-4, atol=1e-4)
    dtypes = {name: str(values.dtype) for name, values in given.items()}
    assert dtypes == dict(zip(OUTPUTS, ("float64", "int64", "int64", "float32"), strict=True))
    assert file.difference < 1e-5
    print(f"\n{abs(given['probabilities'] - expected.probabilities).max():.1e} in a probability")


def test_any_number_of_images_gives_the_same(exported: tuple[Path, Exported]) -> None:
    folder, file = exported
    model = cotrain.load(folder, trust_code=True)
    images = many_images((*model.size, model.channels), 23)
    for at_once in (1, 7, 23):
        assert_same(outputs(file.path, images, at_once), model.predict(images))


def test_the_metadata_describe_the_model(exported: tuple[Path, Exported]) -> None:
    folder, file = exported
    model, result = cotrain.load(folder, trust_code=True), read_json(folder / "result.json")
    stored = onnxruntime.InferenceSession(file.path).get_modelmeta().custom_metadata_map
    facts = {key: json.loads(value) for key, value in stored.items()}
    assert facts == file.metadata
    assert facts["classes"] == list(model.classes)
    assert facts["image_size"] == [*model.size, model.channels]
    assert facts["cotrain"] == cotrain.__version__
    assert (facts["method"], facts["backbone"]) == (model.config.method.name, model.config.model.backbone)
    for key in ("test_error", "test_interval", "test_images", "labels", "unlabelled", "seed"):
        assert facts[key] == result[key]
    if result["temperature"] is None:
        assert (facts["temperature"], facts["probabilities"]) == (1.0, "softmax of the logits; not calibrated")
    else:
        assert facts["temperature"] == result["temperature"] != 1
        images = result["temperature_fitted_on"]["valid_images"]
        assert f"divided by {facts['temperature']:.6g}, fitted on {images} validation images" in facts["probabilities"]


def test_the_graph_holds_no_paths_and_is_valid(exported: tuple[Path, Exported]) -> None:
    _, file = exported
    content = file.path.read_bytes()
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    assert b".py" not in content
    assert str(Path(cotrain.__file__).parent).encode() not in content
    (opset,) = onnx.load_from_string(content).opset_import
    assert opset.version == OPSET


class Fixed(nn.Module):
    """Logits that depend on the pixels in a known way: (n, 1, H * C, 1) -> (H, n, C)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, images: Tensor) -> Tensor:
        return (images.float() / 16).reshape(images.shape[0], self.heads, -1).permute(1, 0, 2)


@pytest.mark.parametrize(
    ("heads", "rule", "temperature"),
    [(1, "probabilities", 2.5), (5, "probabilities", 0.05), (2, "logits", 1.0), (3, "logits", 2.5)],
)
def test_ensemble_and_temperature_against_numpy(heads: int, rule: str, temperature: float) -> None:
    """In the first images all classes tie, and the lowest is predicted."""
    levels = np.array([0, 16, 32, 255])
    images = levels[np.random.default_rng(0).integers(0, 4, (300, 1, 3 * heads, 1))].astype(np.uint8)
    images[:4] = levels[:, None, None, None]
    content = to_onnx(Deployed(Fixed(heads), temperature, rule), torch.from_numpy(images[:2]), *OUTPUTS, opset=OPSET)
    probabilities, labels, agree, logits = onnxruntime.InferenceSession(content).run(OUTPUTS, {"images": images})
    expected = (images / 16).reshape(300, heads, 3).transpose(1, 0, 2)
    np.testing.assert_array_equal(logits, expected)

    def softmax(values: NDArray) -> NDArray:
        powers = np.exp(values - values.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)

    def combined(values: NDArray) -> NDArray:
        return softmax(values).mean(axis=0) if rule == "probabilities" else softmax(values.sum(axis=0))

    np.testing.assert_allclose(probabilities, combined(expected / temperature), rtol=0, atol=1e-6)
    uncalibrated = combined(expected)
    np.testing.assert_allclose(uncalibrated[np.arange(300), labels], uncalibrated.max(axis=1), rtol=0, atol=1e-12)
    assert labels[:4].tolist() == [0] * 4
    in_torch = Deployed(Fixed(heads), temperature, rule)(torch.from_numpy(images))
    np.testing.assert_array_equal(labels, in_torch[1])  # other ties too
    np.testing.assert_array_equal(agree, (expected.argmax(axis=-1) == labels).sum(axis=0))


def small(*, channels: int, classes: int) -> tuple[nn.Module, Any]:
    trunk = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(6), nn.Flatten())
    return trunk, lambda: nn.Linear(4, classes)


class CountsImages(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1)


def fixes_the_batch(*, channels: int, classes: int) -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.BatchNorm2d(channels), CountsImages()), lambda: nn.Linear(64 * channels, classes)


class DependsOnValues(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) if x.sum() > 0 else -x.flatten(1)


def branches(*, channels: int, classes: int) -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.BatchNorm2d(channels), DependsOnValues()), lambda: nn.Linear(64 * channels, classes)


@pytest.fixture(scope="module")
def own(toy: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a network of the user's own that exports quickly."""
    return fitted(toy, tmp_path_factory.mktemp("own") / "run", "small")


def fitted(toy: Dataset, out: Path, network: str) -> Path:
    settings = {**SHORT, "data.labels": 8, "model.backbone": f"{__name__}:{network}"}
    return cotrain.fit(toy, out=out, config=cotrain.recipe_named("digits"), settings=settings).folder


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["export", *words, "--trust-code"])
    shown = capsys.readouterr()
    assert (stop.value.code, shown.out) == (2, "")
    *about_trust, line = shown.err.splitlines()
    assert all("runs the code of" in each for each in about_trust)
    return line.removeprefix("cotrain: ")


def test_the_command_writes_the_file_and_never_replaces_one_unasked(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], toy: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    main(["export", str(own), str(path), "--trust-code"])
    content = path.read_bytes()
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "images: uint8 (n, 8, 8, 1), resized with Pillow, bicubic"
    assert shown[1] == "probabilities: mean of the probabilities of 3 heads; not calibrated"
    assert re.fullmatch(r"largest difference from predict: \S+e-\d+ in a probability", shown[2])
    assert re.fullmatch(rf"[\d.]+ [kM]B -> {re.escape(str(path))}", shown[3])
    images = toy.images.numpy()
    assert_same(outputs(path, images), cotrain.load(own, trust_code=True).predict(images))
    path.write_bytes(b"something of value")
    assert refused(capsys, str(own), str(path)).startswith(f"{path} already exists; choose another file, or add --over")
    assert path.read_bytes() == b"something of value"
    monkeypatch.setattr(exporting, "graph_of", lambda model: content)  # slow, and the same again
    main(["export", str(own), str(path), "--overwrite", "--trust-code"])
    assert_same(outputs(path, images), cotrain.load(own, trust_code=True).predict(images))
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_mistakes_are_one_line_before_anything_slow(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "graph_of", None)
    assert refused(capsys, str(own), str(tmp_path / "model.pt")) == f"{tmp_path / 'model.pt'} must end in .onnx"
    absent = tmp_path / "absent" / "model.onnx"
    assert refused(capsys, str(own), str(absent)) == f"cannot write {absent}: there is no folder {absent.parent}"
    path = str(tmp_path / "model.onnx")
    assert refused(capsys, str(tmp_path / "nothing"), path) == f"there is no run {tmp_path / 'nothing'}"
    unfinished = tmp_path / "unfinished"
    shutil.copytree(own, unfinished)
    (unfinished / "result.json").unlink()
    assert refused(capsys, str(unfinished), path).startswith(f"{unfinished} is not finished: it has no result.json yet")
    (unfinished / "model.safetensors").unlink()
    assert refused(capsys, str(unfinished), path).startswith(f"{unfinished} is not finished: it has no model.safetens")
    for name in ("onnx", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)
    assert refused(capsys, str(own), path) == "export needs onnx and onnxscript: pip install onnx onnxscript"


@pytest.mark.parametrize(
    ("network", "why"),
    [
        ("fixes_the_batch", r".*:fixes_the_batch can be exported only for a fixed number of images: .*x\.shape\[0\].*"),
        ("branches", r"torch cannot export .*:branches to ONNX: \S.*"),
    ],
)
def test_a_network_that_cannot_be_exported_is_refused_in_one_line(
    network: str, why: str, toy: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Torch would print its own analysis."""
    folder = fitted(toy, tmp_path / "run", network)
    assert re.fullmatch(why, refused(capsys, str(folder), str(tmp_path / "model.onnx")))
    assert not (tmp_path / "model.onnx").exists()


def test_a_graph_that_predicts_something_else_is_not_written(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = exporting.deployed
    monkeypatch.setattr(exporting, "deployed", lambda model: Deployed(right(model).net, 9.0, "probabilities"))
    with pytest.raises(UserError, match=r"the exported graph differs from predict by 0\.\d+ in a probability"):
        cotrain.export(own, tmp_path / "model.onnx", trust_code=True)
    assert list(tmp_path.iterdir()) == []


WITHOUT = """
import sys, runpy
for name in ("cotrain", "torch", "onnx", "scipy"):
    sys.modules[name] = None  # importing it fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_program_of_the_guide_needs_no_cotrain(exported: tuple[Path, Exported], tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n# classify\.py\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    assert len(program.splitlines()) <= 20
    (tmp_path / "classify.py").write_text(program)
    folder, file = exported
    model, rng = cotrain.load(folder, trust_code=True), np.random.default_rng(2)
    paths = [tmp_path / name for name in ("small.png", "large.jpg", "sideways.jpg", "grey.png")]
    Image.fromarray(rng.integers(0, 256, (*model.size, 3), dtype=np.uint8)).save(paths[0])
    photo = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((400, 300))
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.save(paths[1])
    photo.save(paths[2], exif=exif)
    photo.convert("L").save(paths[3])
    command = [sys.executable, "-I", "-c", WITHOUT, "classify.py", str(file.path), *map(str, paths)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=300)
    assert done.stderr == ""
    for line, expected in zip(done.stdout.splitlines(), model.predict_files(paths), strict=True):
        path, name, probability, agree = line.split(",")
        assert (path, name, int(agree)) == (expected["path"], expected["class"], expected["heads_agree"])
        assert float(probability) == pytest.approx(expected["probability"], abs=1e-5)


def test_an_old_run_without_a_temperature_is_exported_uncalibrated(own: Path, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    shutil.copytree(own, folder)
    result = read_json(folder / "result.json")
    write_json(folder / "result.json", {"test_error": result["test_error"], "method": "mhct"})
    file = cotrain.export(folder, tmp_path / "model.onnx", trust_code=True)
    assert file.metadata["test_interval"] is None
    assert file.metadata["probabilities"].endswith("not calibrated")
