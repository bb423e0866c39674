"""Training on a bank: every method, interrupted runs, several processes, and the trained model on pixels."""

from pathlib import Path
from signal import SIGKILL

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import cotrain
from cotrain import Config, Dataset, UserError
from cotrain.data import draw_split
from cotrain.methods import METHODS
from cotrain.model.pretrained import Standardise
from cotrain.networks import build_network
from cotrain.runs.log import read_log
from cotrain.training.checks import check_trainable
from cotrain.training.experiment import Experiment, Prepared
from tests.processes import Running, torchrun
from tests.trunk.fitting import DOUBTED, DROPOUT, fit_killed, fit_one_rank
from tests.trunk.fixtures import counting, home, shared_home, tiny_is_known  # noqa: F401
from tests.trunk.tiny import CONFIG, Counting, index, only_bank, opened, pictures, pretrained_convolution, small_data

CPU = torch.device("cpu")
ON_PIXELS = [name for name, method in METHODS.items() if method().views.ctaugment != "none"]


pytestmark = pytest.mark.usefixtures("shared_home")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return small_data()


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ON_PIXELS])
def test_every_method_learns_from_a_bank(name: str, data: Dataset) -> None:
    """Finite losses, and every weight of the heads gets a gradient from some step."""
    config = CONFIG.changed({"method": name, "optim.steps": 4, "optim.unlabelled": 8})
    check_trainable(Prepared(config, data))
    banked, split = opened(data, config), draw_split(data, config.data, 0)
    training = Experiment(config, banked, split, CPU).start()
    state = training.state
    before = {key: weight.detach().clone() for key, weight in state.net.named_parameters()}
    for batch in training.batches():
        _, losses = training.step(batch)
        assert torch.isfinite(losses.total)
    unchanged = {key for key, weight in state.net.named_parameters() if torch.equal(weight, before[key])}
    assert not {key for key in unchanged if "extra" not in key}


@pytest.mark.parametrize("name", ON_PIXELS)
def test_methods_that_learn_to_augment_pixels_are_refused(name: str, data: Dataset, tmp_path: Path) -> None:
    config = CONFIG.changed({"method": name})
    with pytest.raises(UserError, match=f"^{name} learns how strongly to augment pixels while it trains, but a frozen"):
        cotrain.fit(data, out=tmp_path / "run", config=config)
    assert not (tmp_path / "run").exists()
    check_trainable(Prepared(config.changed({"model.trunk": "learned"}), data))


def test_features_are_standardised_by_the_unlabelled_images(data: Dataset) -> None:
    banked, split = opened(data), draw_split(data, CONFIG.data, 0)
    assert banked.bank is not None
    net = Experiment(CONFIG, banked, split, CPU).start().state.net
    features = banked.bank.plain(np.asarray(split.unlabelled)).flatten(1)
    layers = [module for module in net.modules() if isinstance(module, Standardise)]
    assert len(layers) == CONFIG.method.heads
    for layer in layers:
        made = layer(features)
        varied = features.std(dim=0) > 1e-5
        assert varied.sum() > 6
        torch.testing.assert_close(made.mean(dim=0), torch.zeros(12), atol=1e-4, rtol=0)
        torch.testing.assert_close(made.std(dim=0, correction=0)[varied], torch.ones(int(varied.sum())))


CASES = {
    "frozen": {},
    "linear": {"model.hidden": None},
    "earlier": {"model.share": "second"},
    "separate": {"method": "three_models"},
    "tuned": {"model.trunk": "tuned"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_model_predicts_pixels_as_it_does_features(case: str, data: Dataset, tmp_path: Path) -> None:
    config = CONFIG.changed({**CASES[case], "optim.lr": 0.1})
    fitted = cotrain.fit(data, out=tmp_path / "run", config=config)
    model = cotrain.load(fitted.folder)
    banked = opened(data, config)
    rows = np.arange(len(data.images))
    logits = model.logits(data.images, rows)
    torch.testing.assert_close(model.logits_of(banked, rows), logits, rtol=2e-3, atol=2e-3)
    assert model.predict(data.images[:1]).labels == logits[:, :1].softmax(-1).mean(0).argmax(-1)
    assert fitted.result["test_error"] == pytest.approx(
        100 * (model.predict(data.images[data.test]).labels != data.labels[data.test].numpy()).mean()
    )


def test_a_finished_run_has_a_page_and_a_baseline(data: Dataset, tmp_path: Path) -> None:
    config = CONFIG.changed({"run.report": True, "run.baseline": True})
    fitted = cotrain.fit(data, out=tmp_path / "run", config=config)
    assert fitted.result["labelled_only_error"] is not None
    page = (fitted.folder / "report.html").read_text()
    assert "tiny" in page


def test_the_next_tests_draw_doubtful_labels_less_often(data: Dataset) -> None:
    banked = opened(data)
    split = draw_split(data, DOUBTED.data, 0)
    plain, weighed = (Experiment(each, banked, split, CPU).source for each in (CONFIG, DOUBTED))
    steps = range(DOUBTED.optim.steps)
    assert any((plain.batch(step).labelled_rows != weighed.batch(step).labelled_rows).any() for step in steps)


def test_killed_the_run_ends_with_the_same_bits(data: Dataset, tmp_path: Path) -> None:
    killed = Running(fit_killed, tmp_path / "killed", 7).wait()
    assert killed.returncode == -SIGKILL
    assert max((tmp_path / "killed/checkpoint").iterdir()).name == "step-00000006.safetensors"
    cotrain.fit(data, out=tmp_path / "killed", config=DROPOUT, resume=True)
    cotrain.fit(data, out=tmp_path / "whole", config=DROPOUT)
    ours, theirs = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("killed", "whole"))
    assert ours == theirs


@pytest.mark.system
def test_two_processes_compute_what_one_does(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They also fill the bank: once, for both."""
    with monkeypatch.context() as patch:
        patch.setenv("COTRAIN_HOME", str(tmp_path / "home"))
        done = torchrun(fit_one_rank, tmp_path / "two").wait()
    assert done.returncode == 0, done.stderr
    assert np.count_nonzero(index(only_bank(tmp_path / "home"), "plain")["digest"]) == 56
    cotrain.fit(data, out=tmp_path / "one", config=DOUBTED)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for key, tensor in one.items():
        torch.testing.assert_close(two[key], tensor, rtol=1e-4, atol=1e-6)
    losses = [
        [row["supervised"] for row in read_log(tmp_path / name / "log.jsonl") if "lr" in row] for name in ("one", "two")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def weights_of(config: Config, data: Dataset, out: Path) -> dict[str, torch.Tensor]:
    cotrain.fit(data, out=out, config=config)
    return load_file(out / "model.safetensors")


def test_tuned_stages_learn_and_earlier_ones_stay(data: Dataset, tmp_path: Path) -> None:
    config = CONFIG.changed({"model.trunk": "tuned", "optim.ema": 0.0})
    banked = opened(data, config)
    assert banked.bank is not None and banked.bank.shape == (6, 8, 8)
    start = build_network(config, 3, 3).state_dict()
    learned = weights_of(config, data, tmp_path / "run")
    second = pretrained_convolution(6, 12, seed=0).weight
    (name,) = (key for key, tensor in start.items() if tensor.shape == second.shape)
    assert name.startswith("trunk.") and torch.equal(start[name], second)
    assert not torch.equal(learned[name], second)
    first = pretrained_convolution(3, 6, seed=0).weight
    assert not [key for key, tensor in learned.items() if tensor.shape == first.shape]
    trunk = cotrain.load(tmp_path / "run").trunk
    assert trunk is not None and torch.equal(trunk.net.net[0][0].weight, first)


def test_a_learned_trunk_starts_pretrained_and_needs_no_bank(data: Dataset, tmp_path: Path, counting: Counting) -> None:
    config = CONFIG.changed({"model.trunk": "learned", "optim.ema": 0.0})
    start = build_network(config, 3, 3).state_dict()
    learned = weights_of(config, data, tmp_path / "run")
    assert counting.compiled == 0
    for inputs, outputs in ((3, 6), (6, 12)):
        pretrained = pretrained_convolution(inputs, outputs, seed=0).weight
        (name,) = (key for key, tensor in start.items() if tensor.shape == pretrained.shape)
        assert torch.equal(start[name], pretrained) and not torch.equal(learned[name], pretrained)
    model = cotrain.load(tmp_path / "run")
    assert model.trunk is None and model.mean == (0.4, 0.5, 0.6)
    assert len(model.predict(pictures(3))) == 3
