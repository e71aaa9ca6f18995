"""A reference in the files of posteriordb: by the database's own description, its draws, and its Stan program."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from pyrodrop.analysis.experiments.references import load
from pyrodrop.analysis.experiments.references.posteriordb import write

# doc/DATABASE_CONTENT.md of https://github.com/stan-dev/posteriordb: what files contain at minimum; its models
# have their code in `model_implementations`
LEAST = {
    "posteriors": {"data_name", "model_name", "added_by", "added_date"},
    "models/info": {"name", "model_implementations", "title", "added_by", "added_date"},
    "data/info": {"name", "data_file", "title", "added_by", "added_date"},
    "reference_posteriors/draws/info": {
        "name", "inference", "diagnostics", "checks_made", "comments", "added_by", "added_date", "versions",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("posterior_database")
    return out, write("co2", out)


def zipped(path: Path) -> Any:
    """Read as posteriordb's Python package does: the member has the name of the file without .zip."""
    with zipfile.ZipFile(path) as archive:
        [name] = archive.namelist()
        assert name == path.name.removesuffix(".zip")
        return json.loads(archive.read(name))


def test_files_are_those_of_the_database(database: tuple[Path, str]) -> None:
    out, name = database
    found = {}
    for folder, least in LEAST.items():
        [path] = (out / folder).glob("*.json")
        found[folder] = json.loads(path.read_text())
        assert least <= set(found[folder])
        assert path.name.removesuffix(".json").removesuffix(".info") == found[folder]["name"]
    entry, model, data, draws = found.values()
    assert entry["name"] == entry["reference_posterior_name"] == draws["name"] == name
    assert (entry["model_name"], entry["data_name"]) == (model["name"], data["name"])
    assert name == f"{data['name']}-{model['name']}"
    assert (out / model["model_implementations"]["stan"]["model_code"]).is_file()
    assert (out / f"{data['data_file']}.zip").is_file()
    assert {"method", "method_arguments"} <= set(draws["inference"])
    assert entry["dimensions"] == {"W1": 20, "b1": 20, "W2": 20, "b2": 1}
    assert draws["checks_made"] == {"ndraws_is_10k": False, "nchains_is_gte_4": True, "r_hat_below_1_01": True}


def test_draws_read_back_are_ours(database: tuple[Path, str]) -> None:
    out, name = database
    chains, sampled = zipped(out / "reference_posteriors" / "draws" / "draws" / f"{name}.json.zip"), load("co2")
    assert len(chains) == sampled.chains
    assert {len(values) for chain in chains for values in chain.values()} == {sampled.draws}
    assert all(len(chain) == 61 for chain in chains)
    assert chains[3]["W1[5,1]"] == sampled.samples["layers.0.weight"][3, :, 4, 0].tolist()
    assert chains[0]["W2[1,20]"] == sampled.samples["layers.1.weight"][0, :, 0, 19].tolist()
    assert chains[2]["b1[7]"] == sampled.samples["layers.0.bias"][2, :, 6].tolist()


def test_the_stan_program_has_the_density_that_was_sampled(database: tuple[Path, str]) -> None:
    """Its statements in numpy, at the draws: the log density that the sampler saw, up to a constant."""
    out, name = database
    data: dict[str, Any] = zipped(out / "data" / "data" / "co2_standardised.json.zip")
    chains, sampled = zipped(out / "reference_posteriors" / "draws" / "draws" / f"{name}.json.zip"), load("co2")
    [code] = (out / "models" / "stan").glob("*.stan")
    assert "tanh(W1 * x' + rep_matrix(b1, N))" in code.read_text()
    x, y = np.array(data["x"]), np.array(data["y"])
    found = []
    for draw in range(sampled.draws):
        w = {key: values[draw] for key, values in chains[1].items()}
        w1, b1, w2 = (
            np.array([w[form.format(h)] for h in range(1, 21)]) for form in ("W1[{},1]", "b1[{}]", "W2[1,{}]")
        )
        hidden = np.tanh(w1[:, None] @ x.T + b1[:, None])
        f = data["y_loc"] + data["y_scale"] * (w2 @ hidden + w["b2[1]"])
        prior = norm.logpdf(w1, 0, data["weight_scale"][0]).sum() + norm.logpdf(w2, 0, data["weight_scale"][1]).sum()
        prior += norm.logpdf(b1).sum() + norm.logpdf(w["b2[1]"])
        found.append(prior + norm.logpdf(y, f, data["sigma"]).sum())
    apart = np.array(found) - sampled.stats["lp"][1].double().numpy()
    assert np.std(found) > 1
    assert np.ptp(apart) < 0.05


def test_classes_are_refused(tmp_path: Path, data_folder: Path) -> None:
    with pytest.raises(ValueError, match="name must be that of a regression; got 'mnist', which has classes"):
        write("mnist", tmp_path)
    assert list(tmp_path.iterdir()) == []
