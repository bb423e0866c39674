"""The same features by onnxruntime and by torch, for banks and for new images; what is kept and what is made again."""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from cotrain.networks import build_trunk
from cotrain.storage.rows import FILE_DIGEST
from cotrain.trunk import on_demand, runtime
from cotrain.trunk.runtime import compiled
from cotrain.trunk.trunk import FromPixels, Trunk
from tests.trunk.tiny import CONFIG, SIDE, Counting, on_disk, opened, pictures, reference, small_data


@pytest.fixture(scope="module")
def trunk() -> Trunk:
    made = build_trunk(CONFIG, 3, (SIDE, SIDE, 3))
    assert made is not None
    return made


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, trunk: Trunk, quick_exports: None) -> Path:
    """A home with the exported trunk: exporting takes seconds."""
    home = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTRAIN_HOME", str(home))
        compiled(trunk, "onnxruntime")
    return home


@pytest.fixture
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "to_onnx", None)


def test_both_runtimes_compute_what_is_written_out(
    kept: Path, trunk: Trunk, no_export: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTRAIN_HOME", str(kept))
    for count in (1, 2, 8, 11):
        images = pictures(count, seed=count)
        for kind in ("torch", "onnxruntime", "auto"):
            made = compiled(trunk, kind)(images)
            assert made.dtype == np.float32
            np.testing.assert_allclose(made, reference(images), rtol=1e-3, atol=1e-5)


def test_the_bank_of_onnxruntime_is_that_of_torch(
    kept: Path, no_export: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, banks = small_data(), []
    for kind, folder in (("torch", home), ("onnxruntime", kept)):
        monkeypatch.setenv("COTRAIN_HOME", str(folder))
        banks.append(opened(data, CONFIG.changed({"run.runtime": kind})).bank)
    rows = data.train
    for kind, number in (("weak", 1), ("strong", 0), ("strong", 2)):
        ours, theirs = (bank.views(kind, rows, np.full(len(rows), number)).numpy() for bank in banks)
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_an_exported_trunk_that_is_damaged_is_exported_again(
    kept: Path, trunk: Trunk, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = (kept / "trunks").iterdir()
    whole, exported = path.read_bytes(), []
    content = whole[FILE_DIGEST:]
    monkeypatch.setattr(runtime, "to_onnx", lambda *arguments: exported.append(arguments) or content)
    damaged = home / "trunks" / path.name
    damaged.parent.mkdir(parents=True)
    for text in (b"", b"nonsense", whole[:-1], content):
        damaged.write_bytes(text)
        np.testing.assert_allclose(
            compiled(trunk, "onnxruntime")(pictures(3)), reference(pictures(3)), rtol=1e-3, atol=1e-5
        )
        assert damaged.read_bytes() == whole
    assert len(exported) == 4


def test_a_home_that_cannot_be_written_costs_only_time(
    kept: Path, trunk: Trunk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = (kept / "trunks").iterdir()
    monkeypatch.setattr(runtime, "to_onnx", lambda *arguments: path.read_bytes()[FILE_DIGEST:])
    (tmp_path / "file").touch()
    monkeypatch.setenv("COTRAIN_HOME", str(tmp_path / "file"))
    assert compiled(trunk, "onnxruntime")(pictures(2)).shape == (2, 12, 1, 1)


def test_without_onnxruntime_torch_is_used_and_said(
    home: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert not runtime.has_onnxruntime()
    opened(small_data(8, 0, 0), CONFIG.changed({"run.runtime": "auto"}))
    assert counting.since() == 8 * 6


def test_opening_a_finished_bank_exports_nothing_and_starts_no_session(
    kept: Path, no_export: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTRAIN_HOME", str(kept))
    config = CONFIG.changed({"run.runtime": "onnxruntime"})
    opened(small_data(), config)
    monkeypatch.setattr(onnxruntime, "InferenceSession", None)
    seen = []
    monkeypatch.setattr(FromPixels, "__call__", lambda net, images: seen.append(images) or net.forward(images))
    bank = opened(small_data(), config).bank
    assert bank is not None and bank.plain(np.arange(3)).any()
    (zeros,) = seen  # for the shape of its features
    assert zeros.shape == (1, SIDE, SIDE, 3) and not zeros.any()


def test_new_images_are_divided_among_the_cores_and_stay_in_order(
    trunk: Trunk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "cores", lambda: 3)
    sizes = []
    compute = compiled(trunk, "torch")
    divided = on_demand.on_all_cores(lambda images: sizes.append(len(images)) or compute(images))
    data = small_data(30, 0, 0)
    rows, cpu = np.array([3, 1, 29, 4, 3, *range(20)]), torch.device("cpu")
    for images in (data.images, on_disk(data, tmp_path / "images").images):
        features = on_demand.TrunkInputs(images, divided).plain(rows, cpu)
        np.testing.assert_allclose(features, reference(data.images[rows].numpy()), rtol=1e-4, atol=1e-5)
    assert max(sizes) == 8 and sum(sizes) == 2 * len(rows)
