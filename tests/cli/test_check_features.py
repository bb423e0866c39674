"""`cotrain data check --features`: what it warns about before training."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from cotrain import Config
from cotrain.cli.check_features import features_table
from cotrain.cli.main import main
from cotrain.training.experiment import Experiment
from tests.audit.clusters import Clusters, bank_of, clusters


def shown(made: Clusters) -> str:
    text = io.StringIO()
    experiment = Experiment(Config(), made.dataset, made.split, torch.device("cpu"))
    Console(file=text, width=120).print(features_table(experiment))
    return text.getvalue()


def test_junk_is_announced_with_examples(tmp_path: Path) -> None:
    made = clusters(tmp_path, junk=60)
    text = shown(made)
    assert "seem to belong to no class" in text
    assert any(f"row {row}" in text for row in made.junk)


def test_contradicting_near_duplicates_and_a_leaking_test_image(tmp_path: Path) -> None:
    made = clusters(tmp_path, junk=10)
    assert made.dataset.bank is not None
    features = made.dataset.bank.plain(np.arange(len(made.dataset.images))).numpy()[:, :, 0, 0]
    features[60], features[-1] = features[0], features[1]  # row 60 has another label than row 0
    bank = bank_of(tmp_path, features, made.dataset.hashes)
    test = len(features) - 1
    rows = tuple(row for row in made.split.unlabelled if row != test)
    split = made.split.model_copy(update={"unlabelled": rows, "test": (test,)})
    text = shown(replace(made, dataset=replace(made.dataset, bank=bank), split=split))
    assert "near-duplicates with different labels" in text and "row 0 (a) ~ row 60 (b)" in text
    assert "test images with a near-duplicate in training" in text and f"row {test}" in text


def test_features_need_a_frozen_network(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["data", "check", "digits", "--features"])
    assert "--features needs a pretrained network with a frozen trunk, not wrn-10-1" in capsys.readouterr().err
