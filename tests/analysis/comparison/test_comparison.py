"""Comparisons: differences against sums by hand, and refusals of what cannot be compared."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.comparison import comparison
from pyrodrop.analysis.comparison.held_out import kfold
from pyrodrop.analysis.comparison.loo import loo
from pyrodrop.analysis.gp import GaussianProcess
from pyrodrop.data import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")


def test_sorted_by_held_out_density_with_paired_differences(small: Any) -> None:
    test = small.waves(30, seed=1)
    fits = {
        "dropout": small.fitted(small.dropout),
        "mean field": small.fitted(guides.MeanField),
        "ensemble": small.fitted(guides.Point, count=3),
        "process": GaussianProcess(small.waves(), "matern-5/2"),
    }
    table = pyrodrop.compare(fits, test, num_samples=200)
    values = {name: fit.predict(test.x, 200).log_density(test.y).double() for name, fit in fits.items()}
    order = sorted(values, key=lambda name: -float(values[name].mean()))
    assert list(table.rows) == order
    assert table.best == order[0]
    for name, row in table.to_dict().items():
        difference = values[name] - values[order[0]]
        assert row["log_density"] == pytest.approx(float(values[name].mean()), rel=1e-5)
        assert row["difference"] == pytest.approx(float(difference.mean()), rel=1e-4, abs=1e-6)
        assert row["difference_se"] == pytest.approx(float(difference.std()) / math.sqrt(30), rel=1e-4, abs=1e-6)
        assert "elbo" not in row
    assert any("'dropout' is up_to_constant" in note and "'mean field' exact" in note for note in table.notes)
    assert "log density" in str(table)


def test_elbos_within_a_convention(small: Any) -> None:
    fits = {"one": small.fitted(guides.MeanField), "two": small.fitted(guides.MeanField, steps=5)}
    table = pyrodrop.compare(fits, by="elbo")
    assert list(table.rows) == ["one", "two"]
    elbos = {name: fit.elbo(100) for name, fit in fits.items()}
    assert table.rows["two"]["difference"] == pytest.approx(elbos["two"].value - elbos["one"].value)
    assert table.rows["two"]["difference_se"] == pytest.approx(math.hypot(elbos["two"].se, elbos["one"].se))
    assert pyrodrop.compare(fits, small.waves(9), num_samples=20).rows["one"]["elbo"] == elbos["one"].value


def mlp(width: int = 4, scale: float = 1.0, prior: Any = None) -> Any:
    return models.MLP([1, width, 1], prior=prior or priors.Gaussian(scale), likelihood=likelihoods.Gaussian(1.0))


def small_dropout(model: Any) -> Any:
    return guides.BernoulliDropout(model, 0.1, mask_input=True)


def several(make: Any) -> Any:
    return lambda model: guides.Ensemble(model, make, 2)


def regularised(kind: str) -> Any:
    penalty = {"square": lambda m: m.square().sum(), "absolute": lambda m: m.abs().sum()}[kind]
    return guides.from_noise(lambda m, e: m + e, normal, regularizer=penalty)


def normal(loc: torch.Tensor) -> Any:
    return dist.Normal(0.0, 0.1).expand(loc.shape).to_event(loc.dim())


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        ((small_dropout, mlp), (guides.MeanField, mlp), r"'a' is up_to_constant.*at 'layers.0.weight'.*'b' exact"),
        ((small_dropout, mlp), (small_dropout, lambda: mlp(width=5)), "of 8 weights.*of 10 weights"),
        ((guides.SparseDropout, lambda: mlp(prior=priors.LogUniform())), (guides.MeanField, mlp), "improper.*'b' exact"),
        ((lambda m: guides.VariationalDropout(m, "A"), lambda: mlp(prior=priors.LogUniform())),
         (lambda m: guides.VariationalDropout(m, "B"), lambda: mlp(prior=priors.LogUniform())), "units.*weights"),
        ((several(lambda m: guides.VariationalDropout(m, "A")), lambda: mlp(prior=priors.LogUniform())),
         (lambda m: guides.VariationalDropout(m, "B"), lambda: mlp(prior=priors.LogUniform())), "5 units.*8 weights"),
        ((several(lambda m: guides.VariationalDropout(m, "A")), lambda: mlp(prior=priors.LogUniform())),
         (several(lambda m: guides.VariationalDropout(m, "B")), lambda: mlp(prior=priors.LogUniform())), "units.*weights"),
        ((lambda m: guides.VariationalDropout(m, "A"), lambda: mlp(7, prior=priors.LogUniform())),
         (lambda m: guides.VariationalDropout(m, "B"), lambda: mlp(4, prior=priors.LogUniform())), "8 units.*8 weights"),
        ((regularised("square"), mlp), (regularised("absolute"), mlp), "regulariser replaces.*regulariser replaces"),
        ((lambda m: guides.ConcreteDropout(m, mask_input=True), mlp), (small_dropout, mlp), "its relaxation.*of 8 weights"),
    ],
    ids=[
        "theta=0 and exact", "two widths", "improper and proper", "type A and B", "type A in an ensemble and B",
        "ensembles of A and B", "as many units as weights", "two regularisers", "relaxed and not",
    ],
)  # fmt: skip
def test_elbos_of_two_conventions_are_refused_by_name(small: Any, one: Any, two: Any, said: str) -> None:
    fits = {name: small.fitted(make, model(), steps=2) for name, (make, model) in {"a": one, "b": two}.items()}
    with pytest.raises(ValueError, match=rf"(?s){said}.*Use held-out log density"):
        pyrodrop.compare(fits, by="elbo")


def test_the_constant_of_atoms_is_free_of_the_prior(small: Any) -> None:
    """ELBOs at theta = 0 differ as those at a small theta do, which are exact."""
    theta, differences = 1e-4, []
    for at in (0.0, theta):
        values = []
        for scale in (0.5, 2.0):
            torch.manual_seed(0)
            model = mlp(scale=scale)
            guide = guides.BernoulliDropout(model, 0.1, theta=at)
            values.append(pyrodrop.Fit(model, guide, small.waves(), torch.zeros(0, 3), {}).elbo(50).value)
        differences.append(values[1] - values[0])
    assert differences[0] == pytest.approx(differences[1], abs=0.05)


def test_fits_of_the_same_y_at_other_x_are_refused(small: Any) -> None:
    data = small.waves()
    other = Dataset(data.x + 0.01, data.y)
    fits = {"one": small.fitted(guides.MeanField, data=data, steps=2)}
    fits["two"] = small.fitted(guides.MeanField, data=other, steps=2)
    with pytest.raises(ValueError, match="'one' and 'two' are for different data"):
        pyrodrop.compare(fits, by="elbo")
    same = Dataset(data.x.double(), data.y.clone())
    fits["two"] = pyrodrop.Fit(fits["one"].model, fits["one"].guide, same, torch.zeros(0, 3), {})
    assert fits["two"].fingerprint == fits["one"].fingerprint


def test_a_fingerprint_is_of_values_names_and_order() -> None:
    x, y = torch.randn(6, 2), torch.randn(6, 1)
    own = Dataset(x, y).fingerprint
    assert Dataset(x.clone(), y[:, 0]).fingerprint == own
    assert Dataset(x.double(), y.double()).fingerprint == own
    assert Dataset(x.T.contiguous().T, y).fingerprint == own
    changed = x.clone()
    changed[3, 1] += 1e-6
    others = [
        Dataset(changed, y), Dataset(x, 2 * y), Dataset(x.flip(0), y.flip(0)), Dataset((x, x), y), Dataset((x,), y),
        Dataset({"a": x, "b": x}, y), Dataset({"b": x, "c": x}, y), Dataset(x.reshape(6, 1, 2), y), Dataset(x.long(), y),
    ]  # fmt: skip
    assert len({own, *(data.fingerprint for data in others)}) == len(others) + 1
    large = torch.arange(3_000_000.0).reshape(3, -1)
    assert Dataset(large, y[:3]).fingerprint != Dataset(large.flip(1), y[:3]).fingerprint


def test_the_same_constant_left_out_may_be_compared(small: Any) -> None:
    rates = {str(rate): small.fitted(lambda m, r=rate: guides.BernoulliDropout(m, r), mlp()) for rate in (0.1, 0.3)}
    assert set(pyrodrop.compare(rates, by="elbo").rows) == {"0.1", "0.3"}
    other = small.fitted(small_dropout, mlp(), small.waves(seed=3), steps=2)
    with pytest.raises(ValueError, match=r"'0.1' and 'x' are for different data"):
        pyrodrop.compare(rates | {"x": other}, by="elbo")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("prior", "noted"), [(priors.ARD(), True), (priors.ARD("layer", dist.InverseGamma(1.0, 0.1)), False)]
)
def test_a_bound_of_a_maximised_evidence_is_noted(small: Any, prior: Any, noted: bool) -> None:
    chosen, fixed = (small.fitted(guides.MeanField, mlp(prior=one)) for one in (prior, priors.Gaussian(1.0)))
    fits = {"chosen": chosen, "fixed": fixed}
    table = pyrodrop.compare(fits, by="elbo")
    assert any("ELBO of chosen: a bound of the evidence at its largest" in note for note in table.notes) == noted
    assert ("empirical Bayes" in str(chosen.elbo(2).convention)) == noted
    assert str(fixed.elbo(2).convention) == "exact"


def test_by_loo_for_those_that_have_one(small: Any) -> None:
    good, exact = small.conjugate(1.0)
    wide, _ = small.conjugate(2.0)
    narrow, _ = small.conjugate(0.25)
    dropped = pyrodrop.Fit(good.model, guides.BernoulliDropout(good.model, 0.1).double(), good.data, good.history, {})
    fits = {"narrow": narrow, "good": good, "wide": wide, "dropout": dropped}
    table = pyrodrop.compare(fits, by="loo", num_samples=3000)
    assert set(list(table.rows)[:2]) == {"good", "wide"}
    assert abs(table.rows["good"]["elpd"] - float(exact.sum())) < 0.15
    elpds = torch.stack([loo(fit, num_samples=3000).pointwise[0] for fit in (good, wide)])
    weights = [table.rows["good"]["weight"], table.rows["wide"]["weight"]]
    assert weights == pytest.approx(comparison.stacking_weights(elpds).tolist(), rel=1e-9)
    assert sum(weights) == pytest.approx(1)
    assert table.rows["narrow"]["elpd"] is None
    assert any(note.startswith("no LOO of narrow: the largest k-hat is") for note in table.notes)
    assert any(note.startswith("no LOO of dropout: log p - log q does not exist") for note in table.notes)


def test_kfold_is_the_fits_without_each_fold(small: Any) -> None:
    """Of a linear regression by a guide that is its exact posterior's family, against refits by hand."""
    torch.manual_seed(1)
    x = torch.randn(31, 1)
    data = Dataset(x, 2 * x + 0.5 * torch.randn(31, 1))
    model = models.from_module(
        torch.nn.Linear(1, 1, bias=False), prior=priors.Gaussian(3.0), likelihood=likelihoods.Gaussian(4.0)
    )
    settings = {"steps": 400, "lr": 2e-2, "progress": False}
    found = kfold(model, guides.MeanField(model), data, 5, num_samples=2000, **settings)
    assert int((found.folds < 0).sum()) == 1
    assert all(int((found.folds == f).sum()) == 6 for f in range(5))
    want = 0.0
    for f in range(5):
        kept, held = found.folds != f, found.folds == f
        variance = 1 / (1 / 9 + 4 * x[kept].square().sum())
        mean = variance * 4 * (x[kept] * data.y[kept]).sum()
        distribution = torch.distributions.Normal(mean * x[held], (x[held] ** 2 * variance + 0.25).sqrt())
        want += float(distribution.log_prob(data.y[held]).sum())
    assert found.elpd == pytest.approx(want, abs=0.3)
    assert float(found.pointwise[found.folds >= 0].sum()) == pytest.approx(found.elpd)
    with pytest.raises(ValueError, match=r"k is the number of folds and must be a whole number from 2 to 31; got"):
        kfold(model, guides.MeanField(model), data, 1, **settings)


@pytest.mark.parametrize("name", ["count", "models"])
def test_folds_make_their_replicates_themselves(small: Any, name: str) -> None:
    fit = small.fitted(small.dropout)
    with pytest.raises(TypeError, match=f"multiple values .*'{name}'"):
        kfold(fit.model, fit.guide, fit.data, 2, steps=1, **{name: 3})


def test_elbos_under_different_priors_do_not_choose_between_them() -> None:
    """The first site whose priors differ is named; equal priors, and likelihoods that training has changed, say nothing."""
    x = torch.linspace(-1, 1, 20)[:, None]

    def run(scale: float) -> Any:
        prior = {"layers.1.*": priors.Gaussian(scale), "*": priors.Gaussian()}
        model = models.MLP([1, 4, 1], prior=prior, likelihood=likelihoods.Gaussian())
        return pyrodrop.fit(model, guides.MeanField(model), (x, x**2), steps=2)

    same = pyrodrop.compare({"a": run(1.0), "b": run(1.0)}, by="elbo")
    other = pyrodrop.compare({"a": run(1.0), "b": run(2.0)}, by="elbo")
    assert not any("different priors" in note for note in same.notes)
    (note,) = (note for note in other.notes if "different priors" in note)
    assert "'a' and 'b'" in note
    assert "layers.1.weight: Gaussian(scale=1), Gaussian(scale=2)" in note
