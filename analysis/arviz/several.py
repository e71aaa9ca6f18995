"""Join the data trees of several fits.

    observed_data; x, y_observed     [obs_id] ...                  the same for all models
    all other variables              [model, chain, draw, ...]     if all models have it, with the same dimensions and labels

Other variables, such as a drop rate that only some models have, or weights of different widths, are left out; the attribute
``left_out`` names them. An attribute that differs is stored once per model, ``elbo (NAME)``. If the numbers of chains or
draws differ, every model gets one chain with as many draws as the model with the fewest, evenly spaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr

_DRAWS = ("chain", "draw")


def one_tree(trees: Mapping[str, xr.DataTree]) -> xr.DataTree:
    """The tree of several models, from the tree of each.

    Raises:
        ValueError: the trees have different observations or points.
    """
    names = xr.DataArray(list(trees), dims="model", name="model")
    sizes = [[tree["posterior"].sizes[dim] for dim in _DRAWS] for tree in trees.values()]
    fewest = None if all(size == sizes[0] for size in sizes) else min(chains * draws for chains, draws in sizes)
    groups: dict[str, xr.Dataset] = {}
    left_out: dict[str, list[str]] = {}
    for group in _in_order(tree.children for tree in trees.values()):
        of_models = {name: tree[group].to_dataset() for name, tree in trees.items() if group in tree.children}
        joined: dict[Any, xr.DataArray] = {}
        for variable in _in_order(dataset.data_vars for dataset in of_models.values()):
            values = {name: dataset[variable] for name, dataset in of_models.items() if variable in dataset}
            first, everywhere = next(iter(values.values())), len(values) == len(trees)
            if group == "observed_data" or ("draw" not in first.dims and {"obs_id", "pred_id"} & set(first.dims)):
                if not everywhere or not all(first.equals(value) for value in values.values()):
                    raise ValueError(
                        f"fits of one tree must have the same data; got different {variable} of {', '.join(trees)}"
                    )
                joined[variable] = first
            elif everywhere and all(_alike(first, value) for value in values.values()):
                of_one_size = [value if fewest is None else _one_chain(value, fewest) for value in values.values()]
                joined[variable] = xr.concat(of_one_size, names)
            else:
                left_out.setdefault(f"{group} of {', '.join(values)}", []).append(str(variable))
        groups |= {group: xr.Dataset(joined)} if joined else {}
    tree = xr.DataTree.from_dict(groups)
    tree.attrs.update(_attrs({name: tree.attrs for name, tree in trees.items()}))
    if left_out:
        tree.attrs["left_out"] = "; ".join(f"{where}: {', '.join(variables)}" for where, variables in left_out.items())
    return tree


def _attrs(of_models: Mapping[str, Mapping[Any, Any]]) -> dict[str, Any]:
    """Join attributes: one that is equal for all models keeps its name, others get the name of the model added."""
    joined: dict[str, Any] = {}
    for key in _in_order(of_models.values()):
        values = {name: attrs[key] for name, attrs in of_models.items() if key in attrs}
        first = next(iter(values.values()))
        if key == "log_likelihood_missing":
            joined[key] = "; ".join(f"{name}: {reason}" for name, reason in values.items())
        elif len(values) == len(of_models) and all(np.array_equal(first, value) for value in values.values()):
            joined[key] = first
        else:
            joined |= {f"{key} ({name})": value for name, value in values.items()}
    return joined


def _alike(first: xr.DataArray, other: xr.DataArray) -> bool:
    """Whether two variables have the same dimensions and, except for chains and draws, the same labels."""
    labels = (
        first.coords[dim].equals(other.coords[dim]) for dim in first.dims if dim not in _DRAWS and dim in other.dims
    )
    return first.dims == other.dims and all(labels)


def _one_chain(value: xr.DataArray, count: int) -> xr.DataArray:
    """One chain of `count` draws, evenly spaced over all draws of all chains."""
    if "draw" not in value.dims:
        return value
    total = value.sizes["chain"] * value.sizes["draw"]
    flat = value.stack(all=_DRAWS, create_index=False).drop_vars(_DRAWS).rename(all="draw")
    chosen = flat.isel(draw=np.arange(1, count + 1) * total // count - 1)
    return chosen.expand_dims(chain=[0]).assign_coords(draw=np.arange(count)).transpose(*_DRAWS, ...)


def _in_order(keys: Iterable[Iterable[Any]]) -> dict[Any, None]:
    """Every key once, in the order of its first appearance."""
    return dict.fromkeys(key for some in keys for key in some)
