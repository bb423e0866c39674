"""Methods that renew their memory once a pass or a round: a resumed run renews it as the uninterrupted one did."""

from pathlib import Path

import pytest
import torch
from rich.console import Console

from cotrain import Config, Dataset
from cotrain.data import draw_split
from cotrain.methods import METHODS
from cotrain.run import Run
from cotrain.train import State, begin, pool_of, train
from cotrain.types import Method

ROUNDS = [name for name, kind in METHODS.items() if kind.refresh is not Method.refresh]


@pytest.mark.parametrize("name", ROUNDS)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(
    name: str, toy: Dataset, tiny: Config, tmp_path: Path
) -> None:
    config = tiny.changed({"method": name, "run.checkpoint_every": 8})
    run = Run.create(tmp_path / "run", config, draw_split(toy, config.data, config.run.seed))

    def trained() -> State:
        return train(run, toy, torch.device("cpu"), Console(quiet=True), "")

    whole = trained()
    kept = sorted((run.folder / "checkpoint").glob("step-*.safetensors"))
    assert [path.stem for path in kept] == ["step-00000024", "step-00000030"]
    kept[-1].unlink()
    pool = pool_of(toy, run.split)
    assert any(config.method.refreshes(pool, step, 30, config.unlabelled) for step in range(25, 30))
    resumed = trained()
    assert whole.memory.keys() == resumed.memory.keys()
    assert all(torch.equal(whole.memory[key], resumed.memory[key]) for key in whole.memory)
    for ours, theirs in ((whole.net, resumed.net), (whole.average.net, resumed.average.net)):
        assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))
    at_first = begin(config, toy, run.split, torch.device("cpu")).memory
    assert any(not torch.equal(whole.memory[key], at_first[key]) for key in at_first)
