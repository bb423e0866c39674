"""Every setting of a run: frozen, validated, and stored as JSON. The defaults are the paper's for CIFAR-10."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal, Self

from pydantic import Field, SerializeAsAny, ValidationError, field_serializer, field_validator

from cotrain.augment import PRESETS, FeaturePolicy, Policy
from cotrain.data.settings import BankSettings, DataSettings
from cotrain.device import Precision
from cotrain.methods import METHODS, method_class
from cotrain.model.named import names
from cotrain.model.own import OwnNetwork
from cotrain.model.settings import ModelSettings
from cotrain.model.trust import Trust
from cotrain.types import IntOrNone, Method, Settings, UserError

NAMES = {"sgd": "SGD", "adam": "Adam"}
PER_METHOD, BACKBONE = "optim.per_method", "model.backbone"
TABLE_BACKBONE = "features"  # heads on the rows of a table


class OptimSettings(Settings):
    steps: int = Field(2**20, ge=1, description="number of training steps, K")
    labelled: int = Field(64, ge=1, description="labelled images per step, B")
    unlabelled: IntOrNone = Field(
        None, ge=1, description="unlabelled images per step, U; none: 7 B, or the method's usual ratio"
    )
    lr: float = Field(0.3, gt=0, description="initial learning rate; step k uses lr cos(7 pi k / 16 K)")
    trunk_lr: float = Field(
        0.1, gt=0, le=1, description="learning rate of a pretrained trunk that learns, as a fraction of optim.lr"
    )
    kind: Literal["sgd", "adam"] = Field(
        "sgd", description="SGD, or Adam with a constant learning rate and decoupled decay, as in MixMatch"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum; for Adam, beta 1")
    weight_decay: float = Field(5e-4, ge=0, description="for all weights except batch-norm; for Adam, kernels only")
    per_method: bool = Field(
        False, description="choosing another method also changes the optimiser settings to those of its paper"
    )
    replaced: Mapping[str, float | str] = Field(
        {}, description="the recipe's values of the settings that per_method changed, kept to restore them"
    )
    ema: float = Field(0.999, ge=0, lt=1, description="EMA decay of the weights; 0: no average (ablation 5)")
    ema_warmup: bool = Field(False, description="for short runs: decay min(ema, (1 + k) / (10 + k)) at step k")

    @property
    def summary(self) -> str:
        """For example "SGD 0.03"."""
        return f"{NAMES[self.kind]} {self.lr:g}"


class RunSettings(Settings):
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the split, the initial weights, batches and views")
    ensemble: Literal["probabilities", "logits"] = Field(
        "probabilities", description="mean of the heads' probabilities, or sum of their logits (released code)"
    )
    baseline: bool = Field(
        True, description="also train what a user would do without unlabelled images, for comparison"
    )
    baseline_factor: float = Field(
        1.0, gt=0, le=100, description="length of the labelled-only baseline, as a multiple of the method's steps"
    )
    warm_start: bool = Field(
        False, description="start from the weights of the labelled-only baseline, if one is trained"
    )
    folds: int = Field(
        4, ge=2, description="folds of the cross-validation over the labelled images, for a frozen trunk"
    )
    repeats: int = Field(2, ge=0, description="how often the labelled images are divided into folds; 0: never")
    report: bool = Field(True, description="write report.html and README.md, a model card, at the end")
    device: str = Field("auto", description="cpu, cuda, ...; auto: a GPU if available")
    precision: Precision = Field(
        "auto", description="number type of convolutions; auto: bfloat16 on GPUs that support it, else float32"
    )
    channels_last: bool = Field(True, description="use the channels-last memory layout: faster convolutions")
    compile: bool = Field(False, description="use torch.compile: takes a minute at the start, then steps are faster")
    batchnorm: Literal["auto", "local", "synchronised"] = Field(
        "auto", description="batch statistics per process or across all; auto: synchronised on GPUs"
    )
    runtime: Literal["auto", "onnxruntime", "torch"] = Field(
        "auto", description="what computes the features of a frozen trunk; auto: onnxruntime if it is installed"
    )
    track: Literal["none", "tensorboard"] = Field(
        "none", description="also send the log and figures to a tracker; tensorboard: in a subfolder of the run"
    )
    log_every: int = Field(50, ge=1, description="steps between lines in log.jsonl")
    evaluate_every: int = Field(
        1000, ge=1, description="steps between evaluations on validation images and a sample of unlabelled ones"
    )
    test_evaluations: int = Field(
        0, ge=0, description="test evaluations during the last tenth of the steps, to report their median error"
    )
    checkpoint_every: int = Field(500, ge=1, description="steps between checkpoints")


class RobustSettings(Settings):
    """Folders as they are: images of no class, rare classes, wrong labels."""

    false_alarms: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="if there seem to be images of no class, leave them out at this rate of false alarms; 0: never",
    )
    class_shares: str = Field(
        "unknown",
        description="share of each class among the unlabelled images: unknown, equal, estimate, or a table of class "
        "and share",
    )
    trust_labels: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the labels that are expected to be right; below 1, disputed labels count less",
    )

    @property
    def balances(self) -> bool:
        """Whether labelled images of all classes are drawn equally often, however many there are of each."""
        return self.class_shares != "unknown"


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
    def unit(self) -> str:
        """What one example is called: an image, or a row of a table."""
        return "row" if self.model.backbone == TABLE_BACKBONE else "image"

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
        values = self.model_dump()
        for key, value in sorted(changes.items(), key=lambda change: "." in change[0]):
            if key == "augment" and isinstance(value, str):
                values["augment"] = _choose("augment", value, PRESETS).model_dump()
            elif key == "method" and isinstance(value, str):
                method = method_class(value)
                if method.name != self.method.name:
                    values["method"] = {"name": method.name, **self._method_settings_for(method)}
                    values["optim"] |= self._optimiser_of(method)
            else:
                section, _, name = key.partition(".")
                if not isinstance(values.get(section), dict) or not name or (section == "method" and name == "name"):
                    raise UserError(_unknown(key, self))
                values[section][name] = value
                if section == "optim" and isinstance(replaced := values["optim"]["replaced"], dict):
                    replaced.pop(name, None)  # now set by the user
        trust = Trust.USER if BACKBONE in changes else self.model.trust
        changed, own = type(self).parse(values).with_trust(trust), self.model.own
        return changed.with_network(own) if own and changed.model.backbone == own.recorded else changed

    def _method_settings_for(self, method: type[Method]) -> dict[str, Any]:
        """What this config changes in its method holds for variants of that method too, such as mhct_routed."""
        return self.method.model_dump(exclude_defaults=True) if issubclass(method, type(self.method)) else {}

    def _optimiser_of(self, method: type[Method]) -> dict[str, Any]:
        """The optimiser settings of the method's paper. Those of the previous method go back to the recipe's."""
        if not self.optim.per_method:
            return {}
        recipe = {**self.optim.model_dump(), **self.optim.replaced}
        kept = {name: recipe[name] for name in method.paper_optim}
        return {**self.optim.replaced, **method.paper_optim, "replaced": kept}

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Validate plain values. Errors are one readable line."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError(_one_line(error, values)) from error


def settings_of(config: Config) -> Iterator[tuple[str, Any, str, str]]:
    """Dotted key, value, choices and meaning of every setting."""
    for section in type(config).model_fields:
        part: Settings = getattr(config, section)
        if section == "augment":
            preset = next((name for name, policy in PRESETS.items() if policy == part), "own")
            yield section, preset, "|".join(PRESETS), "preset that sets all augment settings below"
        if isinstance(part, Method):
            yield section, part.name, "|".join(METHODS), "the learning method"
        for name, field in type(part).model_fields.items():
            key = f"{section}.{name}"
            choices = names() if key == "model.backbone" else _choices(field.annotation)
            yield key, getattr(part, name), choices, field.description or ""


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
    keys = [known for known, _, _, _ in settings_of(config)]
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
