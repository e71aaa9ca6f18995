"""`pyrodrop run peers` without a peer installed: the file of a problem, scripts, their faults, and the distances."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pyrodrop import cli
from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.lab.experiments.peers import experiment
from pyrodrop.analysis.lab.experiments.references import PROBLEMS, load
from pyrodrop.analysis.lab.peers import processes
from pyrodrop.analysis.lab.peers.processes import SCRIPTS, Fault, Peer, arrays, run_script
from pyrodrop.data import Dataset
from pyrodrop.zoo.exact import Problem

REQUIREMENTS = SCRIPTS.parent / "requirements.txt"

# The mean of y plus noise, by the protocol alone: a peer that needs NumPy and nothing else.
PEER = """
import json, sys
import numpy as np
method, source, target = sys.argv[1:]
p = np.load(source)
if method == "fails":
    raise RuntimeError("no such luck")
f = p["y"].mean() + np.random.default_rng(int(p["seed"])).normal(size=(int(p["draws"]), len(p["points"]), 1))
if method == "transposed":
    f = f.transpose(1, 0, 2)
if method == "not finite":
    f[0] = np.nan
about = {"settings": {}, "seconds": 0.5, "joint": False, "versions": {}}
if method != "silent":
    np.savez(target, f=f, about=json.dumps(about))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "mean.py"
    path.write_text(PEER)
    return path


def small() -> tuple[Problem, Dataset]:
    problem = PROBLEMS["yacht"]
    random = np.random.default_rng(0)
    x, y = random.normal(5.0, 3.0, (9, 6)), random.normal(50.0, 10.0, (9, 1))
    train = Dataset(torch.tensor(x).float(), torch.tensor(y).float()).standardized()
    return problem, train


def test_a_problem_is_what_the_network_sees_with_the_noise_in_its_units() -> None:
    problem, train = small()
    content = arrays(problem, train, train.x[:2], draws=3, steps=4, seed=5)
    x, y = train.x.double().numpy(), train.y.double().numpy()
    np.testing.assert_allclose(content["x"], (x - x.mean(0)) / x.std(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(content["y"], (y - y.mean()) / y.std(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(content["points"], content["x"][:2])
    np.testing.assert_allclose(content["precision"], float(problem.likelihood().precision) * y.var(), rtol=1e-5)
    np.testing.assert_allclose(content["scales"], [2 / 6**0.5, 2 / 50**0.5])


def test_the_log_joint_of_the_scripts_is_that_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences of the log joint density between two sets of weights, by `scripts/peer.py` and by the model."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    peer = runpy.run_path(str(SCRIPTS / "peer.py"), run_name="peer")
    problem, train = small()
    content = arrays(problem, train, train.x[:2], draws=3, steps=4, seed=5)
    its = peer["Problem"](**{name: value.tolist() if value.ndim == 0 or name in ("widths", "scales") else value
                             for name, value in content.items()})  # fmt: skip
    model = problem.model()
    model.targets_check(train.x)(train)
    x, y, _ = peer["tensors"](its)
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        net = peer["network"](its)
        parameters = dict(net.named_parameters())
        theirs = peer["misfit"](its, net(x), y) + peer["decay"](its, parameters)
        own = torch.distributions.Normal(
            net(x) * train.targets.scale + train.targets.loc, problem.likelihood().precision ** -0.5
        )
        log_joint = own.log_prob(train.y).sum()
        for name, value in parameters.items():
            scale = its.scales[int(name[0]) // 2] if "weight" in name else 1.0
            log_joint = log_joint + torch.distributions.Normal(0.0, scale).log_prob(value).sum()
        found.append((theirs.item(), -log_joint.item()))
    (a, b), (c, d) = found
    assert a - c == pytest.approx(b - d, rel=1e-4)


def test_a_script_runs_in_its_own_process_and_draws_are_judged(script: Path, tmp_path: Path) -> None:
    problem, reference = PROBLEMS["co2"], load("co2")
    train, test = problem.data()
    content = arrays(problem, train, test.x, draws=40, steps=1, seed=0)
    f, about = run_script(script, "mean", sys.executable, content, tmp_path, 60.0)
    assert f.shape == (40, len(test), 1)
    judge = experiment.Judge(reference, test, 40, 0)
    values = judge("mean", experiment.of_draws(f, problem.likelihood(), joint=False, targets=train.targets))
    own = f[..., 0] * float(train.targets.scale) + float(train.targets.loc)
    theirs = reference.predict(test.x, 40, seed=7_368_787).f[..., 0].numpy()
    w2 = np.sqrt(((np.sort(own, 0) - np.sort(theirs, 0)) ** 2).mean(0)).mean()
    assert values["wasserstein"] == pytest.approx(w2 / theirs.std(0).mean(), rel=1e-3)
    assert values["covariance"] is None
    assert judge.chance()["wasserstein"] < values["wasserstein"]
    assert about["seconds"] == 0.5


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("fails", "RuntimeError: no such luck"),
        ("transposed", r"wrote draws of shape \[3, 4, 1\]"),
        ("not finite", "3 of them not finite"),
        ("silent", "wrote no draws"),
    ],
)
def test_faults_of_a_script_are_told(script: Path, tmp_path: Path, method: str, message: str) -> None:
    problem, train = small()
    content = arrays(problem, train, train.x[:3], draws=4, steps=4, seed=5)
    with pytest.raises(Fault, match=message):
        run_script(script, method, sys.executable, content, tmp_path, 60.0)


@pytest.mark.more
def test_a_quick_run_tells_which_peers_are_missing_and_goes_on(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = {
        peer.name: peer
        for peer in (
            Peer("numpy", str(script), "mean"),
            Peer("numpy", str(script), "fails"),
            Peer("no-such-package", "none.py", "none"),
        )
    }
    for module in (experiment, processes):
        monkeypatch.setattr(module, "PEERS", chosen)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    words = ["run", "peers", "--problems", "co2", "--preset", "quick", "--out", str(tmp_path / "run")]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert "without no-such-package, which no interpreter has" in said
    assert "numpy, fails: RuntimeError: no such luck" in said
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    rows = {row["method"]: row for row in results["rows"]}
    assert rows.keys() == {"chance", "numpy, mean", "numpy, fails"}
    assert rows["numpy, mean"]["wasserstein"] > rows["chance"]["wasserstein"] > 0
    assert len(tidy.read(tmp_path / "run" / "distances.csv")) == 3
    script.unlink()  # what is finished is not run again
    assert cli.main(words) == 0
    assert json.loads((tmp_path / "run" / "results.json").read_text())["rows"] == results["rows"]


@pytest.mark.parametrize("method", ["ensemble of 5 points", "exact last layer"])
def test_our_own_script(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    problem, train = small()
    source, target = tmp_path / "problem.npz", tmp_path / "draws.npz"
    np.savez(source, **arrays(problem, train, train.x[:2], draws=10, steps=3, seed=5))
    monkeypatch.setattr(sys, "argv", ["ours.py", method, str(source), str(target)])
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(SCRIPTS / "ours.py"), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
        sys.modules.pop("peer", None)
    with np.load(target) as file:
        assert file["f"].shape == (10, 2, 1)
        assert json.loads(str(file["about"]))["seconds"] > 0
