"""Functions as a module, against `torch.func.functional_call` with one weight per draw; and as programs of ONNX."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torch.func import functional_call

import pyrodrop
from pyrodrop import data, guides, likelihoods, models
from pyrodrop.sampling.sampled import Sampled
from tests.small import brought, mlp, normal

X = 5 + 3 * normal(20, 3, seed=1)
Y = 300 + 20 * X.sum(1, keepdim=True)
TABLE = data.Dataset(X, Y).standardized()
PRECISION = 0.01


def small(outputs: int = 1, **changed: Any) -> models.MLP:
    return mlp(3, 8, outputs, activation="tanh", precision=PRECISION, seed=2, **changed)


def fitted(model: Any, guide: Callable[[Any], Any] = guides.MeanField, rows: Any = TABLE) -> pyrodrop.Fit:
    return pyrodrop.fit(model, guide(model), rows, steps=3, progress=False, engine="pyro")


def by_hand(module: Any, x: Tensor) -> Tensor:
    """f of every function, ``[S, N, ...]``: the network with the weights in the module, in the units of the data."""
    fs = []
    for model, weights, same, count in zip(module.models, module.weights, module.same, module.counts, strict=True):
        free = {name: model.free[name] for name in model.free}
        for t in range(count):
            of_draw = {**free, **{n: same[n] for n in same}, **{n: weights[n][t] for n in weights}}
            named = {alias: value for name, value in of_draw.items() for alias in model.parameter_names[name]}
            z = (x - model.inputs.loc) / model.inputs.scale
            output = functional_call(model.network, named, (z,), tie_weights=False)
            fs.append(output * model.targets.scale + model.targets.loc)
    return torch.stack(fs)


GUIDES: dict[str, Callable[[Any], Any]] = {
    "dropout": lambda m: guides.BernoulliDropout(m, drop_rate=0.3),
    "theta": lambda m: guides.BernoulliDropout(m, drop_rate=0.3, theta=0.1),
    "dropconnect": lambda m: guides.DropConnect(m, drop_rate=0.3),
    "mean field": guides.MeanField,
    "low rank": guides.LowRank,
    "point": guides.Point,
    "ensemble of dropout": lambda m: guides.Ensemble(m, lambda one: guides.BernoulliDropout(one, drop_rate=0.3), 2),
    "exact last layer": guides.ExactLastLayer,
    "guide of Pyro": AutoNormal,
}


@pytest.mark.parametrize("guide", GUIDES)
def test_the_functions_are_the_network_at_one_weight_per_draw(guide: str) -> None:
    run = fitted(small(2), GUIDES[guide], data.Dataset(X, torch.cat([Y, -Y], 1)).standardized())
    draws, moments = run.module(5, keep="draws", seed=4), run.module(5, seed=4)
    f = by_hand(draws, X)
    torch.testing.assert_close(draws(X), f, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(draws(X), run.predict(X, 5, seed=4).f, rtol=1e-5, atol=1e-3)
    mean, sd = moments(X)
    torch.testing.assert_close(mean, f.mean(0), rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(sd, (1 / PRECISION + f.var(0, correction=0)).sqrt(), rtol=1e-4, atol=1e-3)


def test_probabilities_of_classes_and_moments_of_counts() -> None:
    labels = torch.arange(20) % 4
    run = fitted(small(4, likelihood=likelihoods.Categorical()), rows=(X, labels))
    logits = by_hand(run.module(6), X)
    torch.testing.assert_close(run.module(6)(X), logits.softmax(-1).mean(0))
    torch.testing.assert_close(run.module(6, keep="draws")(X), logits)
    run = fitted(small(likelihood=likelihoods.Poisson()), rows=(X, labels[:, None].float()))
    m = by_hand(run.module(6), X).exp()
    mean, sd = run.module(6)(X)
    torch.testing.assert_close(mean, m.mean(0))
    torch.testing.assert_close(sd, (m.mean(0) + m.var(0, correction=0)).sqrt())
    run = fitted(small(likelihood=likelihoods.Bernoulli()), rows=(X, (labels[:, None] > 1).float()))
    torch.testing.assert_close(run.module(6)(X)[0], by_hand(run.module(6), X).sigmoid().mean(0))


ALL = ("mean", "sd", "quantiles", "draws")  # summaries that `Prediction` has
LIKELIHOODS: dict[str, tuple[likelihoods.Likelihood, int, tuple[str, ...]]] = {
    "heteroscedastic": (likelihoods.HeteroscedasticGaussian(), 2, ALL),
    "log-normal": (likelihoods.HeteroscedasticLogNormal(), 2, ALL),
    "student": (likelihoods.StudentT(), 1, ("mean", "sd", "draws")),
    "poisson": (likelihoods.Poisson(), 1, ("mean", "sd", "draws")),
    "negative binomial": (likelihoods.NegativeBinomial(), 1, ("mean", "sd", "draws")),
    "bernoulli": (likelihoods.Bernoulli(), 1, ("mean", "sd", "probabilities", "draws")),
    "categorical": (likelihoods.Categorical(), 3, ("probabilities", "draws")),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood_has_the_moments_of_predict(name: str) -> None:
    likelihood, outputs, summaries = LIKELIHOODS[name]
    x = normal(20, 3, seed=9)
    y = (1 + x.sum(1, keepdim=True).abs()).round()
    y = torch.arange(20) % 3 if "probabilities" in summaries else y
    y = (y[:, None] > 1).float() if name == "bernoulli" else y
    run = fitted(small(outputs, likelihood=copy.deepcopy(likelihood)), rows=(x, y))
    prediction, got = run.predict(x, 5), run.module(5)(x)
    if "sd" not in summaries:
        torch.testing.assert_close(got, prediction.mean)
        return
    torch.testing.assert_close(got[0], prediction.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[1], prediction.sd, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keep", ["moments", "draws"])
def test_gradients_in_x_are_finite_differences(keep: Any) -> None:
    module = fitted(small(), GUIDES["dropout"]).module(4, keep=keep).double()
    x = X[:3].double().requires_grad_()
    assert torch.autograd.gradcheck(module, x)
    jacobian = torch.func.vmap(torch.func.jacrev(lambda row: module(row[None])[0][0, 0]))(x.detach())
    value = module(x)[0]
    torch.testing.assert_close(jacobian, torch.autograd.grad(value.sum(), x)[0])
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_dtypes_and_strides() -> None:
    wide = fitted(small().double(), rows=data.Dataset(X.double(), Y.double()).standardized()).module(4, keep="draws")
    assert wide(X.double()).dtype == torch.float64
    torch.testing.assert_close(wide(X.double()), by_hand(wide, X.double()))
    module = fitted(small()).module(4, keep="draws")
    turned = X.T.contiguous().T
    torch.testing.assert_close(module(turned), module(X))
    whole = X.round()
    torch.testing.assert_close(module(whole.long()), module(whole), rtol=1e-5, atol=1e-3)
    far = fitted(small(), rows=data.Dataset(X, Y.double() + 1e6).standardized())
    torch.testing.assert_close(far.module(4)(X)[0] - 1e6, far.predict(X, 4).mean - 1e6, rtol=1e-5, atol=1e-3)


def convolutions(drop: float = 0.0) -> nn.Module:
    """With layers whose rules of `torch.vmap` fix the number of rows in a recording."""
    drops = (nn.Dropout2d(drop), nn.Dropout(drop)) if drop else (nn.Identity(), nn.Identity())
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4).eval(), nn.ReLU(), nn.MaxPool2d(2), drops[0], nn.Flatten()),
        *(nn.LayerNorm(36), drops[1], nn.Linear(36, 1)),
    )


def read(net: nn.Module, x: Tensor) -> Any:
    return pyrodrop.read(net, x, likelihood=likelihoods.Gaussian(4.0), weight_decay=1e-4, num_data=len(x))


IMAGES = normal(8, 1, 8, 8, seed=5)
RUNS: dict[str, tuple[Callable[[], Any], Tensor]] = {
    "mlp": (lambda: fitted(small(), GUIDES["dropout"]), X[:8]),
    "convolutions": (lambda: fitted(brought(convolutions()), rows=(IMAGES, normal(8, 1, seed=6))), IMAGES),
    "reading": (lambda: read(convolutions(0.3), IMAGES), IMAGES),
}


def recorded(module: nn.Module, x: Tensor) -> Any:
    return torch.export.export(module, (x[:4],), dynamic_shapes=({0: torch.export.Dim("rows")},))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", RUNS)
def test_torch_export_takes_it_for_any_number_of_rows(name: str) -> None:
    """The program of the file has operations of PyTorch alone."""
    made, x = RUNS[name]
    run = made()
    module, file = run.module(3, x=x), io.BytesIO()
    torch.export.save(recorded(module, x).run_decompositions({}), file)
    file.seek(0)
    program = torch.export.load(file)
    assert not any("pyrodrop" in str(node.target) for node in program.graph.nodes)
    for rows in (x[:1], x):
        prediction, got = run.predict(rows, 3), program.module()(rows)
        scale = float(prediction.mean.abs().max())
        torch.testing.assert_close(got[0], prediction.mean, rtol=0, atol=1e-5 * scale)
        torch.testing.assert_close(got[1], prediction.sd, rtol=0, atol=1e-5 * scale)


@pytest.mark.more
@pytest.mark.parametrize("name", RUNS)
def test_torch_onnx_takes_it_for_any_number_of_rows(name: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    made, x = RUNS[name]
    module = made().module(3, keep="draws", x=x)
    rows = {0: torch.export.Dim("rows")}
    program: Any = torch.onnx.export(module, (x[:4],), dynamo=True, dynamic_shapes=(rows,), verbose=False)
    session = runtime.InferenceSession(program.model_proto.SerializeToString())
    for some in (x[:1], x):
        (f,) = session.run(None, {"x": some.numpy()})
        np.testing.assert_allclose(f, module(some).numpy(), rtol=0, atol=1e-5 * abs(f).max())


def test_a_module_is_kept_and_copied_like_any_other() -> None:
    """Its functions are its tensors; the mode of normalisations and of read dropout does not change."""
    first, second = (read(convolutions(0.3), IMAGES).module(3, keep="draws", seed=seed, x=IMAGES) for seed in (1, 2))
    f = first(IMAGES)
    assert not torch.equal(second(IMAGES), f)
    second.load_state_dict(first.state_dict())
    copies: list[Any] = [copy.deepcopy(first), pickle.loads(pickle.dumps(first))]
    for module in (second, *copies, torch.compile(first, backend="eager"), first.train()):
        assert torch.equal(module(IMAGES), f)
    normalised = fitted(brought(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))).module(3)
    assert torch.equal(normalised(X)[0], normalised.train()(X)[0])
    torch.testing.assert_close(first.double()(IMAGES.double()), f.double(), rtol=1e-4, atol=1e-5)


def test_replicates_and_draws_of_chains_are_one_mixture() -> None:
    model = small()
    runs = pyrodrop.fit_replicates(model, guides.MeanField(model), TABLE, count=3, steps=3, progress=False)
    runs.failed[1] = 2
    module = runs.module(7, keep="draws", seed=3)
    torch.testing.assert_close(module(X), by_hand(module, X), rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(module(X), runs.predict(X, 7, seed=3).f, rtol=1e-5, atol=1e-3)
    model.standardize(TABLE)
    samples = {name: normal(1, 7, *value.shape, seed=8) for name, value in model.weight_sites().items()}
    stats = {name: torch.zeros(1, 7) for name in ("lp", "energy", "acceptance_rate", "diverging", "n_steps")}
    run = Sampled(model.eval(), samples, stats, TABLE, {})
    module = run.module(7, keep="draws")
    assert torch.equal(module.weights[0]["layers.0.weight"], samples["layers.0.weight"][0])
    torch.testing.assert_close(module(X), by_hand(module, X), rtol=1e-5, atol=1e-3)


def test_what_is_refused() -> None:
    run = read(convolutions(0.3), IMAGES)
    with pytest.raises(ValueError, match="x must be a few rows of x"):
        run.module()
