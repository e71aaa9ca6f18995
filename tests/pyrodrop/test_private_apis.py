"""Private APIs of PyTorch and Pyro are used in three files, and a recording by them is what it should be."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import torch

from pyrodrop.compiled.private_apis import record
from pyrodrop.compiled.program import make_flat

ROOT = Path(__file__).resolve().parents[2]


def test_a_flat_copy_of_a_graph_computes_the_same() -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    graph = record(lambda *a: [a[0] @ a[1], {"sum": a[0].sum()}], [x, x.T])
    make_flat(graph)
    assert [node.op for node in graph.graph.nodes][:2] == ["placeholder"] * 2
    product, total = torch.utils._pytree.tree_leaves(graph(x, x.T))
    assert torch.equal(product, x @ x.T)
    assert torch.equal(total, x.sum())


def private_names(text: str) -> list[str]:
    """Names of torch and Pyro in a file that begin with an underscore, and Pyro's private attributes by any other name."""
    names: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            chain = ast.unparse(node)
            names += [chain] if re.fullmatch(r"[\w.]+", chain) else []
    theirs = [name for name in names if name.split(".")[0] in ("torch", "pyro", "fx", "poutine", "Tensor", "store")]
    elsewhere = ("_schema", "_codegen", "_param_to_name", "_PYRO_STACK")
    return [
        name
        for name in {*theirs, *(n for n in names if n.endswith(elsewhere))}
        if not name.startswith("torch.ops.")
        and (any(piece.startswith("_") and piece[:2] != "__" for piece in name.split(".")) or "fx.experimental" in name)
    ]


def test_private_apis_are_used_in_three_files_alone() -> None:
    every = (f for top in ("pyrodrop", "models", "guides", "analysis") for f in (ROOT / top).rglob("*.py"))
    files = {f.resolve() for f in every}  # pyrodrop/ has links to the others
    used = {str(f.relative_to(ROOT)): names for f in files if (names := private_names(f.read_text()))}
    places = ("private_apis", "compiled/private_apis", "torchscript")
    assert set(used) == {f"pyrodrop/{place}.py" for place in places}
