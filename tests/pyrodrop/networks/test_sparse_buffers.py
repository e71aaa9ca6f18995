"""Sparse matrices among the buffers of a network: products as those of PyTorch, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

Product = Callable[[Tensor, Tensor], Tensor]
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": Tensor.to_sparse,
    "csr": Tensor.to_sparse_csr,
    "csc": Tensor.to_sparse_csc,
    "entries twice": lambda a: torch.sparse_coo_tensor(
        a.nonzero().T.repeat(1, 2), torch.cat([0.25 * a[a != 0], 0.75 * a[a != 0]]), a.shape
    ),
}
PRODUCTS: dict[str, Product] = {
    "sparse.mm": torch.sparse.mm,
    "mm": torch.mm,
    "matmul": torch.matmul,
    "@": lambda a, x: a @ x,
    "methods": lambda a, x: a.mm(a.matmul(x)),
}
REFUSED: dict[str, Product] = {
    "on the right": lambda a, x: (x.T @ a).T,
    "linear": lambda a, x: nn.functional.linear(x.T, a).T,
    "times": lambda a, x: (2 * a) @ x,
    "half": lambda a, x: (a / 2) @ x,
    "compared": lambda a, x: x * (a != 0),
    "transposed": lambda a, x: a.T @ x,
    "reduced": lambda a, x: torch.sparse.mm(a, x, "mean"),  # type: ignore[call-arg]
    "addmm": lambda a, x: torch.sparse.addmm(x, a, x),
    "entries": lambda a, x: a.coalesce() @ x,
}


class Graph(nn.Module):
    def __init__(self, neighbours: Tensor, product: Product) -> None:
        super().__init__()
        self.first, self.head, self.product = nn.Linear(3, 5), nn.Linear(5, 2), product
        self.scale = nn.Parameter(torch.rand(5))
        self.register_buffer("neighbours", neighbours)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x))  # type: ignore[no-any-return]

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(self.scale * self.product(self.neighbours, self.first(x)))


def made(layout: Callable[[Tensor], Tensor], product: Product) -> tuple[Graph, models.NetworkModel, Tensor]:
    """A graph of eight nodes, its model, and x."""
    torch.manual_seed(0)
    net = Graph(layout(torch.rand(8, 8) * (torch.rand(8, 8) < 0.4)), product)
    return net, models.from_module(net, priors.Gaussian(), likelihoods.Gaussian(10.0)), torch.randn(8, 3)


@pytest.mark.parametrize(
    ("layout", "product"), [*((layout, "@") for layout in LAYOUTS), *(("coo", product) for product in PRODUCTS)]
)
def test_products_are_those_of_pytorch(layout: str, product: str) -> None:
    net, model, x = made(LAYOUTS[layout], PRODUCTS[product])
    torch.testing.assert_close(model.outputs(model.weight_sites(), x).detach(), net(x).detach())
    assert net.neighbours.layout != torch.strided  # of the user's network, which is as it was
    assert type(net) is Graph


@pytest.mark.parametrize("operation", REFUSED)
def test_other_operations_are_refused(operation: str) -> None:
    _, model, x = made(Tensor.to_sparse, REFUSED[operation])
    with pytest.raises(ValueError, match=r"can only be multiplied with a matrix.*register buffer\.to_dense\(\)"):
        pyrodrop.fit(model, guides.MeanField(model), (x, torch.zeros(8, 2)), steps=1)


def test_dropout_behind_a_sparse_product_is_read() -> None:
    """Mean and variance over the masks, in closed form; within five standard errors."""
    net, _, x = made(Tensor.to_sparse, torch.sparse.mm)
    head, draws = net.head, 1000
    net.head = nn.Sequential(nn.Dropout(0.5), head)  # type: ignore[assignment]
    reading = pyrodrop.read(net, x, likelihood=likelihoods.Gaussian(1.0), num_data=8, prior=priors.Gaussian())
    f = reading.predict(x, draws).f
    with torch.no_grad():
        mean, variance = head(net.hidden(x)), net.hidden(x).square() @ head.weight.square().T
    assert float(((f.mean(0) - mean).abs() / (variance / draws).sqrt()).max()) < 5
    assert float((f.var(0) / variance - 1).abs().max()) < 5 * (2 / draws) ** 0.5
