"""Every network of tests/networks as a file of ONNX: equal to `predict`, or refused for a reason that is listed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrodrop
from pyrodrop import data, guides
from pyrodrop.analysis.networks import Case, load
from pyrodrop.inputs import mapped, named_parts

CASES = load(Path(__file__).parents[2] / "networks")
_NUMBER = r"write x\.shape\[0\]"
REFUSED = {
    "class_token": _NUMBER,
    "counter": "must be the same at every call",
    "derivative_output": "one that torch.export can record",
    "graph_network": "depends on others",
    "gru_cell": _NUMBER,
    "lstm_cell": _NUMBER,
    "shared_rnn_loop": _NUMBER,
    "sparse_graph": "depends on others",
    "tuple_output": _NUMBER,
}
NO_MODEL = {
    "drop_path",
    "functional_dropout",
    "random_in_forward",
    "spectral_norm",
}  # `fit` refuses them


def trained(case: Case, posterior: str) -> tuple[Any, Any]:
    """A fit in float32, and x."""
    if case.missing():
        pytest.skip(case.missing())
    x, y = (
        mapped(lambda value: value.float() if value.is_floating_point() else value, values) for values in case.data()
    )
    model = case.model(case.build().float())
    known = posterior == "mask" and all(units.axis is not None for units in model.input_units().values())
    guide = guides.BernoulliDropout(model, drop_rate=case.drop_rate) if known else guides.MeanField(model)
    return pyrodrop.fit(model, guide, data.Dataset(x, y), steps=1, engine="pyro", progress=False), x


@pytest.mark.more
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("posterior", ["mask", pytest.param("weights", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in CASES if name not in NO_MODEL])
def test_a_network_is_right_or_refused(name: str, posterior: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    run, x = trained(CASES[name], posterior)
    path = tmp_path / "net.onnx"
    if name in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[name]):
            run.export(path, 2)
        assert not list(tmp_path.iterdir())
        return
    run.export(path, 3)
    program = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for rows in (mapped(lambda value: value[:1], x), x):
        predicted = run.predict(rows, 3)
        inputs = {name: value.numpy() for name, value in named_parts(rows).items()}
        for output, got in zip(program.get_outputs(), program.run(None, inputs), strict=True):
            want = {"mean": predicted.mean, "probabilities": predicted.mean, "sd": predicted.sd}[output.name].numpy()
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * max(1, abs(want).max()))


def test_the_lists_name_networks() -> None:
    assert {*REFUSED, *NO_MODEL} <= CASES.keys()
