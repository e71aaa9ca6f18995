"""The released code of Gal & Ghahramani in plain PyTorch, in variants that show which details affect the results.

Only the tables, their splits and the published settings come from this package; network, masks, loss, Adam and scores are
written out here, with all splits and seeds stacked as ``[R, ...]``. The input of a layer with weight W, for a before masking
and a mask z ~ Bernoulli(p), p = 1 - drop_rate, is

    divided    a z / p    Keras since October 2015, used for the re-run of 2018
    kept       a z        earlier Keras, used for the results of 2016
    ours       a z, W started at 1 / p times Glorot's values and penalised as p W: `pyrodrop.zoo.uci`
    early      as kept, with the Adam of Keras before 29 July 2015, which divided by 1 - beta instead of 1 - beta^t

``python -m pyrodrop.analysis.experiments.uci.released yacht ours`` trains the settings of 2016 on all splits and adds the
scores of the test rows to ``analysis/reference/uci/released.json``; ``--rate 0.1`` those of 2018 at the three precisions of
the grid, and adds the log densities of the validation rows. https://github.com/yaringal/DropoutUncertaintyExps.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pyrodrop.analysis.experiments.uci.protocol import PROTOCOLS, SETTINGS, VALIDATION
from pyrodrop.data import uci
from pyrodrop.files import write_json

FILE = Path(__file__).parents[2] / "reference" / "uci" / "released.json"
VARIANTS = ("divided", "kept", "ours", "early")
LR, BETAS, EPSILON = 1e-3, (0.9, 0.999), 1e-8


class Rows(NamedTuple):
    """Training and test rows of every network, standardised by the training rows, except y of the test rows."""

    x: Tensor  # [R, N, Q]
    y: Tensor  # [R, N, 1]
    test_x: Tensor  # [R, n, Q]
    test_y: Tensor  # [R, n, 1]
    mean: Tensor  # [R, 1, 1], of y
    sd: Tensor  # [R, 1, 1]


def rows(name: str, repeats: int, *, validation: bool) -> Rows:
    """All splits, `repeats` times; with `validation` the last fifth of the training rows is the test."""
    table, parts = uci(name), []
    for split, test in table.rows:
        first = int((1 - VALIDATION) * len(split)) if validation else len(split)
        train, test = split[:first], (split[first:] if validation else test)
        x, y = table.x[train], table.y[train]
        sd, mean, scale = x.std(0, correction=0), y.mean(), y.std(correction=0)
        center, sd = x.mean(0), torch.where(sd == 0, 1.0, sd)
        parts.append(((x - center) / sd, (y - mean) / scale, (table.x[test] - center) / sd, table.y[test], mean, scale))
    x, y, test_x, test_y, mean, sd = (torch.stack(each).float() for each in zip(*parts, strict=True))
    each_once = Rows(x, y, test_x, test_y, mean[:, None, None], sd[:, None, None])
    return Rows(*(values.repeat(repeats, 1, 1) for values in each_once))


def masks(shape: tuple[int, ...], keep: float, random: torch.Generator) -> Tensor:
    """Masks that are 1 with probability `keep`, rounded to multiples of 2^-16."""
    return (torch.randint(2**16, shape, generator=random, dtype=torch.int32) < round(2**16 * keep)).float()


def train(
    data: Rows, hidden: int, keep: float, decay: Tensor, epochs: int, batch: int, variant: str, random: torch.Generator
) -> list[Tensor]:
    """Weights and biases of both layers after training; `decay` [R] is the factor of the squared weights."""
    count, length, width = data.x.shape
    factor = 1 / keep if variant == "divided" else 1.0
    start = 1 / keep if variant == "ours" else 1.0
    decay = (decay * keep**2 if variant == "ours" else decay)[:, None, None]
    parameters = []
    for inputs, outputs in ((width, hidden), (hidden, 1)):
        bound = start * math.sqrt(6 / (inputs + outputs))
        uniform = torch.rand(count, inputs, outputs, generator=random)
        parameters += [bound * (2 * uniform - 1), torch.zeros(count, 1, outputs)]
    for each in parameters:
        each.requires_grad_()
    first, second = ([torch.zeros_like(each) for each in parameters] for _ in range(2))
    offset = length * torch.arange(count)[:, None]
    x, y = data.x.reshape(-1, width), data.y.reshape(-1, 1)
    step = 0
    for _ in range(epochs):
        order = torch.rand(count, length, generator=random).argsort(1) + offset
        for numbers in order.split(batch, dim=1):
            shape = (count, numbers.shape[1])
            h = torch.relu((x[numbers] * masks((*shape, width), keep, random) * factor) @ parameters[0] + parameters[1])
            f = (h * masks((*shape, hidden), keep, random) * factor) @ parameters[2] + parameters[3]
            error = (f - y[numbers]).square().mean((1, 2)).sum()
            penalty = (decay * parameters[0].square()).sum() + (decay * parameters[2].square()).sum()
            gradients = torch.autograd.grad(error + penalty, parameters)
            step += 1
            corrections = [1 - beta ** (1 if variant == "early" else step) for beta in BETAS]
            with torch.no_grad():
                for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
                    m.lerp_(g, 1 - BETAS[0])
                    v.lerp_(g.square(), 1 - BETAS[1])
                    p -= LR / corrections[0] * m / ((v / corrections[1]).sqrt() + EPSILON)
    weights = [each.detach() for each in parameters]
    return [factor * weights[0], weights[1], factor * weights[2], weights[3]]


def scores(
    data: Rows, weights: list[Tensor], keep: float, precision: Tensor, draws: int, random: torch.Generator
) -> tuple[list[float], list[float]]:
    """RMSE of the mean of `draws` functions and mean log density of the test rows, of every network."""
    errors, densities = [], []
    hidden, size = weights[2].shape[1], data.test_x.shape[1] * weights[2].shape[1]
    for number, (w1, b1, w2, b2) in enumerate(zip(*weights, strict=True)):
        x, y, tau = data.test_x[number], data.test_y[number], precision[number].double()
        functions = []
        for some in torch.arange(draws).split(max(1, 2_000_000 // size)):
            h = torch.relu((x * masks((len(some), 1, x.shape[1]), keep, random)) @ w1 + b1)
            f = h @ (masks((len(some), hidden, 1), keep, random) * w2) + b2
            functions.append(f.double() * data.sd[number] + data.mean[number])
        f = torch.cat(functions)
        errors.append(float((f.mean(0) - y).square().mean().sqrt()))
        log_p = torch.logsumexp(-tau / 2 * (f - y).square(), 0) - math.log(draws) + 0.5 * torch.log(tau / (2 * math.pi))
        densities.append(float(log_p.mean()))
    return errors, densities


def run(name: str, variant: str, seeds: int, rate: float | None) -> dict[str, object]:
    """Scores ``[seeds, splits]``; with a rate, log densities of the validation rows, ``[seeds, 3, splits]``."""
    setting, protocol = SETTINGS[name], PROTOCOLS["gal2016" if rate is None else "gal2018"]
    points = protocol.points(name)[:1] if rate is None else [p for p in protocol.points(name) if p.drop_rate == rate]
    if not points:
        raise ValueError(f"rate is one of the grid of 2018; got {rate}")
    data = rows(name, seeds * len(points), validation=rate is not None)
    splits = len(uci(name))
    precision = torch.tensor([float(point.precision or 0) for point in points]).repeat_interleave(splits).repeat(seeds)
    keep = 1 - float(points[0].drop_rate or 0)
    decay = points[0].length_scale ** 2 * keep / (2 * data.x.shape[1] * precision)
    random = torch.Generator().manual_seed(1)
    weights = train(data, setting.hidden, keep, decay, protocol.epochs(name), protocol.batch, variant, random)
    of_networks = scores(data, weights, keep, precision, protocol.draws, random)
    rmse, densities = (torch.tensor(values).reshape(seeds, len(points), splits) for values in of_networks)
    about = {"epochs": protocol.epochs(name), "batch": protocol.batch, "draws": protocol.draws, "drop_rate": 1 - keep}
    if rate is not None:
        return {**about, "validation": _rounded(densities)}
    return {**about, "rmse": _rounded(rmse[:, 0]), "log_density": _rounded(densities[:, 0])}


def _rounded(values: Tensor) -> object:
    return json.loads(json.dumps(values.tolist()), parse_float=lambda text: float(f"{float(text):.6g}"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", choices=SETTINGS)
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rate", type=float)
    options = parser.parse_args()
    result = run(options.data, options.variant, options.seeds, options.rate)
    key = f"{options.data}/{options.variant}" + ("" if options.rate is None else f"/{options.rate:g}")
    written = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    write_json(FILE, dict(sorted((written | {key: result}).items())))
