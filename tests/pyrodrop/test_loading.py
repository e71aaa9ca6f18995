"""What saves is loaded in another process, which knows the file, and of the user's own code what wrote it.

The numbers of both processes are compared: they are saved by the first as a table of plain tensors.
"""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, recipes
from pyrodrop.files import read_tensors, write_tensors

X = torch.linspace(-1, 1, 60)[:, None]
Y = X**2 + 0.1 * torch.sin(40 * X)
TABLE = X.repeat(17, 1), Y.repeat(17, 1)  # enough rows for a recipe
HERE = Path(__file__)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 1))


def from_network() -> Any:
    return models.from_module(network().eval()[:2].append(network()[3]), priors.Gaussian(), likelihoods.Gaussian(10.0))


def read() -> pyrodrop.Reading:
    likelihood = likelihoods.Gaussian(10.0)
    return pyrodrop.read(network(), X[:8], likelihood=likelihood, weight_decay=1e-4, num_data=60)


def program(x: Tensor, y: Tensor | None = None) -> None:
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(slope * x[:, 0], 0.1), obs=y)


def called() -> AutoNormal:
    guide = AutoNormal(program)
    guide(X, Y[:, 0])
    return guide


def mlp(prior: Any = None, outputs: int = 1) -> models.MLP:
    likelihood = likelihoods.Gaussian() if outputs == 1 else likelihoods.HeteroscedasticGaussian("softplus")
    return models.MLP([1, 6, outputs], "tanh", prior=prior or priors.Gaussian(0.7), likelihood=likelihood)


def fit(guide: Any, model: Any = None) -> pyrodrop.Fit:
    model = model or mlp()
    return pyrodrop.fit(model, guide(model), (X, Y), steps=3, engine="pyro", progress=False)


def write(folder: Path) -> dict[str, Tensor]:
    """Save one of every kind, and return their numbers by name."""
    model = mlp(outputs=2)
    fits: dict[str, Any] = {
        "fit": fit(guides.MeanField),
        "recipe": recipes.regressor(TABLE).fit(1, steps=3, progress=False),
        "ensemble": fit(functools.partial(guides.Ensemble, guide=guides.Point, members=2)),
        "replicates": pyrodrop.fit_replicates(
            model, guides.Point(model), (X, Y), count=2, steps=3, starts="new", progress=False
        ),
        "sampled": pyrodrop.sample(
            models.MLP([1, 2, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0)), (X, Y), chains=4,
            draws=4, tune=100, max_steps=2, engine="traced", progress=False,
        ),
        "own": fit(guides.MeanField, from_network()),
        "reading": read(),
    }  # fmt: skip
    for name, run in fits.items():
        run.save(folder / name)
    numbers = {name: run.predict(X, 20).f for name, run in fits.items()}
    of_program = pyrodrop.fit(program, called(), {"x": X, "y": Y[:, 0]}, steps=3, progress=False)
    of_program.save(folder / "program")
    numbers["program"] = of_program.predict({"x": X, "y": None}, 8)["y"]
    sparse = fit(guides.SparseDropout, mlp(priors.LogUniform()))
    plain = sparse.compress()
    torch.save(plain, folder / "compressed")
    with torch.no_grad():
        numbers["compressed"] = plain(X)
    return numbers


def load(folder: Path) -> dict[str, Tensor]:
    """The numbers of what `write` has saved."""
    fits: dict[str, Any] = {name: pyrodrop.Fit.load(folder / name) for name in ("fit", "ensemble")}
    fits |= {name: pyrodrop.Replicates.load(folder / name) for name in ("recipe", "replicates")}
    fits["sampled"] = pyrodrop.Sampled.load(folder / "sampled")
    fits["own"] = pyrodrop.Fit.load(folder / "own", from_network())
    twin = read()
    fits["reading"] = pyrodrop.Reading.load(folder / "reading", twin.model, twin.guide)
    assert fits["reading"].rows() == twin.rows()
    numbers = {name: run.predict(X, 20).f for name, run in fits.items()}
    of_program = pyrodrop.Fit.load(folder / "program", program, called())
    numbers["program"] = of_program.predict({"x": X, "y": None}, 8)["y"]
    with torch.no_grad():
        return numbers | {"compressed": torch.load(folder / "compressed", weights_only=False)(X)}


def test_everything_that_saves_is_loaded_in_another_process(tmp_path: Path) -> None:
    wanted = write(tmp_path)
    sklearn = pytest.importorskip("pyrodrop.sklearn")
    estimator = sklearn.NetworkRegressor((6,), members=1, max_steps=3, random_state=0)
    with warnings.catch_warnings(action="ignore"):  # that three steps are few
        estimator.fit(TABLE[0].numpy(), TABLE[1][:, 0].numpy())
    (tmp_path / "estimator").write_bytes(pickle.dumps(estimator))
    estimator.run_.save(tmp_path / "replicates of an estimator")
    wanted["estimator"] = torch.from_numpy(estimator.predict(X.numpy()))
    wanted["replicates of an estimator"] = estimator.run_.predict(X, 20).f
    command = [sys.executable, "-P", str(HERE), str(tmp_path)]
    subprocess.run(command, check=True, timeout=300)
    got = torch.load(tmp_path / "numbers")
    assert got.keys() == wanted.keys()
    for name, numbers in wanted.items():
        torch.testing.assert_close(got[name], numbers, atol=0, rtol=0, msg=name)


def test_what_is_not_in_the_file_is_asked_for_by_name(tmp_path: Path) -> None:
    path = fit(guides.MeanField, from_network()).save(tmp_path / "own")
    with pytest.raises(ValueError, match=r"own does not have all that its model is made of, since network is a Seq"):
        pyrodrop.Fit.load(path)
    path = pyrodrop.fit(program, called(), {"x": X, "y": Y[:, 0]}, steps=1, progress=False).save(path)
    with pytest.raises(ValueError, match="its model is made of, since it is the function program of your own"):
        pyrodrop.Fit.load(path)
    with pytest.raises(ValueError, match="its guide is made of, since it is a AutoNormal of your own"):
        pyrodrop.Fit.load(path, program)
    run = fit(guides.MeanField)
    with pytest.raises(ValueError, match="is of another model, or damaged: no guide can be made of it: .* has shape"):
        pyrodrop.Fit.load(run.save(path), mlp(outputs=2))
    run.model.priors["layers.0.weight"] = priors.Gaussian(2.0)  # which the arguments of the model do not say
    with pytest.raises(ValueError, match=r"is of another model or guide: .*scale=2.* there and .*scale=0.7.* here"):
        pyrodrop.Fit.load(run.save(path))


CHANGES: dict[str, Any] = {
    "of a class that is no part": lambda made: made["model"].update(part="os.system"),
    "of another class": lambda made: made["model"].update(part="pyrodrop.priors.Gaussian"),
    "without arguments": lambda made: made["guide"].pop("arguments"),
    "too large for any memory": lambda made: made["model"]["arguments"].update(widths=[1, 10**7, 10**7, 1]),
    "a number": lambda made: made.update(model=3),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_file_that_describes_something_else_is_refused(what: str, tmp_path: Path) -> None:
    tensors, about = read_tensors(fit(guides.MeanField).save(tmp_path / "fit"))
    CHANGES[what](about["made_with"])
    write_tensors(tmp_path / "changed", tensors, {name: about[name] for name in about if name != "format"})
    with pytest.raises(ValueError, match="changed is damaged: no (model|guide) can be made of it") as error:
        pyrodrop.Fit.load(tmp_path / "changed")
    assert "memory" not in str(error.value)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    numbers = load(folder)
    if (folder / "estimator").exists():
        numbers["estimator"] = torch.from_numpy(pickle.loads((folder / "estimator").read_bytes()).predict(X.numpy()))
        several = pyrodrop.Replicates.load(folder / "replicates of an estimator")
        numbers["replicates of an estimator"] = several.predict(X, 20).f
    torch.save(numbers, folder / "numbers")


class Level(PyroModule):
    def __init__(self) -> None:
        super().__init__()
        self.loc = PyroParam(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        pyro.sample("slope", dist.Normal(self.loc, 0.01))


def test_a_loaded_module_has_the_values_of_the_file_whatever_pyros_store_has(tmp_path: Path) -> None:
    """Another guide has been trained under the same name since."""
    data = {"x": X, "y": Y[:, 0] + 2 * X[:, 0]}
    run = pyrodrop.fit(program, Level(), data, steps=200, lr=0.05, seed=0)
    path = run.save(tmp_path / "run.safetensors")
    pyrodrop.fit(program, other := Level(), {"x": X, "y": -Y[:, 0]}, steps=100, lr=0.05, seed=0)
    loaded = pyrodrop.Fit.load(path, program, Level())
    wanted = run.predict(num_samples=20)["slope"]
    assert abs(float(wanted.mean()) - float(other.loc.detach())) > 1
    torch.testing.assert_close(loaded.predict({"x": X}, num_samples=20)["slope"], wanted)
    pyrodrop.fit(program, Level(), {"x": X, "y": -Y[:, 0]}, steps=100, lr=0.05, seed=0)
    torch.testing.assert_close(loaded.predict({"x": X}, num_samples=20)["slope"], wanted)
