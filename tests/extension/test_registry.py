"""What other packages may add, and what is said when they do it wrongly. Nothing here is installed for real."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cotrain import BackboneFamily, DataFormat, Method, UserError
from cotrain.comparison.compare import contenders
from cotrain.config import Config
from cotrain.data import loading
from cotrain.methods import METHODS, mean_teacher
from cotrain.model import named
from cotrain.registry import Provider, Registry, Unknown
from cotrain.types import Settings

from .distribution import install

METHOD = """
import sys
from cotrain.methods.fixmatch import FixMatch

class Theirs(FixMatch):
    pass

number, not_a_method = 1, dict
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def methods(site: Path) -> Callable[..., Registry[Method]]:
    """A registry that finds what was installed by then."""

    def make(*packages: str, **entries: str) -> Registry[Method]:
        for package in packages or ("their-package",):
            module = package.replace("-", "_")
            values = {name: value.replace("MODULE", module) for name, value in entries.items()}
            install(site, package, {f"{module}.py": METHOD}, {"cotrain.methods": values})
        importlib.invalidate_caches()
        return Registry("method", Method, "cotrain.methods", group="cotrain.methods")

    return make


def test_an_entry_point_adds_a_name_and_is_imported_only_when_it_is_used(methods) -> None:
    registry = methods(theirs="MODULE:Theirs", broken="nowhere_at_all:Theirs")
    assert "theirs" in registry and [*registry][-2:] == ["broken", "theirs"]
    assert registry["mhct"] is METHODS["mhct"] and registry.named("mhct").name == "mhct"
    assert "their_package" not in sys.modules
    found = registry.named("theirs")
    assert found.name == "theirs" and found is sys.modules["their_package"].Theirs
    assert METHODS["fixmatch"].name == "fixmatch"
    assert registry.provider("theirs") == Provider("their-package", "1.0") and registry.provider("mhct") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("nowhere_at_all:Theirs", r"of their-package 1.0 cannot be loaded \(ModuleNotFoundError: No module named"),
        ("MODULE:Absent", r"= their_package:Absent \(cotrain.methods\) of their-package 1.0 cannot be loaded \(Attr"),
        ("MODULE:number", r"their-package 1.0 is of type int; it must be a subclass of cotrain.Method"),
        ("MODULE:not_a_method", r"is the class dict; it must be a subclass of cotrain.Method"),
        ("cotrain.types:SingleModel", r"is abstract; it must define loss, views"),
        ("cotrain.methods.fixmatch:FixMatch", r"already has the name 'fixmatch'; a class has one name"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_one_line_when_it_is_used(methods, value: str, expected: str) -> None:
    registry = methods(theirs=value)
    assert registry.named("mhct") and "theirs" in registry
    with pytest.raises(UserError, match=expected) as caught:
        registry.named("theirs")
    assert "\n" not in str(caught.value)
    assert [*registry.from_others()] == [] and [*registry.broken] == ["theirs"]


def test_a_package_that_fails_in_its_own_way_is_one_line_too(site: Path, methods) -> None:
    registry = methods(theirs="MODULE:Theirs")
    (site / "their_package.py").write_text("raise SystemExit('two\\nlines')")
    with pytest.raises(UserError, match=r"cannot be loaded \(SystemExit: two lines\); repair or uninstall their-pack"):
        registry.named("theirs")


def test_a_name_that_is_taken_is_refused_and_other_names_are_not(methods) -> None:
    registry = methods(mhct="MODULE:Theirs", theirs="MODULE:Theirs")
    expected = (
        "'mhct' is taken twice, by cotrain and by their-package 1.0; uninstall their-package, or rename its entry"
    )
    with pytest.raises(UserError, match=expected):
        registry.named("mhct")
    assert registry["mhct"] is METHODS["mhct"]
    assert registry.named("fixmatch") and registry.named("theirs")


def test_two_packages_cannot_have_the_same_name(methods) -> None:
    registry = methods("first-package", "second-package", theirs="MODULE:Theirs")
    with pytest.raises(UserError, match=r"taken twice, by first-package 1.0 and by second-package 1.0; uninstall"):
        registry.named("theirs")


def test_an_unknown_name_lists_what_there_is_nearest_first(methods) -> None:
    with pytest.raises(Unknown, match="there is no method 'their'; there are: theirs, comatch, deep_cotraining, "):
        methods(theirs="MODULE:Theirs").named("their")


def test_a_file_with_two_of_a_kind_is_a_mistake_of_ours(site: Path) -> None:
    install(site, "room", {"room/__init__.py": "", "room/both.py": METHOD + "\nclass Other(Theirs): pass\n"}, {})
    with pytest.raises(TypeError, match=r"room.both must define one Method, it defines 2"):
        _ = Registry("method", Method, "room").built_in


class Mine(mean_teacher.MeanTeacher):
    pass


def test_a_method_can_be_added_in_this_process() -> None:
    with METHODS.with_added("mine", Mine):
        config = Config().changed({"method": "mine", "method.unsupervised_weight": 3})
        assert (config.method.name, type(config.method), config.method.unsupervised_weight) == ("mine", Mine, 3)
        assert Config.parse(config.model_dump()) == config
        with pytest.raises(UserError, match=r"unknown setting method.unsupervised_weigt; did you mean method.unsup"):
            config.changed({"method.unsupervised_weigt": 3})
        with pytest.raises(UserError, match=r"method.unsupervised_weight='much': input should be a valid number"):
            config.changed({"method.unsupervised_weight": "much"})
        assert contenders("mine:unsupervised_weight=2")[0].config(Config()).method.name == "mine"
        assert "mine" in [contender.name for contender in contenders("all")]
        with pytest.raises(UserError, match="the method name 'mhct' is already taken; choose another one"):
            METHODS.add("mhct", Mine)
    with pytest.raises(UserError, match="there is no method 'mine'"):
        METHODS.named("mine")


class Old(BackboneFamily):
    def recognises(self, name: str) -> bool:
        return name.startswith("old-")

    def build(self, name, wanted):
        return named.backbone("wrn-10-1", channels=wanted.channels, classes=wanted.classes)


def test_a_family_of_backbones_is_asked_for_names_that_no_built_in_one_knows() -> None:
    with named.BACKBONES.with_added("old", Old):
        assert named.backbone("old-3", channels=1, classes=2).name == "wrn-10-1"
        with pytest.raises(UserError, match="narrows the last group of a wrn; old-3 has none"):
            named.backbone("old-3", channels=1, classes=2, last_width=8)
        with pytest.raises(UserError, match=r"there is no backbone 'new-3'; there are: .*resnet18.*, old, PACKAGE"):
            named.backbone("new-3", channels=1, classes=2)
    with pytest.raises(Unknown):
        named.backbone("old-3", channels=1, classes=2)


def test_a_broken_family_of_backbones_is_named_where_it_might_be_the_one(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "their-package", {}, {"cotrain.backbones": {"old": "nowhere_at_all:Old"}})
    broken = Registry("backbone", BackboneFamily, "cotrain.model.families", "cotrain.backbones")
    monkeypatch.setattr(named, "BACKBONES", broken)
    assert named.backbone("wrn-10-1", channels=1, classes=2).name == "wrn-10-1" and not broken.broken
    with pytest.raises(UserError, match=r"there is no backbone 'old-3'; .*; the entry point old = .* cannot be loaded"):
        named.backbone("old-3", channels=1, classes=2)


def test_a_broken_data_format_does_not_stand_in_the_way_of_others(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "their-package", {}, {"cotrain.datasets": {"theirs": "nowhere_at_all:Format"}})
    monkeypatch.setattr(
        loading, "FORMATS", Registry("data set", DataFormat, "cotrain.data.formats", "cotrain.datasets")
    )
    assert loading.open_data("digits").name == "digits" and not loading.FORMATS.broken
    with pytest.raises(UserError, match="there is no image file in"):
        loading.open_data(tmp_path / "site" / "..")
    with pytest.raises(UserError, match=r"data are a folder of images, .* theirs; the entry point theirs = nowhere_at"):
        loading.open_data("elsewhere")
    with pytest.raises(UserError, match=r"^the entry point theirs = nowhere_at_all:Format .* cannot be loaded"):
        loading.open_data("theirs")


def test_every_built_in_format_has_a_place_of_its_own() -> None:
    orders = [format.order for format in loading.FORMATS.built_in.values()]
    assert len(set(orders)) == len(orders)
    tables = "a table (.csv, .parquet or .npz with X and y)"
    assert (
        loading.kinds() == f"a folder of images, a .npz file, {tables}, digits, cifar10, cifar100, svhn, miniimagenet"
    )


def test_a_settings_class_is_no_method() -> None:
    with pytest.raises(
        UserError, match=r"the method 'mine' is the class Settings; it must be a subclass of cotrain.Method"
    ):
        METHODS.add("mine", Settings)
