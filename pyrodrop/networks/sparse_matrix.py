"""Sparse matrices among the buffers of a network, multiplied by operations that every engine has.

    y = A x,   y_r = sum over entries e of row r of a_e x[column_e]        A [N, M] with E entries, x [M, D]

`torch.vmap` and compiled steps have no products of sparse tensors, which cannot be compared, stacked or saved either. In a
model's copy of a network such a buffer holds its values a ``[E]``, and reading it gives a `SparseMatrix`.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

_PRODUCTS: tuple[Any, ...] = (torch.sparse.mm, torch.mm, torch.matmul, torch.spmm)


class SparseMatrix:
    """The matrix with these entries, at `indices` ``[2, E]``. It can be multiplied with a dense one, and nothing else."""

    def __init__(self, indices: Tensor, values: Tensor, shape: torch.Size) -> None:
        self.indices, self.values, self.shape = indices, values, shape

    def __matmul__(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or len(x) != self.shape[1]:
            raise RuntimeError(f"a sparse matrix {list(self.shape)} cannot be multiplied with {list(x.shape)}")
        rows, columns = self.indices
        terms = self.values[:, None] * x[columns]
        return terms.new_zeros(self.shape[0], x.shape[1]).index_add(0, rows, terms)

    mm = matmul = __matmul__

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _PRODUCTS and not kwargs and len(args) == 2 and isinstance(args[0], cls):
            return args[0] @ args[1]
        return cls.__getattr__(args[0], getattr(function, "__name__", str(function)))

    def __getattr__(self, name: str) -> NoReturn:
        raise ValueError(
            "a sparse buffer can only be multiplied with a matrix, buffer @ x or torch.sparse.mm(buffer, x); got "
            f"{name}: register buffer.to_dense()"
        )

    def __mul__(self, *others: Any) -> NoReturn:
        self.__getattr__("another operation")

    __rmul__ = __truediv__ = __add__ = __radd__ = __sub__ = __getitem__ = __bool__ = __eq__ = __ne__ = __mul__


class _Entries(nn.Module):
    """The parametrisation of a buffer that makes a matrix of its values."""

    def __init__(self, indices: Tensor, shape: torch.Size) -> None:
        super().__init__()
        self.register_buffer("indices", indices)
        self.shape: torch.Size = shape

    def forward(self, values: Tensor) -> SparseMatrix:
        return SparseMatrix(self.get_buffer("indices"), values, self.shape)


def is_sparse_matrix(tensor: Tensor) -> bool:
    """Whether a tensor is a sparse matrix of any layout, whose entries are numbers."""
    return tensor.layout != torch.strided and tensor.dim() == 2 and tensor.dense_dim() == 0


def hold_entries(network: nn.Module) -> None:
    """Have the sparse matrices among the buffers of a network hold their values alone."""
    for module in list(network.modules()):
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and is_sparse_matrix(buffer):
                entries = buffer.detach().to_sparse_coo().coalesce()
                module._buffers[name] = entries.values().clone()
                of = _Entries(entries.indices().clone(), entries.shape)
                parametrize.register_parametrization(module, name, of, unsafe=True)
