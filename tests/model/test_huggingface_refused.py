"""Folders and names of Hugging Face models that cannot be used: one line each."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cotrain import Backbone, UserError
from cotrain.model import backbone as named
from cotrain.model.trust import Trust


def build(folder: Path, channels: int = 3) -> Backbone:
    return named(f"hf:{folder}", channels=channels, classes=2, side=32)


def damaged(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-50])


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def of_another_kind(folder: Path) -> None:
    shutil.copy(folder.parent / "bert" / "config.json", folder)


def of_an_unknown_kind(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "crystal_ball"}')


def of_another_size(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 6}))


def not_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (damaged, "model.safetensors is damaged .*; download it again"),
        (without_weights, r"has no weights \(\*.safetensors\); it holds config.json, preprocessor_config.json"),
        (without_config, "cannot be loaded from .* as an image model"),
        (of_another_kind, "is a bert model, which takes input_ids and not images"),
        (of_an_unknown_kind, "cannot be loaded from .* as an image model .*crystal_ball"),
        (of_another_size, r"weights in .* are not those of its config.json: .*layer\.4.* is missing"),
        (not_json, "cannot be loaded from .* as an image model"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_line(
    folders: dict[str, Path], tmp_path: Path, change, expected: str
) -> None:
    shutil.copytree(folders["bert"], tmp_path / "bert")
    folder = shutil.copytree(folders["dinov2"], tmp_path / "model")
    change(folder)
    with pytest.raises(UserError, match=expected) as caught:
        build(folder)
    assert "\n" not in str(caught.value)


def with_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "somebody/model"}')


def with_kernels(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attn_implementation": "somebody/kernels"}))


@pytest.mark.parametrize("change", [with_adapter, with_kernels])
def test_files_that_ask_for_more_code_or_models_are_refused(
    folders: dict[str, Path], tmp_path: Path, change: Callable[[Path], None]
) -> None:
    folder = shutil.copytree(folders["dinov2"], tmp_path / "model")
    change(folder)
    with pytest.raises(UserError, match=re.escape(str(folder))):
        build(folder)


@pytest.mark.parametrize("kind", ["evil", "dinov2"])
def test_code_that_comes_with_a_model_is_not_run_and_nobody_is_asked(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder, canary = shutil.copytree(folders["dinov2"], tmp_path / "model"), tmp_path / "canary"
    code = f"open({str(canary)!r}, 'w').close()\nfrom transformers import Dinov2Config as A, Dinov2Model as B\n"
    (folder / "modeling_evil.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    mapped = {"AutoConfig": "modeling_evil.A", "AutoModel": "modeling_evil.B"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": kind, "auto_map": mapped}))
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda *prompt: asked.append(str(prompt)) or "y")
    if kind == "evil":
        with pytest.raises(UserError, match=re.escape(str(folder))):
            build(folder)
    else:  # transformers knows this kind, and its own code is used
        assert [stage.name for stage in build(folder).stages] == [
            stage.name for stage in build(folders["dinov2"]).stages
        ]
    assert not asked and not canary.exists()


def test_a_name_that_cannot_be_downloaded_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    asked = []

    def offline(name: str, *, local_files_only: bool, **rest: object) -> str:
        asked.append(local_files_only)
        raise OSError("no network\nat all")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        UserError, match=r"\(OSError: no network\).*: hf download some/model --local-dir FOLDER;"
    ) as caught:
        named("hf:some/model", channels=3, classes=2, trust=Trust.USER)
    assert asked == [True, False] and "\n" not in str(caught.value)
    with pytest.raises(UserError, match="hf download some/model"):
        named("hf:some/model", channels=3, classes=2, trust=Trust.ALLOWED)
    assert asked == [True, False, True]  # a run that names a model downloads nothing
    with pytest.raises(UserError, match="there is no folder nowhere/at/all"):
        named("hf:nowhere/at/all", channels=3, classes=2)


def test_a_name_in_the_cache_needs_no_network(monkeypatch: pytest.MonkeyPatch, folders: dict[str, Path]) -> None:
    import huggingface_hub

    def cached(name: str, *, local_files_only: bool, **rest: object) -> str:
        assert (name, local_files_only) == ("some/model", True)
        return str(folders["dinov2"])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert named("hf:some/model", channels=3, classes=2).pretrained == build(folders["dinov2"]).pretrained


def test_without_transformers_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, folders) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"hf:.* needs transformers: pip install 'cotrain\[hf\]'"):
        build(folders["dinov2"])


def test_channels_other_than_grey_and_colour_are_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="takes 1 or 3 channels; these have 4"):
        build(folders["dinov2"], channels=4)
