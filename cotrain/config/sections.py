"""The sections of settings that belong to no other room: the optimiser, the run, and folders as they are."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, PrivateAttr

from cotrain.device import Precision
from cotrain.types import IntOrNone, Settings

NAMES = {"sgd": "SGD", "adam": "Adam"}


class OptimSettings(Settings):
    advanced = frozenset({"ema_warmup", "momentum", "per_method"})

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
        False,
        description="choosing another method also changes the optimiser settings to those of its paper",
    )
    ema: float = Field(0.999, ge=0, lt=1, description="EMA decay of the weights; 0: no average (ablation 5)")
    ema_warmup: bool = Field(False, description="for short runs: decay min(ema, (1 + k) / (10 + k)) at step k")

    _replaced: Mapping[str, float | str] = PrivateAttr({})

    @property
    def replaced(self) -> Mapping[str, float | str]:
        """The recipe's values of the settings that per_method changed, to restore them for another method."""
        return self._replaced

    def with_replaced(self, values: Mapping[str, float | str]) -> Self:
        changed = self.model_copy()
        changed._replaced = values
        return changed

    @property
    def summary(self) -> str:
        """For example "SGD 0.03"."""
        return f"{NAMES[self.kind]} {self.lr:g}"


class RunSettings(Settings):
    advanced = frozenset(
        {
            "baseline_factor",
            "batchnorm",
            "checkpoint_every",
            "evaluate_every",
            "log_every",
            "test_evaluations",
            "warm_start",
        }
    )

    seed: int = Field(0, ge=0, lt=2**63, description="seed of the split, the initial weights, batches and views")
    ensemble: Literal["probabilities", "logits"] = Field(
        "probabilities", description="mean of the heads' probabilities, or sum of their logits (released code)"
    )
    baseline: bool = Field(
        True, description="also train what a user would do without unlabelled images, for comparison"
    )
    baseline_factor: float = Field(
        1.0,
        gt=0,
        le=100,
        description="length of the labelled-only baseline, as a multiple of the method's steps",
    )
    warm_start: bool = Field(
        False,
        description="start from the weights of the labelled-only baseline, if one is trained",
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
    compile: bool = Field(False, description="use torch.compile: takes a minute at the start, then steps are faster")
    batchnorm: Literal["auto", "local", "synchronised"] = Field(
        "auto",
        description="batch statistics per process or across all; auto: synchronised on GPUs",
    )
    runtime: Literal["auto", "onnxruntime", "torch"] = Field(
        "auto", description="what computes the features of a frozen trunk; auto: onnxruntime if it is installed"
    )
    track: Literal["none", "tensorboard"] = Field(
        "none", description="also send the log and figures to a tracker; tensorboard: in a subfolder of the run"
    )
    log_every: int = Field(50, ge=1, description="steps between lines in log.jsonl")
    evaluate_every: int = Field(
        1000,
        ge=1,
        description="steps between evaluations on validation images and a sample of unlabelled ones",
    )
    test_evaluations: int = Field(
        0,
        ge=0,
        description="test evaluations during the last tenth of the steps, to report their median error",
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
