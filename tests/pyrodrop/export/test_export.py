"""Files of posteriors against NumPy, and against `predict` with the same draws; and what is refused."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor, nn

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.inputs import mapped, named_parts
from pyrodrop.sampling.sampled import Sampled

SUFFIXES = ["pt2", "onnx"]
ALL = ("mean", "sd", "quantiles", "draws")
LEVELS = [0.02, 0.5, 0.9]
SITES = ("layers.0.weight", "layers.1.weight")


def opened(path: Path) -> Callable[[Any], dict[str, np.ndarray]]:
    """What the file computes, by the runtime of its format alone."""
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()
        return lambda x: {n: value.numpy() for n, value in module(*named_parts(x).values()).items()}
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(x: Any) -> dict[str, np.ndarray]:
        inputs = {name: value.numpy() for name, value in named_parts(x).items()}
        return dict(zip(names, session.run(None, inputs), strict=True))

    return run


def metadata(path: Path) -> dict[str, Any]:
    if path.suffix == ".pt2":
        files = {"pyrodrop.json": ""}
        torch.export.load(path, extra_files=files)
        return json.loads(files["pyrodrop.json"])
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return json.loads(session.get_modelmeta().custom_metadata_map["pyrodrop"])


def check(
    run: Any, path: Path, at: Any, outputs: tuple[str, ...] = ("mean", "sd"), draws: int = 6, **options: Any
) -> None:
    """Export, and compare the file with `predict` at these rows and at the first of them."""
    if path.suffix == ".onnx":
        pytest.importorskip("onnxruntime")
    run.export(path, draws, outputs=outputs, levels=LEVELS, **options)
    program = opened(path)
    for rows in (mapped(lambda value: value[:1], at), at):
        predicted, got = run.predict(rows, draws, **{k: v for k, v in options.items() if k == "seed"}), program(rows)
        want = {"mean": predicted.mean, "probabilities": predicted.mean, "draws": predicted.f}
        want |= {"sd": predicted.sd} if "sd" in outputs else {}
        want |= {"quantiles": predicted.quantile(LEVELS)} if "quantiles" in outputs else {}
        assert list(got) == list(outputs)
        for name in outputs:
            scale = max(1.0, float(want[name].abs().max()))
            np.testing.assert_allclose(got[name], want[name].numpy(), rtol=0, atol=1e-5 * scale, err_msg=name)
            assert got[name].dtype == want[name].numpy().dtype


def regression(rows: int = 20, features: int = 3) -> data.Dataset:
    torch.manual_seed(1)
    x = 5 + 3 * torch.randn(rows, features)
    return data.Dataset(x, 300 + 20 * x.sum(1, keepdim=True)).standardized()


def mlp(likelihood: likelihoods.Likelihood | None = None, outputs: int = 1, **prior: Any) -> models.MLP:
    return models.MLP(
        [3, 20, outputs],
        prior=prior.get("prior", priors.Gaussian()),
        likelihood=likelihoods.Gaussian(0.01) if likelihood is None else likelihood,
        seed=2,
    )


def fitted(guide: Callable[[Any], Any], model: Any = None, rows: data.Dataset | None = None) -> pyrodrop.Fit:
    model = mlp() if model is None else model
    table = regression() if rows is None else rows
    return pyrodrop.fit(model, guide(model), table, steps=3, progress=False)


def dropped(model: Any) -> guides.BernoulliDropout:
    return guides.BernoulliDropout(model, drop_rate=0.3)


def sampled() -> Sampled:
    """Known weights in the place of a chain's."""
    rows, model = regression(), mlp()
    model.standardize(rows)
    model.eval()
    torch.manual_seed(3)
    samples = {name: torch.randn(1, 7, *value.shape) for name, value in model.weight_sites().items()}
    stats = {name: torch.zeros(1, 7) for name in ("lp", "energy", "acceptance_rate", "diverging", "n_steps")}
    return Sampled(model, samples, stats, rows, {})


def by_numpy(run: Sampled, x: Tensor) -> np.ndarray:
    """f of every draw, ``[7, N, 1]``, in float64."""
    model: Any = run.model
    weights = [run.samples[name][0].double().numpy() for name in SITES]
    biases = [model.free[name.replace("weight", "bias")].detach().double().numpy() for name in SITES]
    z = (x.double().numpy() - model.inputs.loc.double().numpy()) / model.inputs.scale.double().numpy()
    hidden = np.maximum(np.einsum("ni,thi->tnh", z, weights[0]) + biases[0], 0)
    f = np.einsum("tnh,toh->tno", hidden, weights[1]) + biases[1]
    return f * float(model.targets.scale) + float(model.targets.loc)


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_computes_the_mixture_by_numpy(suffix: str, tmp_path: Path) -> None:
    if suffix == "onnx":
        pytest.importorskip("onnxruntime")
    run, path = sampled(), tmp_path / f"net.{suffix}"
    assert run.export(path, 7, outputs=("draws", "sd", "mean")) == path
    x = 5 + 3 * torch.randn(11, 3)
    f, got = by_numpy(run, x), opened(path)(x)
    scale = 1e-5 * abs(f).max()
    np.testing.assert_allclose(got["draws"], f, rtol=0, atol=scale)
    np.testing.assert_allclose(got["mean"], f.mean(0), rtol=0, atol=scale)
    np.testing.assert_allclose(got["sd"], np.sqrt(1 / 0.01 + f.var(0)), rtol=0, atol=scale)


@pytest.mark.more
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_quantiles_are_roots_of_the_mixture_by_scipy(suffix: str, tmp_path: Path) -> None:
    if suffix == "onnx":
        pytest.importorskip("onnxruntime")
    run, path = sampled(), tmp_path / f"net.{suffix}"
    run.export(path, 7, outputs=["quantiles"], levels=LEVELS)
    x = 5 + 3 * torch.randn(5, 3)
    f, got = by_numpy(run, x), opened(path)(x)["quantiles"]
    for level, of_level in zip(LEVELS, got, strict=True):
        for row, value in enumerate(of_level[:, 0]):
            draws = f[:, row, 0]
            root = brentq(lambda y, d=draws, q=level: norm.cdf(y, d, 10).mean() - q, f.min() - 99, f.max() + 99)
            assert abs(value - root) < 1e-5 * abs(f).max()


@pytest.mark.more
def test_moments_are_those_of_bernoulli_masks(tmp_path: Path) -> None:
    """E[f] and Var[f] of a layer of units that are kept with probability .7, in double precision."""
    fit = fitted(lambda m: guides.BernoulliDropout(m, drop_rate=0.3, mask_input=False))
    fit.export(tmp_path / "net.pt2", moments=True)
    x = regression().x
    got, model = opened(tmp_path / "net.pt2")(x), fit.model
    (w1, w2), (b1, b2) = (
        [fit.guide.loc[n].detach().double().numpy() for n in SITES],
        [model.free[n.replace("weight", "bias")].detach().double().numpy() for n in SITES],
    )
    z = ((x - model.inputs.loc) / model.inputs.scale).double().numpy()
    hidden = np.maximum(z @ w1.T + b1, 0)
    scale, loc = float(model.targets.scale), float(model.targets.loc)
    mean = (0.7 * hidden @ w2.T + b2) * scale + loc
    sd = np.sqrt(0.21 * hidden**2 @ w2.T**2 * scale**2 + 1 / 0.01)
    np.testing.assert_allclose(got["mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(got["sd"], sd, rtol=1e-5)


GUIDES: dict[str, Callable[[Any], Any]] = {
    "bernoulli": dropped,
    "theta": lambda m: guides.BernoulliDropout(m, drop_rate=0.3, theta=0.1),
    "dropconnect": lambda m: guides.DropConnect(m, drop_rate=0.3),
    "concrete": guides.ConcreteDropout,
    "gaussian A": lambda m: guides.GaussianDropout(m, alpha=0.2),
    "mean field": guides.MeanField,
    "low rank": guides.LowRank,
    "point": guides.Point,
    "ensemble": lambda m: guides.Ensemble(m, guides.Point, 3),
    "ensemble of dropout": lambda m: guides.Ensemble(m, dropped, 2),
}


@pytest.mark.more
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("guide", GUIDES)
def test_every_posterior(guide: str, suffix: str, tmp_path: Path) -> None:
    model = mlp(prior=priors.LogUniform()) if guide == "gaussian A" else mlp()
    fit = fitted(GUIDES[guide], model)
    check(fit, tmp_path / f"net.{suffix}", regression().x, ("mean", "sd", "draws"), seed=4)


LIKELIHOODS: dict[str, tuple[likelihoods.Likelihood, int, tuple[str, ...]]] = {
    "heteroscedastic": (likelihoods.HeteroscedasticGaussian(), 2, ALL),
    "log-normal": (likelihoods.LogNormal(), 1, ALL),
    "student": (likelihoods.StudentT(), 1, ("mean", "sd", "draws")),
    "gamma": (likelihoods.Gamma(), 1, ("mean", "sd", "draws")),
    "beta": (likelihoods.Beta(), 1, ("mean", "sd", "draws")),
    "poisson": (likelihoods.Poisson(), 1, ("mean", "sd", "draws")),
    "negative binomial": (likelihoods.NegativeBinomial(), 1, ("mean", "sd", "draws")),
    "bernoulli": (likelihoods.Bernoulli(), 1, ("mean", "sd", "probabilities", "draws")),
    "categorical": (likelihoods.Categorical(), 3, ("probabilities", "draws")),
    "ordinal": (likelihoods.Ordinal(3), 1, ("probabilities", "draws")),
    "censored": (likelihoods.Censored(likelihoods.Gaussian()), 1, ALL),
    "missing": (likelihoods.Missing(likelihoods.Gaussian()), 1, ALL),
    "missing labels": (likelihoods.Missing(likelihoods.Categorical(), -1), 3, ("probabilities", "draws")),
}


@pytest.mark.more
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood(name: str, suffix: str, tmp_path: Path) -> None:
    likelihood, outputs, summaries = LIKELIHOODS[name]
    torch.manual_seed(0)
    x = torch.randn(20, 3)
    y = (1 + x.sum(1, keepdim=True).abs()).round()
    y = torch.arange(20) % 3 if "probabilities" in summaries else y
    y = {"beta": y / 20, "bernoulli": (y[:, None] > 1).float(), "censored": torch.cat([y, y], -1)}.get(name, y)
    fit = fitted(guides.MeanField, mlp(likelihood, outputs), data.Dataset(x, y))
    check(fit, tmp_path / f"net.{suffix}", x, summaries)
    for missing in {"quantiles", "probabilities"} - {*summaries}:
        with pytest.raises(ValueError, match=f"outputs must be some of {', '.join(summaries)}.*{missing}"):
            fit.export(tmp_path / f"other.{suffix}", outputs=[missing])


class Recurrent(nn.Module):
    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 1)
        self.drop = nn.Dropout(drop) if drop else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.layer(x)[0][:, -1]))


class Encoder(nn.Module):
    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=drop, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(1))


def convolutional(drop: float = 0.0) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4).eval(), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Dropout2d(drop) if drop else nn.Identity(), nn.Flatten()),
        *(nn.Dropout(drop) if drop else nn.Identity(), nn.Linear(36, 1)),
    )


SHAPES: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "convolutional": (convolutional, (1, 8, 8)),
    "recurrent": (Recurrent, (6, 3)),
    "transformer": (Encoder, (5, 4)),
}


@pytest.mark.more
@pytest.mark.parametrize("posterior", ["bernoulli", "mean field", "read"])
@pytest.mark.parametrize("network", SHAPES)
def test_images_sequences_and_tokens(network: str, posterior: str, tmp_path: Path) -> None:
    build, shape = SHAPES[network]
    torch.manual_seed(0)
    x, y = torch.randn(8, *shape), torch.randn(8, 1)
    if posterior == "read":
        run: Any = pyrodrop.read(
            build(0.2), x, likelihood=likelihoods.Gaussian(4.0), weight_decay=1e-4, num_data=len(x)
        )
    else:
        model = models.from_module(build(), priors.Gaussian(), likelihoods.Gaussian(4.0))
        run = fitted(GUIDES[posterior], model, data.Dataset(x, y))
    check(run, tmp_path / "net.onnx", x, ("mean", "sd", "draws"), draws=3, x=x)


@pytest.mark.more
def test_masks_are_stored_as_masks(tmp_path: Path) -> None:
    """A file of 100 draws of dropout is little larger than one of 2, also of a network with convolutions."""
    torch.manual_seed(0)
    model = models.from_module(convolutional(), priors.Gaussian(), likelihoods.Gaussian(4.0))
    fit = fitted(dropped, model, data.Dataset(torch.randn(8, 1, 8, 8), torch.randn(8, 1)))
    sizes = [fit.export(tmp_path / "net.pt2", draws).stat().st_size for draws in (2, 100)]
    assert sizes[1] - sizes[0] < 98 * 4 * (1 + 36) + 4096


@pytest.mark.more
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_replicates_are_one_mixture(suffix: str, tmp_path: Path) -> None:
    model = mlp()
    runs = pyrodrop.fit_replicates(model, dropped(model), regression(), count=3, steps=3, progress=False)
    runs.failed[1] = 2
    check(runs, tmp_path / f"net.{suffix}", regression().x, ALL, draws=7)


@pytest.mark.more
def test_dtypes_and_strides(tmp_path: Path) -> None:
    rows = regression()
    wide = fitted(guides.MeanField, mlp().double(), data.Dataset(rows.x.double(), rows.y.double()))
    check(wide, tmp_path / "net.onnx", rows.x.double(), ALL)
    years = fitted(guides.MeanField, None, data.Dataset(rows.x.double(), rows.y))
    check(years, tmp_path / "net.onnx", rows.x.double())
    turned = torch.randn(3, 20).T
    check(fitted(guides.MeanField, None, data.Dataset(turned, rows.y)), tmp_path / "net.onnx", turned.contiguous())
    whole = torch.randint(0, 9, (20, 3))
    check(fitted(guides.MeanField, None, data.Dataset(whole, rows.y)), tmp_path / "net.onnx", whole)


def frame(rows: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({
        "age": rng.uniform(20, 70, rows), "kind": rng.choice(["a", "b"], rows), "paid": rng.uniform(size=rows) > 0.5,
        "answer": rng.choice(["no", "yes", "maybe"], rows), "price": rng.normal(200, 10, rows),
    })  # fmt: skip


@pytest.mark.more
def test_a_frame_with_text(tmp_path: Path) -> None:
    df = frame().drop(columns="price")
    rows = data.Dataset.from_frame(df, "answer", categories=["kind"])
    run = pyrodrop.recipes.classifier(rows).fit(steps=3, progress=False)
    run.export(tmp_path / "net.pt2", 5)
    got = opened(tmp_path / "net.pt2")(rows.x)["probabilities"]
    np.testing.assert_allclose(got, run.predict(df, 5).mean, atol=1e-5)
    about = metadata(tmp_path / "net.pt2")
    assert about["classes"] == ["maybe", "no", "yes"]
    assert about["columns"]["x"] == ["age", "paid", "kind=a", "kind=b"]
    assert about["inputs"] == {"x": {"shape": ["batch", 4], "dtype": "float32"}}
    assert (about["draws"], about["seed"], about["settings"][0]["steps"]) == (5, 0, 3)


class Coded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.body = nn.Embedding(2, 2), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        return self.body(torch.cat([numbers, self.kinds(codes[:, 0])], 1))


@pytest.mark.more
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_numbers_beside_codes_are_in_their_own_units(suffix: str, tmp_path: Path) -> None:
    if suffix == "onnx":
        pytest.importorskip("onnxruntime")
    df = frame().drop(columns="answer")
    rows = data.Dataset.from_frame(df, "price", categories=["kind"], encode="codes")
    run = fitted(guides.MeanField, models.from_module(Coded(), priors.Gaussian(), likelihoods.Gaussian()), rows)
    path = run.export(tmp_path / f"net.{suffix}", 5)
    plain = torch.tensor(df[["age", "paid"]].to_numpy(np.float32))
    got = opened(path)((plain, rows.x[1]))
    np.testing.assert_allclose(got["mean"], run.predict(df, 5).mean, atol=1e-5 * 200)


def bare_python(code: str, *folders: Path) -> str:
    """What a Python prints that has these folders and the standard library."""
    places = [str(folder) for folder in folders]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path += {places!r}\n{code}"],
        capture_output=True, text=True, timeout=100, env={"PATH": os.environ["PATH"]}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.more
def test_a_file_of_onnx_runs_without_torch_and_pyrodrop(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    run, folder = fitted(dropped), tmp_path / "site"
    folder.mkdir()
    for package in (np, runtime):
        place = Path(package.__file__).parent
        for source in (place, place.with_name(f"{place.name}.libs")):
            if source.exists():
                (folder / source.name).symlink_to(source)
    run.export(tmp_path / "net.onnx", 5)
    np.save(tmp_path / "x.npy", regression().x)
    bare_python(
        f"""
import importlib.util, numpy, onnxruntime
assert not importlib.util.find_spec("torch") and not importlib.util.find_spec("pyrodrop")
session = onnxruntime.InferenceSession({str(tmp_path / "net.onnx")!r}, providers=["CPUExecutionProvider"])
mean, sd = session.run(None, {{"x": numpy.load({str(tmp_path / "x.npy")!r})}})
numpy.save({str(tmp_path / "mean.npy")!r}, mean)
""",
        folder,
    )
    np.testing.assert_allclose(np.load(tmp_path / "mean.npy"), run.predict(regression().x, 5).mean, rtol=1e-5)


@pytest.mark.more
def test_a_file_of_torch_runs_without_pyrodrop(tmp_path: Path) -> None:
    run = fitted(guides.MeanField)
    run.export(tmp_path / "net.pt2", 5)
    torch.save(regression().x, tmp_path / "x.pt")
    printed = bare_python(
        f"""
import importlib.util, torch
assert not importlib.util.find_spec("pyrodrop")
module = torch.export.load({str(tmp_path / "net.pt2")!r}).module()
print(float(module(torch.load({str(tmp_path / "x.pt")!r}))["mean"].double().sum()))
""",
        Path(torch.__file__).parents[1],
    )
    want = float(run.predict(regression().x, 5).mean.double().sum())
    assert abs(float(printed) - want) < 1e-5 * abs(want)


@pytest.mark.more
def test_the_metadata_have_a_hash_of_the_weights(tmp_path: Path) -> None:
    run = fitted(guides.MeanField)
    hashes = []
    for seed in (0, 0, 1):
        path = run.export(tmp_path / "net.pt2", 2, seed=seed)
        hashes.append(metadata(path)["sha256"])
    assert hashes[0] == hashes[1] != hashes[2]
    assert metadata(path)["guide"] == "MeanField"


class WideHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 4), nn.Linear(4, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).tanh().double())  # type: ignore[no-any-return]


@pytest.mark.more
def test_a_program_that_fails_leaves_no_transform_open(tmp_path: Path) -> None:
    """torch.export cannot map this network, and forgets the end of torch.vmap, within which nothing can be drawn."""
    rows = regression()
    plain = data.Dataset(rows.x, rows.y.double())
    run = fitted(guides.MeanField, models.from_module(WideHead(), priors.Gaussian(), likelihoods.Gaussian(1.0)), plain)
    run.export(tmp_path / "net.pt2", 2)
    assert torch.rand(3).shape == (3,)


class Odd(nn.Module):
    """A linear map, but for what `otherwise` makes of it."""

    def __init__(self, otherwise: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.otherwise = nn.Linear(3, 1), otherwise

    def forward(self, x: Tensor) -> Tensor:
        return self.otherwise(x, self.layer(x))


REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "another number when it is recorded": (
        lambda x, y: y + 1e-3 * torch.compiler.is_exporting(),
        "must have the mean of predict to 1e-05 .* differs by 0.001",
    ),
    "a branch on values": (lambda x, y: y if float(x.sum()) > 1e9 else 2 * y, "without branches on values"),
    "a branch on the number of rows": (lambda x, y: y if x.shape[0] > 5 else 2 * y, "recor|depends on other"),
    "one row": (lambda x, y: 2 * y if x.shape[0] == 1 else y, "mean of predict|depends on other|recor"),
    "rows that depend on each other": (lambda x, y: y + x.mean(), "depends on others"),
    "the number of rows as a number": (lambda x, y: y + x.new_zeros(len(x), 1), r"write x\.shape\[0\]"),
}


@pytest.mark.more
@pytest.mark.parametrize("name", REFUSED)
def test_a_program_that_would_be_wrong_is_not_written(name: str, tmp_path: Path) -> None:
    otherwise, why = REFUSED[name]
    rows = regression()
    plain = data.Dataset((rows.x - 5) / 3, (rows.y - 600) / 40)
    run = fitted(guides.MeanField, models.from_module(Odd(otherwise), priors.Gaussian(), likelihoods.Gaussian()), plain)
    (tmp_path / "net.pt2").write_text("before")
    with pytest.raises(ValueError, match=why):
        run.export(tmp_path / "net.pt2", 2)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("net.pt2", "before")]


def test_arguments_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, path = fitted(guides.MeanField), tmp_path / "net.pt2"
    for changed, error, why in [
        ({"path": tmp_path / "net.pb"}, ValueError, r"path must end with \.onnx or \.pt2.*net\.pb"),
        ({"path": 3}, TypeError, "path is the file to write"),
        ({"draws": 0}, ValueError, "draws is the number of functions in the file .* got 0"),
        ({"outputs": "mean"}, TypeError, "outputs must be a list of names .* got the str"),
        ({"outputs": ["sdd"]}, ValueError, "outputs must be .* got 'sdd'; did you mean 'sd'"),
        (
            {"outputs": ["probabilities"]},
            ValueError,
            "must be some of mean, sd, quantiles, draws.*got \\['probabilities",
        ),
        ({"outputs": ["mean", "mean"]}, ValueError, "each once"),
        ({"levels": [0.5, 1.0]}, ValueError, "levels is the probability .*got 1"),
        ({"moments": True}, ValueError, "method='analytic'"),
        ({"seed": -1}, ValueError, "seed"),
    ]:
        with pytest.raises(error, match=why):
            run.export(**{"path": path, **changed})
    run.data = None
    with pytest.raises(ValueError, match="x must be a few rows of x"):
        run.export(path)
    assert not list(tmp_path.iterdir())

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ImportError, match=r"pip install 'pyrodrop\[onnx\]'"):
        run.export(tmp_path / "net.onnx")


@pytest.mark.more
def test_the_service_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    client = pytest.importorskip("fastapi.testclient")
    run, rows = fitted(guides.MeanField), regression()
    run.export(tmp_path / "answers.onnx", 5)
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
    names: dict[str, Any] = {}
    exec(page.split("```{code-block} python\n")[1].split("```")[0], names)
    answer = client.TestClient(names["app"]).post("/predict", json=rows.x.tolist())
    np.testing.assert_allclose(answer.json()["mean"], run.predict(rows.x, 5).mean, rtol=1e-5)
