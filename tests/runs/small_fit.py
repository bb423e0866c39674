"""A short training run that the tests interrupt, damage and resume."""

from pathlib import Path

from tests.few_digits import few_digits_file

STEPS = 12
SETTINGS = (
    f"--steps {STEPS} --labels 20 --optim.labelled 4 --optim.unlabelled 8 --model.backbone wrn-10-1 "
    "--run.baseline_factor 1 --run.report false "
    "--run.log_every 2 --run.checkpoint_every 3"
).split()


def arguments() -> list[str]:
    return ["fit", str(few_digits_file()), *SETTINGS]


def checkpoint(out: Path, step: int) -> Path:
    return out / "checkpoint" / f"step-{step:08d}.safetensors"
