"""Recipes: functions that return a config. Some are sized for a laptop; the others reproduce the paper's experiments.

A recipe's docstring gives the command, its cost, and the result to expect.
"""

from collections.abc import Callable
from dataclasses import dataclass

from cotrain.augment import PRESETS
from cotrain.config import Config, DataSettings, ModelSettings, OptimSettings, RobustSettings, RunSettings
from cotrain.methods import METHODS
from cotrain.types import UserError

NO_FLIP = PRESETS["paper"].model_copy(update={"flip": False})


@dataclass(frozen=True)
class Recipe:
    """A config, and the number of classes and channels that it is meant for."""

    build: Callable[[], Config]
    classes: int
    channels: int

    @property
    def summary(self) -> str:
        return " ".join((self.build.__doc__ or "").split())


RECIPES: dict[str, Recipe] = {}


def recipe(classes: int, channels: int = 3) -> Callable[[Callable[[], Config]], Callable[[], Config]]:
    def register(build: Callable[[], Config]) -> Callable[[], Config]:
        RECIPES[build.__name__] = Recipe(build, classes, channels)
        return build

    return register


@recipe(classes=10, channels=1)
def digits() -> Config:
    """cotrain fit digits

    About 2 minutes on 2 CPU cores, including the labelled-only baseline. Test error with 40 labels: 1.36 +- 0.61 %;
    baseline: 11.20 +- 2.10 % (5 seeds, 500 test images; docs/results/digits.md).
    """
    return Config(
        data=DataSettings(labels=40),
        augment=NO_FLIP,
        model=ModelSettings(backbone="wrn-10-1", bn_momentum=0.01),
        optim=OptimSettings(steps=900, labelled=32, unlabelled=96, lr=0.1, ema=0.99, ema_warmup=True),
        run=RunSettings(checkpoint_every=300, evaluate_every=100),
    )


@recipe(classes=10)
def small32() -> Config:
    """cotrain fit photos/ --recipe small32

    For 32x32 colour images. About 6 minutes on 2 CPU cores, including the labelled-only baseline. Test error with 1,000
    labels of 10,000 CIFAR-10 images: 46.9 +- 0.9 %; baseline: 46.8 +- 1.5 % (3 seeds, 2,000 test images;
    docs/results/data.md). Too short for photographs to gain from unlabelled images; simple images gain quickly.
    """
    return Config(
        data=DataSettings(largest=64),
        model=ModelSettings(backbone="wrn-10-1", bn_momentum=0.01),
        method=METHODS["mhct"](unsupervised_ramp=0.8),
        optim=OptimSettings(steps=1000, labelled=32, unlabelled=64, lr=0.1, ema=0.99, ema_warmup=True),
        run=RunSettings(checkpoint_every=200, evaluate_every=100),
    )


@recipe(classes=10)
def routed32() -> Config:
    """cotrain fit photos/ --model.backbone wrn-10-1

    As small32, with routed views and more steps, from the weights of a labelled-only baseline with four times as many.
    About 8 minutes of one CPU core. Test error with 1,000 labels of 10,000 images: 34.3 +- 1.4 % on CIFAR-10 (baseline:
    36.4 +- 1.3 %), 13.5 +- 1.8 % on SVHN, not mirrored (15.2 +- 1.4 %; 3 seeds, 2,000 test images;
    docs/results/data.md). With 4,000 labels a labelled-only network that trains for as long is as good.
    """
    changes = {"method": "mhct_routed", "optim.steps": 2200, "run.warm_start": True, "run.baseline_factor": 4}
    return small32().changed(changes)


@recipe(classes=10)
def photos() -> Config:
    """cotrain fit photos/

    For photographs, on the features of EfficientNet-Lite0. Minutes on 2 CPU cores, most of them for the features, which
    are computed once. Test error with 4 labels per class: 26.3 +- 1.9 % on 10,000 CIFAR-10 images (logistic regression
    on the same features: 39.6 +- 3.0 %), 28.4 +- 3.0 % on 15 kinds of leaf photographs (40.8 +- 3.9 %; 10 seeds,
    docs/results/photographs.md).
    """
    return Config(
        data=DataSettings(test_share=0.0),
        model=ModelSettings(backbone="lite0", dropout=0.5),
        method=METHODS["mhct_graph"](unsupervised_ramp=0.3),
        optim=OptimSettings(
            steps=300, labelled=64, unlabelled=192, kind="adam", lr=2e-3, weight_decay=0.01, ema=0.99, ema_warmup=True
        ),
        robust=RobustSettings(false_alarms=0.1),
        run=RunSettings(checkpoint_every=100, evaluate_every=50, log_every=25),
    )


@recipe(classes=10, channels=64)
def features() -> Config:
    """cotrain fit table.csv --target COLUMN

    For tables, embeddings and other features. Seconds on 2 CPU cores. Test error with 5 labels per class: 9.2 +- 2.8 %
    on the digits as vectors (logistic regression: 15.8 +- 3.2 %; 10 seeds, docs/results/features.md).
    """
    return Config(
        data=DataSettings(test_share=0.0),
        model=ModelSettings(backbone="features", dropout=0.0),
        method=METHODS["mhct_graph"](unsupervised_ramp=0.3),
        optim=OptimSettings(
            steps=150, labelled=64, unlabelled=192, kind="adam", lr=2e-3, weight_decay=0.01, ema=0.99, ema_warmup=True
        ),
        run=RunSettings(checkpoint_every=50, evaluate_every=25, log_every=25),
    )


@recipe(classes=10)
def cifar10() -> Config:
    """cotrain fit cifar10 --recipe cifar10 --labels 4000

    The paper reports about 90 hours of training on one V100.
    Published error: 3.84 +- 0.09 % with 4,000 labels, 4.74 +- 0.16 with 1,000,
    4.98 +- 0.30 with 250 (5 seeds, full CIFAR-10).
    """
    return Config(data=DataSettings(labels=4000), optim=OptimSettings(per_method=True))


@recipe(classes=10)
def svhn() -> Config:
    """cotrain fit svhn --recipe svhn --labels 1000

    The paper reports about 90 hours of training on one V100.
    Published error: 2.16 +- 0.05 % with 1,000 labels, 2.18 +- 0.08 with 500,
    2.21 +- 0.18 with 250 (5 seeds, full SVHN without the "extra" set).
    """
    return Config(data=DataSettings(labels=1000), augment=NO_FLIP, optim=OptimSettings(per_method=True))


@recipe(classes=100)
def cifar100() -> Config:
    """cotrain fit cifar100 --recipe cifar100 --labels 10000

    The paper reports about 200 hours of training on one V100.
    Published error: 21.68 +- 0.16 % (5 seeds, full CIFAR-100).
    """
    return Config(
        data=DataSettings(labels=10000),
        model=ModelSettings(backbone="wrn-28-8", last_width=256),
        optim=OptimSettings(steps=2**19, weight_decay=1e-3, per_method=True),
    )


@recipe(classes=100)
def miniimagenet() -> Config:
    """cotrain fit miniimagenet --recipe miniimagenet --labels 4000

    The paper reports about 30 hours of training on one V100.
    Published error: 46.53 +- 0.15 % with 4,000 labels, 39.74 +- 0.12 with 10,000
    (5 seeds, all 100 classes, 84x84 images).
    """
    return Config(
        data=DataSettings(labels=4000),
        model=ModelSettings(backbone="resnet18"),
        optim=OptimSettings(
            steps=300_000, labelled=64, unlabelled=192, lr=0.4, momentum=0.95, weight_decay=2e-4, per_method=True
        ),
    )


def recipe_named(name: str) -> Config:
    """The config of a recipe such as "digits". `cotrain describe` lists all recipes."""
    if name not in RECIPES:
        raise UserError(f"there is no recipe {name!r}; the recipes are: {', '.join(RECIPES)}")
    return RECIPES[name].build()


def as_released(config: Config) -> Config:
    """The config with the released code's choices where they differ from the paper's (see docs/methods/mhct.md)."""
    return config.changed(
        {
            "augment": "code",
            "augment.flip": config.augment.flip,
            "method.normaliser": "batch",
            "method.reduction": "sum",
            "method.weak_pass": "joint",
            "optim.lr": 0.03,
            "run.ensemble": "logits",
        }
    )


READINGS: dict[str, Callable[[Config], Config]] = {"paper": lambda config: config, "code": as_released}


def with_preset(config: Config, preset: str) -> Config:
    """`paper`: the config as it is; `code`: with the released code's readings."""
    if preset not in READINGS:
        raise UserError(f"there is no preset {preset!r}; choose one of: {', '.join(READINGS)}")
    return READINGS[preset](config)
