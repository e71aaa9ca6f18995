"""Convert a fit to an ArviZ data tree.

    posterior                   f            [chain, draw, obs_id]            the function at the training points
                                noise_sd     [chain, draw]                    if training learned it
                                drop_rate | alpha   [chain, draw, layer]      if learned; the same number for all draws
                                weights by name, if requested
    posterior_predictive        y            [chain, draw, obs_id]
    log_likelihood              y            [chain, draw, obs_id]            ln p(y_n | f_n), where k-hat is at most 0.7
    observed_data               y            [obs_id]
    constant_data               x            [obs_id] or [obs_id, feature]
                                noise_sd, drop_rate | alpha                   if the user set them
    predictions                 f, y         [chain, draw, pred_id]
    predictions_constant_data   x, and y_observed if the test data have y
    sample_stats                lp, log_q    [chain, draw]                    if both densities exist
                                energy, diverging, acceptance_rate, n_steps   of the exact posterior, with lp
    log_prior                   by site      [chain, draw]                    if sample_stats has lp

Several fits by name are joined in one tree, see `pyrodrop.analysis.arviz.several`.
All values are in the units of the data. f has a further dimension ``output`` and y ``target`` if there are several; the
dimensions of images and sequences are numbered: ``f_dim_0``, ``f_dim_1`` ... The f of a classifier are logits. The log
likelihood is one number per example. An x of several tensors gives a variable for each: ``x_0``, ``x_1``, or ``x_NAME``.
The guide determines the name of the rates (`guides.RateKind`). Draws are independent samples of q, so one fit is one chain,
whose r_hat and ess have no meaning. Restarts are several chains; their r_hat shows whether they agree in the posterior.
Chains of `pyrodrop.sample` are Markov chains.

ArviZ's `psense` and `psense_summary` need a tree with ``log_prior``, and with ``log_likelihood`` for the power of the
likelihood: they weight the draws by powers of the prior or of the likelihood. For draws of q the result is the sensitivity
of q. It equals the sensitivity of the posterior for draws of `pyrodrop.sample`, and approximately if k-hat is below 0.7. To
scale the prior of some weights only, pass ``prior_var_names``, the names of their sites.

The groups are those of the ArviZ schema, https://python.arviz.org/en/stable/schema/schema.html.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from torch import Tensor

import pyrodrop
from pyrodrop.analysis.arviz.program_tree import program_tree, sampled_tree, scalar_or_array
from pyrodrop.analysis.arviz.sampled_draws import sampled_draws
from pyrodrop.analysis.arviz.several import one_tree
from pyrodrop.analysis.comparison.comparison import check_fits
from pyrodrop.analysis.comparison.draws import Draws, Predictive, check_trained_on, draws_of
from pyrodrop.analysis.comparison.khat import LEAST, LIMIT, k_hat
from pyrodrop.analysis.comparison.predicts import Predicts
from pyrodrop.checks import Count, Flag, Inputs, Seed, checked, named_parts, shown
from pyrodrop.data import Data, Dataset
from pyrodrop.data.dataset import check_inputs
from pyrodrop.data.loader import Loader
from pyrodrop.guides.guide import ALPHA
from pyrodrop.likelihoods import Gaussian
from pyrodrop.models import NetworkModel
from pyrodrop.sampling import Sampled
from pyrodrop.threads import exclusive, outside
from pyrodrop.training.problem import describe
from pyrodrop.training.replicates import Replicates
from pyrodrop.training.result import Fit

_log = logging.getLogger("pyrodrop")

_ELBO_DRAWS = 100
_ABOUT_DRAWS = "independent draws from the approximate posterior; a chain is a restart"
_ABOUT_CHAINS = "draws of the exact posterior; a chain is a Markov chain"
Variables: TypeAlias = dict[Hashable, Any]


@checked
@exclusive()
@outside("to_arviz")
def to_arviz(
    fit: Predicts | Mapping[str, Predicts],
    train: Data | Mapping[str, Any] | None = None,
    test: Data | Inputs | None = None,
    num_samples: Annotated[int, Count("the number of draws per chain")] = 1000,
    weights: Annotated[bool, Flag("whether the group posterior contains all weights")] = False,
    *,
    log_likelihood: Annotated[
        bool, Flag("whether the tree has the group log_likelihood, None being for where it can be trusted,")
    ]
    | None = None,
    seed: Seed = 0,
) -> xr.DataTree:
    """Convert a fit to an ArviZ data tree.

    Args:
        fit: a `Fit`, `Replicates` that are restarts on the same data, a `Sampled`, or a Gaussian process
            of `pyrodrop.analysis.gp`; or a mapping from names to any of these on the same data. The tree of a mapping has a
            dimension ``model`` and the variables that all of them have; its attribute ``left_out`` names the others, and
            ``tree.sel(model=NAME)`` is the tree of one model.
        train: the training data; for a Pyro program, the mapping of its arguments. None if `fit` contains them, which it
            does not after loading or if a loader read them. The tree of a program has all sites by their names, with plates
            as dimensions.
        test: further points for the group ``predictions``: x in the form of the training data's x, or a pair (x, y).
        num_samples: number of draws per chain; for a `Sampled` at most its number of draws.
        weights: whether the group ``posterior`` contains all weights and latent hyperparameters of their priors.
        log_likelihood: whether the tree has the group of this name. ArviZ's ``loo`` and ``compare`` read it and assume draws
            of the exact posterior: for draws of an approximation their results are wrong, without a warning. If None, the
            tree has it for draws of an exact posterior, or if k-hat of p / q is known and at most 0.7; otherwise the
            attribute ``log_likelihood_missing`` and a logged warning give the reason. Use `pyrodrop.analysis.loo`, which
            corrects for the approximation, or held-out data.
        seed: seed of the draws of the first chain; chain c uses ``seed + c``.

    Returns:
        The tree in the docstring of `pyrodrop.analysis.arviz.bridge`. Its attributes describe guide, prior and model, and
        include the ELBO with its standard error, and k-hat of p / q or ``khat_missing``, the reason why there is none.
        ``log_likelihood_missing`` and ``posterior_predictive_missing`` give the reasons why the tree does not have the
        group; a program whose observations have a distribution without samples has no ``posterior_predictive``.

    Raises:
        TypeError: `fit` is none of these, or `train` is needed and is no data set.
        ValueError: `train` are other data than those of the fit; a mapping has no fits, or fits with different data;
            replicates have different data or models, so that they are not chains of one posterior; `test` has another form
            than the training data or is passed for a Pyro program; `weights` is True for a Gaussian process.

    Example:
        >>> import torch, pyrodrop
        >>> _ = torch.manual_seed(0)
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> model = pyrodrop.models.MLP(
        ...     [1, 8, 1], prior=pyrodrop.priors.Gaussian(), likelihood=pyrodrop.likelihoods.Gaussian(precision=10.0)
        ... )
        >>> fit = pyrodrop.fit(model, pyrodrop.guides.MeanField(model), (x, x**2), steps=5)
        >>> tree = pyrodrop.to_arviz(fit, (x, x**2), num_samples=30)
        >>> "log_likelihood" in tree.children, "posterior" in tree.children
        (False, True)
        >>> tree.attrs["log_likelihood_missing"]
        'k-hat of p / q is ..., above 0.7'
    """
    if isinstance(fit, Mapping):
        check_fits(fit, "fit")
        tree = one_tree(
            {n: _tree(run, train, test, num_samples, weights, log_likelihood, seed) for n, run in fit.items()}
        )
    else:
        tree = _tree(fit, train, test, num_samples, weights, log_likelihood, seed)
    if "log_likelihood_missing" in tree.attrs:
        _log.warning(
            "to_arviz leaves the group log_likelihood out: %s. ArviZ's loo would take these draws for those of the exact "
            "posterior; %s, and log_likelihood=True adds the group, if the observations have densities",
            tree.attrs["log_likelihood_missing"],
            "pyrodrop.analysis.loo does not" if "sample_stats" in tree.children else "held-out data need none",
        )
    return tree


def _tree(
    fit: Any, train: Any, test: Any, num_samples: int, weights: bool, log_likelihood: bool | None, seed: int
) -> xr.DataTree:
    """The tree of one fit, replicates, draws or Gaussian process."""
    first = fit[0] if isinstance(fit, Replicates) else fit
    if isinstance(first, Fit) and not isinstance(first.model, NetworkModel):
        if test is not None:
            raise ValueError(f"test must be None for a Pyro program, which has fit.predict(...); got {shown(test)}")
        many = fit if isinstance(fit, Replicates) else Replicates([first])
        finite = [replicate for number, replicate in enumerate(many) if number not in many.failed]
        tree = program_tree(finite, train, num_samples, seed)
        return _finished(*tree, log_likelihood, 1.0, seed, _ABOUT_DRAWS)
    if isinstance(fit, Sampled) and not isinstance(fit.model, NetworkModel):
        if train is not None or test is not None:
            raise ValueError("train and test must be None for draws of a Pyro program, which have sampled.predict(...)")
        return _finished(*sampled_tree(fit, num_samples, seed), log_likelihood, 1.0, seed, _ABOUT_CHAINS)
    train = getattr(first, "data", None) if train is None else train
    if not isinstance(train, Dataset) and (train is None or isinstance(train, Mapping | Loader)):
        missing = " that this fit does not hold" if not isinstance(train, Mapping) else ""
        raise TypeError(f"train must be the training data{missing}, a Dataset or a pair (x, y); got {shown(train)}")
    train = Dataset.of(train, "train")
    test_x, test_y = _points(test, train)
    about = _ABOUT_DRAWS
    if isinstance(fit, Fit | Replicates):
        chains = _chains(fit, train)
        for chain in chains:
            check_trained_on(chain, train, "train")
        draws = [
            draws_of(chain, train, test_x, num_samples, keep=weights, seed=seed + number)
            for number, chain in enumerate(chains)
        ]
        groups = _groups([_posterior(chain, chain_draws) for chain, chain_draws in zip(chains, draws, strict=True)])
        attrs = _attrs(chains, draws, train)
        parts = [(chain_draws.train, chain_draws.test) for chain_draws in draws]
        constants = {name: value for name, (value, learned) in _points_of(chains[0]).items() if not learned}
        if all(chain_draws.log_ratio is not None for chain_draws in draws):
            stats = {"lp": _stack([o.log_joint for o in draws]), "log_q": _stack([o.log_q for o in draws])}
            groups["sample_stats"] = xr.Dataset({n: (("chain", "draw"), v) for n, v in stats.items()})
            priors = {n: _stack([chain_draws.log_prior[n] for chain_draws in draws]) for n in draws[0].log_prior}
            groups["log_prior"] = xr.Dataset({n: (("chain", "draw"), v) for n, v in priors.items()})
    elif isinstance(fit, Sampled):
        parts, posteriors, stats, log_prior, attrs = sampled_draws(
            fit, train, test_x, num_samples, weights=weights, seed=seed
        )
        groups, constants, about = _groups(posteriors), _constants(fit.model), _ABOUT_CHAINS
        attrs |= {"prior": _priors(fit.model), "model": describe(fit.model)}
        groups["sample_stats"] = xr.Dataset({n: (("chain", "draw"), v.numpy()) for n, v in stats.items()})
        groups["log_prior"] = xr.Dataset({n: (("chain", "draw"), v.numpy()) for n, v in log_prior.items()})
    else:
        from pyrodrop.analysis.arviz.gp_draws import gp_draws  # GPyTorch is slow to import

        own_part, posterior, attrs = gp_draws(fit, train, test_x, num_samples, weights=weights, seed=seed)
        groups, parts, constants = _groups([posterior]), [own_part], {}
    train_parts = [chain_draws for chain_draws, _ in parts]
    groups["posterior"] = groups["posterior"].assign(_f(train_parts, "obs_id"))
    groups["posterior_predictive"] = xr.Dataset(_y(train_parts, "obs_id"))
    groups["log_likelihood"] = xr.Dataset(
        {"y": (("chain", "draw", "obs_id"), _stack([chain_draws.log_likelihood for chain_draws in train_parts]))}
    )
    groups["observed_data"] = xr.Dataset(_observed("y", train.y, "obs_id"))
    groups["constant_data"] = xr.Dataset(_inputs(train.x, "obs_id") | constants)
    if test_x is not None:
        test_parts = [further for _, further in parts if further is not None]
        groups["predictions"] = xr.Dataset(_f(test_parts, "pred_id") | _y(test_parts, "pred_id"))
        constant = _inputs(test_x, "pred_id")
        if test_y is not None:
            _check_observed(test_y, test_parts[0].y)
            constant |= _observed("y_observed", test_y, "pred_id")
        groups["predictions_constant_data"] = xr.Dataset(constant)
    power = fit.settings.get("likelihood_power", 1.0) if isinstance(fit, Sampled) else 1.0
    return _finished(groups, attrs, log_likelihood, power, seed, about)


def _finished(
    groups: dict[str, xr.Dataset],
    attrs: dict[str, Any],
    log_likelihood: bool | None,
    power: float,
    seed: int,
    about: str,
) -> xr.DataTree:
    """The tree, without the group ``log_likelihood`` if it is not requested or not reliable."""
    if log_likelihood and "log_likelihood" not in groups:
        raise ValueError(f"log_likelihood must be None or False for this fit: {attrs['khat_missing']}; got True")
    reason = _not_exact(attrs, power) if log_likelihood is None else ""
    if reason:
        attrs["log_likelihood_missing"] = reason
    left_out = ["log_likelihood"] if reason or log_likelihood is False else []
    tree = xr.DataTree.from_dict({name: _numbered(group) for name, group in groups.items() if name not in left_out})
    tree.attrs.update(attrs | {"seed": seed, "library": "pyrodrop", "version": pyrodrop.__version__, "draws": about})
    return tree


def _points(test: Any, train: Dataset) -> tuple[Any, Tensor | None]:
    """x and y of the further points. A tuple is a pair (x, y), unless the x of the training data is a tuple of tensors."""
    if test is None:
        return None, None
    several = (
        isinstance(test, tuple) and isinstance(train.x, tuple) and all(isinstance(tensor, Tensor) for tensor in test)
    )
    only_x = isinstance(test, Tensor | Mapping) or hasattr(test, "__array__")  # an array or a table of pandas
    data = None if only_x or several else Dataset.of(test, "test")
    x, y = (check_inputs(test, "test"), None) if data is None else (data.x, data.y)
    if named_parts(x).keys() != named_parts(train.x).keys():
        raise ValueError(
            "the points of `test` must have the form of the training data's x, "
            f"{', '.join(named_parts(train.x))}; got {', '.join(named_parts(x))}"
        )
    return x, y


def _check_observed(y: Tensor, drawn: Tensor) -> None:
    """Raise a ValueError unless the observations of `test` have the shape of the draws ``[S, N, ...]`` of y."""
    want = drawn.shape[1:]
    if y.shape != want and not (y.dim() == 1 and want == (len(y), 1)) and not (y.dim() == 2 and want == y.shape[:1]):
        raise ValueError(f"test must have a y of the shape {list(want)} of the predictions; got {list(y.shape)}")


def _chains(fit: Fit | Replicates, train: Dataset) -> list[Fit]:
    """The fits that are the chains of one posterior."""
    if isinstance(fit, Fit):
        return [fit]
    chains = [replicate for number, replicate in enumerate(fit) if number not in fit.failed]
    for number, chain in enumerate(chains):
        if chain.fingerprint is not None and chain.fingerprint != train.fingerprint:
            raise ValueError(
                f"chains must be restarts on the same data; replicate {number} was trained on other data than `train`. "
                "Make a tree of each replicate instead"
            )
        if _statement(chain) != _statement(chains[0]):
            raise ValueError(
                f"chains must be restarts of one model and guide; replicates 0 and {number} are "
                f"{_statement(chains[0])} and {_statement(chain)}"
            )
    return chains


def _statement(fit: Fit) -> str:
    """A description of guide, priors and likelihood, without learned values."""
    likelihood: Any = fit.model.likelihood  # type: ignore[attr-defined]
    kinds = [type(layer).__name__ for layer in (likelihood, getattr(likelihood, "likelihood", likelihood))]
    learned = getattr(likelihood, "learned", False)
    return "; ".join(
        [describe(fit.guide), _priors(fit.model), " of ".join(kinds) if learned else likelihood.describe()]
    )


def _priors(model: Any) -> str:
    assert isinstance(model, NetworkModel)
    descriptions = {name: prior.describe() for name, prior in model.priors.items()}
    if len(set(descriptions.values())) == 1:
        return next(iter(descriptions.values()))
    return ", ".join(f"{name}: {prior}" for name, prior in descriptions.items())


def _posterior(fit: Fit, draws: Draws) -> Variables:
    """Learned values of one chain, without the dimension of chains: point estimates repeated for each draw, and weights."""
    count = len(draws.train.f)
    variables: Variables = {
        name: value.expand_dims(draw=count) for name, (value, learned) in _points_of(fit).items() if learned
    }
    for site, drawn in draws.sites.items():
        variables[site] = ("draw", *(f"{site}_dim_{d}" for d in range(drawn.dim() - 1))), drawn.numpy()
    return variables


def _points_of(fit: Fit) -> dict[str, tuple[xr.DataArray, bool]]:
    """The noise's standard deviation and the rates, and whether training learned them."""
    model, guide = fit.model, fit.guide
    assert isinstance(model, NetworkModel)
    learned = getattr(model.likelihood, "learned", False)
    means_of = {name: (value, learned) for name, value in _constants(model).items()}
    rates: Mapping[str, Any] = guide.rates() if hasattr(guide, "rates") else {}
    if rates:
        kind = getattr(guide, "rate_kind", ALPHA)
        text = kind.meaning
        values = [torch.as_tensor(rate).double() for rate in rates.values()]
        if any(value.numel() > 1 for value in values):
            text += ", mean over the layer's"
        means = xr.DataArray(
            [float(value.mean()) for value in values],
            dims="layer",
            coords={"layer": list(rates)},
            attrs={"long_name": text},
        )
        means_of[kind.name] = means, kind.learned
    return means_of


def _constants(model: NetworkModel) -> dict[str, xr.DataArray]:
    """The standard deviation of Gaussian noise: one number, or one per column of y."""
    if not isinstance(model.likelihood, Gaussian):
        return {}
    precision: Tensor = model.likelihood.precision  # type: ignore[assignment]
    sd = precision.detach().double().cpu().numpy() ** -0.5
    return {"noise_sd": xr.DataArray(sd, dims=("target",) * sd.ndim, attrs={"long_name": "standard deviation of y"})}


def _groups(chains: Sequence[Variables]) -> dict[str, xr.Dataset]:
    return {"posterior": xr.concat([xr.Dataset(chain) for chain in chains], dim="chain")}


def _attrs(chains: Sequence[Fit], draws: Sequence[Draws], train: Dataset) -> dict[str, Any]:
    """Attributes that describe the fits; arrays if there are several chains."""
    elbos = [chain.elbo(_ELBO_DRAWS, data=train) for chain in chains]
    first = chains[0]
    attrs: dict[str, Any] = {
        "guide": describe(first.guide),
        "prior": _priors(first.model),
        "model": describe(first.model),
    }
    attrs |= {name: first.settings[name] for name in ("estimator", "steps") if name in first.settings}
    if all("seed" in chain.settings for chain in chains):
        attrs["training_seed"] = scalar_or_array([chain.settings["seed"] for chain in chains])
    attrs["elbo"] = scalar_or_array([elbo.value for elbo in elbos])
    attrs["elbo_se"] = scalar_or_array([elbo.se for elbo in elbos])
    attrs["elbo_convention"] = str(elbos[0].convention)
    count = len(draws[0].train.f)
    missing = draws[0].no_density or (f"{count} draws, fewer than {LEAST}" if count < LEAST else "")
    ratios = [None if missing else chain_draws.log_ratio for chain_draws in draws]
    attrs["khat"] = scalar_or_array([math.nan if ratio is None else k_hat(ratio) for ratio in ratios])
    if missing:
        attrs["khat_missing"] = missing
    return attrs


def _not_exact(attrs: Mapping[str, Any], power: float) -> str:
    """The reason, from a tree's attributes, why draws may not represent the exact posterior; empty if they do."""
    if power != 1:
        return f"the draws are of a posterior with likelihood_power {power:g}"
    if "khat_missing" in attrs:
        return f"there is no k-hat of p / q, {attrs['khat_missing']}"
    if "khat" in attrs:
        worst = float(np.max(attrs["khat"]))
        return "" if worst <= LIMIT else f"k-hat of p / q is {worst:.2f}, above {LIMIT}"
    kind = attrs.get("log_evidence_kind", "exact")  # of a Gaussian process; draws of `pyrodrop.sample` have none
    return (
        "" if kind == "exact" else f"the posterior of this Gaussian process is an approximation without k-hat ({kind})"
    )


def _f(parts: Sequence[Predictive], points: str) -> Variables:
    return {"f": _named("f", [predictive.f for predictive in parts], points, "output")}


def _y(parts: Sequence[Predictive], points: str) -> Variables:
    return {"y": _named("y", [predictive.y for predictive in parts], points, "target")}


def _named(name: str, values: Sequence[Tensor], points: str, last: str) -> tuple[tuple[str, ...], Any]:
    """Stack chains; the dimensions of one example come last."""
    stacked = _stack(values)
    if stacked.ndim == 4 and stacked.shape[-1] == 1:
        stacked = stacked[..., 0]
    return ("chain", "draw", points, *_of_example(name, stacked.ndim - 3, last)), stacked


def _observed(name: str, y: Tensor, points: str) -> Variables:
    values = y[:, 0] if y.dim() == 2 and y.shape[1] == 1 else y
    return {name: ((points, *_of_example("y", values.dim() - 1, "target")), values.cpu().numpy())}


def _inputs(x: Inputs, points: str) -> Variables:
    """A variable for every tensor of x; a single tensor with one column becomes a vector."""
    variables: Variables = {}
    for name, tensor in named_parts(x).items():
        alone = isinstance(x, Tensor)
        values = tensor[:, 0] if alone and tensor.dim() == 2 and tensor.shape[1] == 1 else tensor
        dims = _of_example(name, values.dim() - 1, "feature" if alone else f"{name}_dim_0")
        variables[name] = (points, *dims), values.cpu().numpy()
    return variables


def _of_example(name: str, count: int, only: str) -> tuple[str, ...]:
    """Names of the dimensions of one example: `only` if there is one dimension, else numbered."""
    return (only,) if count == 1 else tuple(f"{name}_dim_{d}" for d in range(count))


def _stack(values: Sequence[Tensor | None]) -> Any:
    return np.stack([value.detach().cpu().numpy() for value in values if value is not None])


def _numbered(group: xr.Dataset) -> xr.Dataset:
    """Number the entries of every dimension without a coordinate."""
    return group.assign_coords({dim: np.arange(size) for dim, size in group.sizes.items() if dim not in group.coords})
