"""Every setting of a run: frozen, validated, and stored as JSON. The defaults are the paper's for CIFAR-10."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, Self

from pydantic import SerializeAsAny, ValidationError, field_serializer, field_validator

from cotrain.augment import PRESETS, FeaturePolicy, Policy
from cotrain.config.sections import OptimSettings, RobustSettings, RunSettings
from cotrain.data.settings import BankSettings, DataSettings
from cotrain.methods import METHODS, method_class
from cotrain.model.named import names
from cotrain.model.own import OwnNetwork
from cotrain.model.settings import ModelSettings
from cotrain.model.trust import Trust
from cotrain.types import Method, Settings, Unit, UserError

PER_METHOD, BACKBONE = "optim.per_method", "model.backbone"
TABLE_BACKBONE = "features"  # heads on the rows of a table


class Config(Settings):
    """Every setting of a run, in sections. Frozen; unknown keys and invalid values are errors."""

    data: DataSettings = DataSettings()
    augment: Policy = PRESETS["paper"]
    features: FeaturePolicy = FeaturePolicy()
    model: ModelSettings = ModelSettings()
    bank: BankSettings = BankSettings()
    method: SerializeAsAny[Method] = METHODS["mhct"]()
    optim: OptimSettings = OptimSettings()
    robust: RobustSettings = RobustSettings()
    run: RunSettings = RunSettings()

    @property
    def unlabelled(self) -> int:
        """Unlabelled images per step, U."""
        return self.optim.unlabelled or round(self.optim.labelled * self.method.unlabelled_ratio)

    @property
    def baseline_steps(self) -> int:
        """Steps of the labelled-only baseline."""
        return max(1, round(self.run.baseline_factor * self.optim.steps))

    @property
    def unit(self) -> Unit:
        return Unit.ROW if self.model.backbone == TABLE_BACKBONE else Unit.IMAGE

    @property
    def wants_baseline(self) -> bool:
        """False for a method that uses no unlabelled images: it would be compared with itself."""
        return self.run.baseline and self.method.views.any_unlabelled

    def with_network(self, network: OwnNetwork | None, arguments: Mapping[str, Any] | None = None) -> Self:
        """A copy with the user's own network, built with these arguments."""
        config = self if arguments is None else self.changed({"model.arguments": dict(arguments)})
        return config.model_copy(update={"model": config.model.with_own(network)})

    def with_trust(self, trust: Trust) -> Self:
        """A copy whose network comes from there: only the user may name code and downloads."""
        return self.model_copy(update={"model": self.model.with_trust(trust)})

    def with_network_of(self, other: "Config") -> Self:
        """Settings that were read from a file, with the network that the same backbone has in this process."""
        if other.model.backbone != self.model.backbone:
            return self
        return self.model_copy(update={"model": self.model.with_own(other.model.own).with_trust(other.model.trust)})

    @field_validator("method", mode="before")
    @classmethod
    def _method_by_name(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        fields = dict(value)
        return method_class(fields.pop("name", "mhct")).model_validate(fields)

    @field_serializer("method")
    def _method_with_name(self, method: Method) -> dict[str, Any]:
        return {"name": method.name, **method.model_dump()}

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """A copy with these dotted keys changed, e.g. {"optim.lr": 0.1, "augment": "fixmatch", "method": "supervised"}.

        `augment` and `method` replace a whole section: by a preset, or by a method with its defaults. With
        `optim.per_method`, a new method also brings the optimiser settings of its paper, except those in `changes`.
        """
        if PER_METHOD in changes and "method" in changes:
            rest = {key: value for key, value in changes.items() if key != PER_METHOD}
            return self.changed({PER_METHOD: changes[PER_METHOD]}).changed(rest)
        values, replaced = self.model_dump(), dict(self.optim.replaced)
        for key, value in sorted(changes.items(), key=lambda change: "." in change[0]):
            if key == "augment" and isinstance(value, str):
                values["augment"] = _choose("augment", value, PRESETS).model_dump()
            elif key == "method" and isinstance(value, str):
                method = method_class(value)
                if method.name != self.method.name:
                    values["method"] = {"name": method.name, **self._method_settings_for(method)}
                    if self.optim.per_method:
                        recipe = {**values["optim"], **replaced}
                        values["optim"] = {**recipe, **method.paper_optim}
                        replaced = {name: recipe[name] for name in method.paper_optim}
            else:
                section, _, name = key.partition(".")
                if not isinstance(values.get(section), dict) or not name or (section == "method" and name == "name"):
                    raise UserError(_unknown(key, self))
                values[section][name] = value
                if section == "optim":
                    replaced.pop(name, None)  # now set by the user
        trust = Trust.USER if BACKBONE in changes else self.model.trust
        changed, own = type(self).parse(values).with_trust(trust), self.model.own
        changed = changed.model_copy(update={"optim": changed.optim.with_replaced(replaced)})
        return changed.with_network(own) if own and changed.model.backbone == own.recorded else changed

    def _method_settings_for(self, method: type[Method]) -> dict[str, Any]:
        """What this config changes in its method holds for variants of that method too, such as mhct_routed."""
        return self.method.model_dump(exclude_defaults=True) if issubclass(method, type(self.method)) else {}

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Validate plain values. Errors are one readable line."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError(_one_line(error, values)) from error


class Setting(NamedTuple):
    key: str  # dotted
    value: Any
    choices: str
    meaning: str
    advanced: bool  # hardly anybody changes it: `describe` shows it, `--help` does not


def settings_of(config: Config) -> Iterator[Setting]:
    for section in type(config).model_fields:
        part: Settings = getattr(config, section)
        if section == "augment":
            preset = next((name for name, policy in PRESETS.items() if policy == part), "own")
            yield Setting(section, preset, "|".join(PRESETS), "preset that sets all augment settings", False)
        if isinstance(part, Method):
            yield Setting(section, part.name, "|".join(METHODS), "the learning method", False)
        for name, field in type(part).model_fields.items():
            key = f"{section}.{name}"
            choices = names() if key == "model.backbone" else _choices(field.annotation)
            yield Setting(key, getattr(part, name), choices, field.description or "", name in part.advanced)


def data_settings(config: Config | None, changes: Mapping[str, Any]) -> DataSettings:
    """The data settings needed to open the data, before a recipe is chosen for them."""
    of_data = {key: value for key, value in changes.items() if key.startswith("data.")}
    return (config or Config()).changed(of_data).data


def plain(value: Any) -> str:
    """A setting's value as users type it: none, true and false in lower case."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """One phrase per setting that differs between two dumped configs."""
    old, new = (
        {f"{section}.{name}": value for section, part in values.items() for name, value in part.items()}
        for values in (before, after)
    )
    return [
        f"{key} was {old.get(key)!r} and is now {new.get(key)!r}" for key in old | new if old.get(key) != new.get(key)
    ]


def _choices(annotation: Any) -> str:
    if getattr(annotation, "__origin__", None) is Literal:
        return "|".join(map(str, annotation.__args__))
    if dict in [getattr(part, "__origin__", None) for part in getattr(annotation, "__args__", ())]:
        return "json|none"
    return {bool: "true|false", int: "int", float: "float", str: "str"}.get(
        annotation, str(annotation).replace(" ", "").replace("None", "none")
    )


def _choose(what: str, name: str, among: Mapping[str, Any]) -> Any:
    if name not in among:
        raise UserError(f"{what}={name!r} is not one of: {', '.join(among)}")
    return among[name]


def _unknown(key: str, config: Config) -> str:
    keys = [each.key for each in settings_of(config)]
    section = key.partition(".")[0]
    in_section = [known for known in keys if known.startswith(f"{section}.")]
    if not in_section:
        nearest = get_close_matches(key, keys, n=3, cutoff=0.7) + [k for k in keys if k.endswith(f".{key}")]
        hint = f"did you mean {' or '.join(dict.fromkeys(nearest))}? " if nearest else ""
        return f"unknown setting {key}; {hint}the sections are: {', '.join(type(config).model_fields)}"
    names = [known.partition(".")[2] for known in in_section]
    nearest = get_close_matches(key.partition(".")[2], names, n=1, cutoff=0.5)
    hint = f"did you mean {section}.{nearest[0]}? " if nearest else ""
    owner = config.method.name if section == "method" else section
    return f"unknown setting {key}; {hint}{owner} has: {', '.join(names)}"


def _one_line(error: ValidationError, values: Mapping[str, Any]) -> str:
    first = error.errors()[0]
    location = [str(part) for part in first["loc"]]
    if error.title != Config.__name__:  # raised inside the section `method`
        location.insert(0, "method")
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        name = values["method"].get("name", "mhct") if location[0] == "method" else "mhct"
        return _unknown(key, Config(method=method_class(name)()))
    return f"{key}={first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"
