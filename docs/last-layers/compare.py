"""Last layers of three packages on the same splits: log density of held-out rows in nats, and core-seconds.

    python compare.py ROWS.csv yacht:0 wine:1 ...        NAME:SPLIT, appended to the file; PYRODROP_DATA has the UCI files

x and real y are standardised. The network D-64-64-K with ELU units is trained by 4,000 steps of AdamW on 32 rows each
(learning rate 0.001, weight decay 0.0001), which are optimiser and number of steps of VBLL's tutorials.

    network                      the density at its output; of real y with the mean square of training errors as noise
    pyrodrop.last_layer          on the network and the training rows; ``other rows``: the network has four fifths of them,
                                 and last_layer the other fifth
    laplace-torch                last_layer, full; prior and noise by 100 steps on the marginal likelihood, classes by
                                 optimize_prior_precision("marglik") and the probit link: its documentation
    VBLL                         with the tutorials' settings, on the network's features or trained jointly
    pyrodrop.fit(model, data)    a network D-64-K with tanh units, and no settings
"""

import csv
import math
import sys
import time
from functools import partial
from typing import Any

import torch
import vbll
from laplace import Laplace
from sklearn import datasets
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

import pyrodrop
from pyrodrop import data, likelihoods, models, priors
from pyrodrop.scaling import Standardize

WIDTH, STEPS, BATCH, LR, DECAY = 64, 4000, 32, 1e-3, 1e-4


def problem(name: str, split: int) -> tuple[data.Dataset, data.Dataset]:
    """Training rows with a standardisation, and test rows."""
    if name not in ("moons", "wine"):
        chosen = data.uci(name)[split]
        return chosen.train.standardized(), chosen.test
    if name == "moons":
        x, y = datasets.make_moons(1200, noise=0.3, random_state=split)
        parts = x[:200], x[200:], y[:200], y[200:]
    else:
        x, y = datasets.load_wine(return_X_y=True)
        parts = train_test_split(x, y, test_size=0.2, random_state=split, stratify=y)
    x, there = (torch.as_tensor(part).float() for part in parts[:2])
    y, labels = (torch.as_tensor(part).long() for part in parts[2:])
    train = data.Dataset(x, y, inputs=Standardize.of_inputs(x))
    return train, data.Dataset(there, labels)


def body(inputs: int) -> nn.Sequential:
    """The layers below the last one."""
    layers = nn.Linear(inputs, WIDTH), nn.ELU(), nn.Linear(WIDTH, WIDTH), nn.ELU()
    return nn.Sequential(*layers)


def descend(
    groups: list[dict[str, Any]], loss: Any, x: Any, y: Any, clip: float
) -> None:
    """Minimise the loss of minibatches; `clip` is the largest norm of a gradient."""
    optimizer, done = torch.optim.AdamW(groups, lr=LR), 0
    loader = DataLoader(TensorDataset(x, y), BATCH, shuffle=True)
    while done < STEPS:
        for minibatch in loader:
            done += 1
            optimizer.zero_grad()
            loss(*minibatch).backward()
            if clip:
                parameters = [p for group in groups for p in group["params"]]
                nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()


def vbll_loss(net: Any, x: Any, y: Any) -> Any:
    """The loss of a network with a layer of VBLL."""
    return net(x).train_loss_fn(y)


def measured(name: str, split: int) -> Any:
    """Rows: problem, split, method, log density, seconds."""
    train, test = problem(name, split)
    assert train.inputs is not None
    real = train.targets is not None
    to = train.targets if train.targets is not None else lambda y: y
    x, there = (train.inputs(each.x).float() for each in (train, test))
    y, goal = to(train.y), to(test.y)
    outputs = 1 if real else int(y.max()) + 1
    unit = math.log(float(train.targets.scale)) if train.targets is not None else 0.0

    def normal(mean: Any, variance: Any) -> float:
        distribution = torch.distributions.Normal(mean, variance.sqrt())
        return float(distribution.log_prob(goal).mean()) - unit

    def of_classes(p: Any) -> float:
        return float(p[torch.arange(len(goal)), goal].log().mean())

    def trained(x: Any, y: Any) -> nn.Sequential:
        net = nn.Sequential(*body(x.shape[1]), nn.Linear(WIDTH, outputs))
        groups = [{"params": list(net.parameters()), "weight_decay": DECAY}]
        loss: Any = mse_loss if real else cross_entropy
        descend(groups, lambda x, y: loss(net(x), y), x, y, clip=0.0)
        return net

    def row(method: str, density: float) -> list[Any]:
        seconds = round(time.process_time() - began, 2)
        return [name, split, method, round(density, 4), seconds]

    began = time.process_time()
    torch.manual_seed(split)
    net = trained(x, y)
    with torch.no_grad():
        if real:
            error = (net(x) - y).square().mean().expand_as(goal)
            yield row("network", normal(net(there), error))
        else:
            yield row("network", of_classes(net(there).softmax(1)))

    began = time.process_time()
    run = pyrodrop.last_layer(net, (x, y))
    density = float(run.predict(there, 1000).log_density(goal).mean()) - unit
    yield row("pyrodrop.last_layer", density)

    began = time.process_time()
    torch.manual_seed(split)
    first, rest = torch.randperm(len(x)).split([len(x) * 4 // 5, -(-len(x) // 5)])
    run = pyrodrop.last_layer(trained(x[first], y[first]), (x[rest], y[rest]))
    density = float(run.predict(there, 1000).log_density(goal).mean()) - unit
    yield row("pyrodrop.last_layer, other rows", density)

    began = time.process_time()
    kind = "regression" if real else "classification"
    la: Any = Laplace(net, kind, "last_layer", "full")
    la.fit(DataLoader(TensorDataset(x, y), BATCH))
    if real:
        logs = [torch.ones(1, requires_grad=True) for _ in range(2)]
        hyper = torch.optim.Adam(logs, lr=0.1)
        for _ in range(100):
            hyper.zero_grad()
            (-la.log_marginal_likelihood(*(log.exp() for log in logs))).backward()
            hyper.step()
        mean, covariance = (moment.detach() for moment in la(there))
        variance = covariance[:, 0] + la.sigma_noise.detach() ** 2
        yield row("laplace-torch", normal(mean, variance))
    else:
        la.optimize_prior_precision(method="marglik")
        yield row("laplace-torch", of_classes(la(there, link_approx="probit")))

    forms = ("dense", "diagonal") if real else ("diagonal", "dense")
    for form, frozen in ((forms[0], True), (forms[0], False), (forms[1], False)):
        began = time.process_time()
        torch.manual_seed(split)
        of_kind = vbll.Regression if real else vbll.DiscClassification
        scales = {"prior_scale": 1.0} | ({"wishart_scale": 0.1} if real else {})
        layer = of_kind(WIDTH, outputs, 1 / len(x), parameterization=form, **scales)
        below = nn.Identity() if frozen else body(x.shape[1])
        h, ends = (net[:-1](each).detach() if frozen else each for each in (x, there))
        groups = [
            {"params": list(layer.parameters()), "weight_decay": 0.0},
            {"params": list(below.parameters()), "weight_decay": DECAY},
        ]
        both = nn.Sequential(below, layer)
        descend(groups, partial(vbll_loss, both), h, y, clip=1.0)
        with torch.no_grad():
            if real:
                q = both(ends).predictive
                density = normal(q.mean, q.covariance.reshape(-1, 1))
            else:
                density = of_classes(layer.predictive(below(ends), 1000))
        how = "on the network" if frozen else "trained jointly"
        yield row(f"VBLL {form}, {how}", density)

    began = time.process_time()
    noise: Any = likelihoods.Gaussian() if real else likelihoods.Categorical()
    widths = [x.shape[1], WIDTH, outputs]
    model = models.MLP(widths, "tanh", prior=priors.Gaussian(), likelihood=noise)
    run = pyrodrop.fit(model, train, progress=False)
    prediction = run.predict(test.x, 1000)
    yield row("pyrodrop.fit(model, data)", float(prediction.log_density(test.y).mean()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with open(sys.argv[1], "a", newline="") as file:
        for one in sys.argv[2:]:
            name, _, split = one.partition(":")
            for values in measured(name, int(split)):
                csv.writer(file).writerow(values)
                file.flush()
