"""Data that are read a minibatch at a time.

torch.utils.data.Dataset      rows by index, if it has a length
np.memmap                     rows by index: in a pair (x, y) of which at least one is mapped, if batch_size is given
torch.utils.data.DataLoader   minibatches; so does any other iterable of minibatches, with num_data
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from pyrodrop.arguments import shown
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.loader import Loader
from pyrodrop.data.rows import PIECE, mapped_file, of_files, of_torch
from pyrodrop.data.streamed import Streamed


def streamed_of(data: Any, batch_size: int | None, num_data: int | None, *, missing: bool = False) -> Any:
    """Convert data that are read a minibatch at a time to `Streamed` and a TensorDataset to a pair; return others unchanged.

    Raises:
        TypeError, ValueError: `num_data` is given for data whose rows are known, or missing for a loader that needs it.
    """
    converted = data if isinstance(data, Streamed | Dataset | Mapping) else _by_number(data, batch_size, missing)
    minibatches = (
        converted is data and num_data is not None and not isinstance(data, Streamed | Dataset | Mapping | tuple)
    )
    if isinstance(data, DataLoader) or minibatches:
        converted = Loader(data, num_data, missing=missing)
    elif num_data is not None:
        raise ValueError(
            "num_data is the number of rows behind the minibatches of a loader, and must be left out where data have rows "
            f"of their own; got {num_data} and {shown(data)}"
        )
    if isinstance(converted, Loader) and converted.num_data is None:
        raise ValueError(
            f"num_data, the number of rows of the data set, must be given for {converted.source}, whose minibatches need "
            "not be all rows once per epoch: the likelihood of a minibatch counts num_data / rows times"
        )
    return converted


def read_for(data: Any, *, missing: bool = False) -> Streamed | None:
    """`Streamed` data for predictions and estimates from a DataLoader, torch Dataset or `Streamed`; None for other data."""
    if isinstance(data, Streamed):
        return data
    if isinstance(data, TorchDataset) and not isinstance(data, IterableDataset):
        return of_torch(data, PIECE, missing)
    return Loader(data, None, missing=missing) if isinstance(data, DataLoader) else None


def _by_number(data: Any, batch_size: int | None, missing: bool) -> Any:
    """`Rows` of a torch Dataset or of mapped files; the tensors of a TensorDataset as a pair; other data unchanged."""
    if isinstance(data, TensorDataset) and len(data.tensors) > 1:
        *xs, y = data.tensors
        return (xs[0] if len(xs) == 1 else tuple(xs), y)
    if isinstance(data, IterableDataset):
        raise TypeError(
            f"data must be rows by number or minibatches; got {shown(data)}, an IterableDataset: pass "
            "DataLoader(dataset, batch_size=...) and num_data"
        )
    if isinstance(data, TorchDataset):
        return of_torch(data, batch_size, missing)
    if isinstance(data, tuple | list) and len(data) == 2 and batch_size is not None:
        x = tuple(data[0]) if isinstance(data[0], list) else data[0]
        values = [*(x.values() if isinstance(x, Mapping) else x if isinstance(x, tuple) else [x]), data[1]]
        if any(mapped_file(value) is not None for value in values):
            return of_files(x, data[1], values, missing)
    return data
