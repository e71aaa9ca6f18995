"""What is computed with ArviZ depends neither on its version nor on its settings, which have other defaults in ArviZ 1."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from pyrodrop.analysis import k_hat
from pyrodrop.analysis.comparison.comparison import stacking_weights
from pyrodrop.analysis.comparison.loo import loo
from pyrodrop.analysis.reports.style import draw_ecdf
from pyrodrop.sampling.mixing import diagnose

ROOT = Path(__file__).parents[3]
SET = {"ci_prob", "ci_kind", "envelope_prob", "kind", "method", "point_estimate", "pointwise", "round_to", "backend"}


def left_to_defaults(source: str) -> list[str]:
    """The arguments in `SET` that calls of ArviZ leave to their defaults."""
    tree, names, found = ast.parse(source), {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname or a.name: importlib.import_module(a.name) for a in node.names if "arviz" in a.name}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("arviz"):
            module = importlib.import_module(str(node.module))
            names |= {a.asname or a.name: getattr(module, a.name) for a in node.names}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function: Any = names
        first, *rest = ast.unparse(call.func).split(".")
        if first in names:
            function = names[first]
            for name in rest:
                function = getattr(function, name)
            parameters = inspect.signature(function).parameters.values()
            optional = {p.name for p in parameters if p.default is not inspect.Parameter.empty}
            found += sorted(f"{function.__name__}: {n}" for n in SET & optional - {word.arg for word in call.keywords})
    return found


def test_every_call_says_what_defaults_would() -> None:
    code = [path for top in ("pyrodrop", "models", "guides", "analysis") for path in (ROOT / top).rglob("*.py")]
    sources = {path: path.read_text() for path in code}
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        sources[page] = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
    calls = {path: text for path, text in sources.items() if re.search(r"^\s*(import|from) arviz", text, re.MULTILINE)}
    assert len(calls) >= 7
    assert not {str(path): wrong for path, text in calls.items() if (wrong := left_to_defaults(text))}
    assert left_to_defaults("import arviz_stats as a\na.summary(t, kind='stats', ci_kind='eti')") == [
        "summary: ci_prob", "summary: round_to",
    ]  # fmt: skip


CHAINS = np.sin(np.arange(400.0) ** 2).reshape(4, 100)


def test_numbers_are_those_of_every_version(small: Any) -> None:
    """Standard error and distribution function by their formulas; of the others, what ArviZ 0.23 and 1.3 both give."""
    found = loo(small.conjugate(1.0)[0], num_samples=500)
    elpd = found.pointwise[0].numpy()
    assert found.se == pytest.approx(math.sqrt(len(elpd)) * np.std(elpd, ddof=1), rel=1e-12)
    chains = torch.from_numpy(CHAINS)
    mixing = diagnose(chains[..., None], chains, 0, 0.0)
    assert (mixing.ess_f_median, mixing.ess_f, mixing.r_hat_f) == pytest.approx((442.3151108, 411.0546946, 1.0049752))
    assert k_hat(3 * torch.arange(1.0, 201).log().sin()) == pytest.approx(1.1272052, rel=1e-4)
    values, axes = (np.arange(20) / 20) ** 2, plt.figure().subplots()
    draw_ecdf(axes, values, 0.05, "black")
    for at in (0.013, 0.31, 0.8):
        assert np.interp(at, *axes.lines[0].get_data()) == pytest.approx(np.mean(values <= at) - at)
    ends = np.asarray(axes.collections[0].get_paths()[0].vertices)
    assert [*ends.min(0), *ends.max(0)] == pytest.approx([0.05, -0.25, 0.95, 0.25])
    plt.close()


def test_stacking_weights_by_their_closed_form() -> None:
    """6 of 10 observations are 3 times as likely by the first: w = (6 * 3 - 4) / (2 * 10), wherever zero is."""
    likely = torch.where(torch.arange(10) < 6, 3.0, 1.0).double().log()
    elpds = torch.stack([likely, math.log(3) - likely, torch.full((10,), -0.5)])
    for zero in (0, torch.linspace(-900, 0, 10)):
        weights = stacking_weights(elpds + zero)
        torch.testing.assert_close(weights, torch.tensor([0.7, 0.3, 0]).double(), atol=2e-3, rtol=0)
