"""A stored reference as an entry of posteriordb, whose layout this is: https://github.com/stan-dev/posteriordb.

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

import argparse
import datetime
import io
import itertools
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pyrodrop.analysis.experiments.references.stored import facts, load
from pyrodrop.data import Dataset
from pyrodrop.files import whole, write_json
from pyrodrop.zoo.exact import PROBLEMS, Problem

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
    """
    sampled, content = load(name), facts(name)
    problem = PROBLEMS[name]
    train, _ = problem.data()
    if not train.y.is_floating_point():
        raise ValueError(f"name must be that of a regression; got {name!r}, which has classes")
    model, data = f"mlp_{problem.activation}", f"{name}_standardised"
    entry, added = f"{data}-{model}", {"added_by": "pyrodrop", "added_date": datetime.date.today().isoformat()}
    files: dict[str, Any] = {
        f"posteriors/{entry}.json": {
            "name": entry, "keywords": ["neural network"], "model_name": model, "reference_posterior_name": entry,
            "data_name": data, "dimensions": {SITES[n]: v[0, 0].numel() for n, v in sampled.samples.items()}, **added,
        },
        f"models/info/{model}.info.json": {
            "name": model, "title": f"A network with one hidden layer, {problem.activation}", "keywords": ["neural network"],
            "description": "Gaussian priors whose scale falls with the width, biases N(0, 1), known noise.",
            "model_implementations": {"stan": {"model_code": f"models/stan/{model}.stan", "stan_version": ">=2.33.0"}},
            **added,
        },
        f"data/info/{data}.info.json": {
            "name": data, "title": problem.summary, "keywords": [], "description": content["recipe"]["likelihood"],
            "data_file": f"data/data/{data}.json", **added,
        },
        f"reference_posteriors/draws/info/{entry}.info.json": _draws_info(entry, content, sampled.chains) | added,
    }  # fmt: skip
    for path, what in files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        write_json(out / path, what)
    code = out / "models" / "stan" / f"{model}.stan"
    code.parent.mkdir(parents=True, exist_ok=True)
    with whole(code) as part:
        part.write_text(STAN.replace("ACTIVATION", ACTIVATIONS[problem.activation]), encoding="utf-8")
    _write_zip(out / "data" / "data" / f"{data}.json.zip", _data(problem, train))
    chains = [_by_parameter({n: v[c] for n, v in sampled.samples.items()}) for c in range(sampled.chains)]
    _write_zip(out / "reference_posteriors" / "draws" / "draws" / f"{entry}.json.zip", chains)
    return entry


def _data(problem: Problem, train: Dataset) -> dict[str, Any]:
    x, y = train.x.double(), train.y.double()[:, 0]
    x = x if train.inputs is None else (x - train.inputs.loc) / train.inputs.scale
    loc, scale = (0.0, 1.0) if train.targets is None else (float(train.targets.loc), float(train.targets.scale))
    precision: Any = problem.likelihood().precision  # type: ignore[attr-defined]
    return {
        "N": len(x), "D": x.shape[1], "H": problem.widths[1], "x": x.tolist(), "y": y.tolist(),
        "weight_scale": problem.scales, "sigma": float(precision) ** -0.5, "y_loc": loc, "y_scale": scale,
    }  # fmt: skip


def _by_parameter(samples: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Draws ``[S]`` of every parameter by Stan's name, such as W1[2,1], whose indices begin at 1."""
    found = {}
    for site, values in samples.items():
        for index in itertools.product(*(range(size) for size in values.shape[1:])):
            found[f"{SITES[site]}[{','.join(str(i + 1) for i in index)}]"] = values[(slice(None), *index)].tolist()
    return found


def _draws_info(name: str, content: Mapping[str, Any], chains: int) -> dict[str, Any]:
    found, kept = content["diagnostics"], content["stored"]["draws"]
    r_hat = [found["r_hat_f"], found["r_hat_log_likelihood"]]
    return {
        "name": name,
        "inference": {"method": "pyrodrop.sample", "method_arguments": content["sampler"]},
        "diagnostics": {
            "diagnostic_information": {"names": ["f, the worst of 100 points", "log likelihood"]},
            "ndraws": kept, "nchains": chains, "r_hat": r_hat,
            "effective_sample_size_bulk": [found["ess_f"], found["ess_log_likelihood"]],
            "divergent_transitions": found["diverging"],
        },
        "checks_made": {
            "ndraws_is_10k": kept == 10_000, "nchains_is_gte_4": chains >= 4, "r_hat_below_1_01": max(r_hat) < 1.01
        },
        "comments": "Diagnostics are those of functions, before thinning: hidden units can be permuted.",
        "versions": content["versions"],
    }  # fmt: skip


def _write_zip(path: Path, content: Any) -> None:
    """JSON in a zip file, under the name of the file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(path.stem, json.dumps(content))
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as part:
        part.write_bytes(packed.getvalue())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="of the problem")
    parser.add_argument("out", type=Path, help="folder of the database")
    arguments = parser.parse_args()
    print(write(arguments.name, arguments.out))
