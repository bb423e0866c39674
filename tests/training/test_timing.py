"""How long training will take."""

import pytest
import torch

import cotrain.training.timing
from cotrain import Config, Dataset
from cotrain.data import Source, draw_split
from cotrain.training.experiment import Experiment
from cotrain.training.timing import pace


def test_the_first_views_ever_made_do_not_count(toy: Dataset, tiny: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their kernel is compiled then, which takes longer than many steps."""
    clock, made, batch = [0.0], [], Source.batch

    def passed() -> float:
        clock[0] += 0.01
        return clock[0]

    def slow_at_first(self: Source, *arguments):
        clock[0] += 0 if made else 30
        made.append(arguments)
        return batch(self, *arguments)

    monkeypatch.setattr(Source, "batch", slow_at_first)
    monkeypatch.setattr(cotrain.training.timing.time, "monotonic", passed)
    found = pace(Experiment(tiny, toy, draw_split(toy, tiny.data, seed=0), torch.device("cpu")))
    assert len(made) > 1 and 0 < found.step < 1
