"""The job that tunes by Optuna: trials are kept, pruned and compared with the defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pyrodrop import cli
from pyrodrop.analysis.experiments import tuning
from pyrodrop.data import uci

optuna = pytest.importorskip("optuna")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_BATCH", 256)  # one step an epoch
    monkeypatch.setattr(tuning, "_DRAWS", 5)
    monkeypatch.setattr(tuning, "_BEFORE_PRUNING", 1)
    monkeypatch.setattr(tuning, "_WARM", 0)


def words(folder: Path, trials: int) -> list[str]:
    options = f"--data yacht --epochs 10 --trials {trials} --device cpu --quiet --out {folder}"
    return ["run", "tuning", *options.split()]


@pytest.mark.more
def test_trials_are_kept_and_pruned(
    tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first trial has the defaults. A trial whose validation is below the median ends at its first report."""
    made: list[dict[str, float]] = []
    steps: list[int] = []
    own = tuning._training

    def seen(*given: Any, **chosen: float) -> Any:
        made.append(chosen)
        return own(*given, **chosen)

    def worse(fit: Any, data: Any, seed: int) -> float:
        steps.append(len(fit.history))
        assert len(data) in (56, 31)  # the last fifth of the training rows, or the test rows
        return -float(len(made))

    monkeypatch.setattr(tuning, "_training", seen)
    monkeypatch.setattr(tuning, "_log_density", worse)
    assert cli.main(words(tmp_path, 2)) == 0
    assert made[0] == pytest.approx(tuning.DEFAULT)
    assert steps == [*range(1, 11), 1, 20, 20]  # all reports, one report, and two trainings on all 277 rows
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["trials"] == {"complete": 1, "pruned": 1}
    assert results["chosen"] == pytest.approx(tuning.DEFAULT)
    assert cli.main(words(tmp_path, 3)) == 0
    assert len(made) == 2 + 2 + 1 + 2
    assert json.loads((tmp_path / "results.json").read_text())["trials"] == {"complete": 1, "pruned": 2}
    assert "trials" not in json.loads((tmp_path / "run.json").read_text())["settings"]


def test_scores_are_log_densities_of_rows_that_no_trial_has_seen(data_folder: Path) -> None:
    """Against a Gaussian mixture by hand."""
    split = uci("yacht")[0]
    training, per_epoch = tuning._training(split.train, 10, 0, torch.device("cpu"), drop_rate=0.2, prior_scale=2.0)
    training.advance(10 * per_epoch)
    fit: Any = training.fit
    assert fit.guide.rates()["layers.1.weight"] == pytest.approx(0.2)
    assert fit.model.priors["layers.0.weight"].scale == pytest.approx(2.0)
    f = fit.predict(split.test.x, 5, seed=3).f
    distribution = torch.distributions.Normal(f, fit.model.likelihood.precision.detach() ** -0.5)
    by_hand = (distribution.log_prob(split.test.y).logsumexp(0) - torch.tensor(5.0).log()).mean()
    assert tuning._log_density(fit, split.test, 3) == pytest.approx(float(by_hand), rel=1e-4)
