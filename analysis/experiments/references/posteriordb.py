"""A stored reference in the files of posteriordb, whose layout this is: https://github.com/stan-dev/posteriordb.

``python -m pyrodrop.analysis.experiments.references.posteriordb yacht OUT`` writes

    posteriors/NAME.json                                                  what belongs together, by name
    models/info/MODEL.info.json, models/stan/MODEL.stan                   network and priors as a Stan program
    data/info/DATA.info.json, data/data/DATA.json.zip                     its data, with the scales of priors and noise
    reference_posteriors/draws/info/NAME.info.json, .../draws/NAME.json.zip    the draws by parameter, one object per chain

for a regression with one hidden layer. posteriordb wants 10,000 draws, and an R-hat below 1.01 of every parameter. That of a
weight says little, since hidden units can be permuted: here R-hat and effective sample sizes are those of f and of the log
likelihood, of all draws before thinning, and ``checks_made`` says what is fulfilled.
"""

from __future__ import annotations

import datetime
import io
import itertools
import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pyrodrop.analysis.experiments.references.stored import facts, load
from pyrodrop.files import whole
from pyrodrop.zoo.exact import PROBLEMS

STAN = """data {
  int<lower=1> N, D, H;
  matrix[N, D] x;
  vector[N] y;
  array[2] real<lower=0> weight_scale;
  real<lower=0> sigma;
  real y_loc;
  real<lower=0> y_scale;
}
parameters {
  matrix[H, D] W1;
  vector[H] b1;
  matrix[1, H] W2;
  vector[1] b2;
}
model {
  matrix[H, N] hidden = ACTIVATION;
  to_vector(W1) ~ normal(0, weight_scale[1]);
  to_vector(W2) ~ normal(0, weight_scale[2]);
  b1 ~ std_normal();
  b2 ~ std_normal();
  y ~ normal(y_loc + y_scale * (to_vector(W2 * hidden) + b2[1]), sigma);
}
"""
_INPUT = "W1 * x' + rep_matrix(b1, N)"
ACTIVATIONS = {"relu": f"fmax({_INPUT}, 0)", "tanh": f"tanh({_INPUT})"}
SITES = {"layers.0.weight": "W1", "layers.0.bias": "b1", "layers.1.weight": "W2", "layers.1.bias": "b2"}


def write(name: str, out: Path) -> str:
    """Write the files of a problem into the folder of a database; returns the name of the posterior.

    Raises:
        ValueError: the problem is unknown, or no regression.
        OSError: a file cannot be written.
    """
    sampled, content, problem = load(name), facts(name), PROBLEMS[name]
    train, found = problem.data()[0], content["diagnostics"]
    if not train.y.is_floating_point():
        raise ValueError(f"name must be that of a regression; got {name!r}, which has classes")
    model, data = f"mlp_{problem.activation}", f"{name}_standardised"
    entry, code, table = f"{data}-{model}", f"models/stan/{model}.stan", f"data/data/{data}.json"
    draws, r_hat = "reference_posteriors/draws", [found["r_hat_f"], found["r_hat_log_likelihood"]]
    added = {"keywords": [], "added_by": "pyrodrop", "added_date": datetime.date.today().isoformat()}
    x = train.x.double() if train.inputs is None else (train.x.double() - train.inputs.loc) / train.inputs.scale
    loc, scale = (0.0, 1.0) if train.targets is None else (float(train.targets.loc), float(train.targets.scale))
    precision: Any = problem.likelihood().precision  # type: ignore[attr-defined]
    files: dict[str, Any] = {
        f"posteriors/{entry}.json": {
            "name": entry, "model_name": model, "data_name": data, "reference_posterior_name": entry,
            "dimensions": {SITES[n]: v[0, 0].numel() for n, v in sampled.samples.items()}, **added,
        },
        f"models/info/{model}.info.json": {
            "name": model, "title": f"A network with one hidden layer, {problem.activation}, with Gaussian priors",
            "model_implementations": {"stan": {"model_code": code, "stan_version": ">=2.33.0"}}, **added,
        },
        code: STAN.replace("ACTIVATION", ACTIVATIONS[problem.activation]),
        f"data/info/{data}.info.json": {"name": data, "title": problem.summary, "data_file": table, **added},
        f"{table}.zip": {
            "N": len(x), "D": x.shape[1], "H": problem.widths[1], "x": x.tolist(), "y": train.y[:, 0].tolist(),
            "weight_scale": problem.scales, "sigma": float(precision) ** -0.5, "y_loc": loc, "y_scale": scale,
        },
        f"{draws}/info/{entry}.info.json": {
            "name": entry,
            "inference": {"method": "pyrodrop.sample", "method_arguments": content["sampler"]},
            "diagnostics": {
                "diagnostic_information": {"names": ["f, the worst of 100 points", "log likelihood"]}, "r_hat": r_hat,
                "effective_sample_size_bulk": [found["ess_f"], found["ess_log_likelihood"]],
                "divergent_transitions": found["diverging"],
                "ndraws": sampled.chains * sampled.draws, "nchains": sampled.chains,
            },
            "checks_made": {
                "ndraws_is_10k": sampled.chains * sampled.draws == 10_000, "nchains_is_gte_4": sampled.chains >= 4,
                "r_hat_below_1_01": max(r_hat) < 1.01,
            },
            "comments": "Diagnostics are those of functions, before thinning: hidden units can be permuted.",
            "versions": content["versions"], **added,
        },
        f"{draws}/draws/{entry}.json.zip": [
            _by_parameter({n: v[c] for n, v in sampled.samples.items()}) for c in range(sampled.chains)
        ],
    }  # fmt: skip
    for path, what in files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        with whole(out / path) as part:
            part.write_bytes(_bytes(path, what))
    return entry


def _by_parameter(samples: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Draws ``[S]`` of every parameter by Stan's name, such as W1[2,1], whose indices begin at 1."""
    found = {}
    for site, values in samples.items():
        places = itertools.product(*(range(1, size + 1) for size in values.shape[1:]))
        for place, draws in zip(places, values.flatten(1).T.tolist(), strict=True):
            found[f"{SITES[site]}[{','.join(map(str, place))}]"] = draws
    return found


def _bytes(path: str, what: Any) -> bytes:
    """Text, JSON, or JSON in a zip file under the name of that file."""
    text = what if isinstance(what, str) else json.dumps(what, indent=None if path.endswith(".zip") else 2)
    if not path.endswith(".zip"):
        return text.encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(Path(path).stem, text)
    return packed.getvalue()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: python -m pyrodrop.analysis.experiments.references.posteriordb NAME OUT; got {sys.argv[1:]}")
    print(write(sys.argv[1], Path(sys.argv[2])))
