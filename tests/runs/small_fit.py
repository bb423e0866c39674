"""A short training run that the tests interrupt, damage and resume."""

from pathlib import Path

STEPS = 12
ARGUMENTS = (
    f"fit digits --steps {STEPS} --labels 20 --optim.labelled 4 --optim.unlabelled 8 --model.backbone wrn-10-1 "
    "--run.report false "
    "--run.log_every 2 --run.checkpoint_every 3"
).split()


def checkpoint(out: Path, step: int) -> Path:
    return out / "checkpoint" / f"step-{step:08d}.safetensors"
