"""Names of other projects that the reference links to, and the pages that document them.

Sphinx takes these from an inventory, which it would fetch from each project at every build. Here the few names that occur
are listed, so that a build needs no network and gives the same links everywhere.
"""

from __future__ import annotations

import zlib
from pathlib import Path

ADDRESSES = {
    "gpytorch": "https://docs.gpytorch.ai/en/stable/",
    "matplotlib": "https://matplotlib.org/stable/",
    "numpy": "https://numpy.org/doc/stable/",
    "pandas": "https://pandas.pydata.org/docs/",
    "pyro": "https://docs.pyro.ai/en/stable/",
    "python": "https://docs.python.org/3/",
    "sklearn": "https://scikit-learn.org/stable/",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "xarray": "https://docs.xarray.dev/en/stable/",
    "arviz": "https://python.arviz.org/en/stable/",
}

# Page, then the kind and names of what it documents. The anchor is the name.
PAGES = {
    "arviz": {"index.html": "module: arviz"},
    "gpytorch": {"kernels.html": "class: gpytorch.kernels.Kernel"},
    "matplotlib": {
        "api/figure_api.html": "class: matplotlib.figure.Figure",
        "api/_as_gen/matplotlib.axes.Axes.html": "class: matplotlib.axes.Axes",
    },
    "numpy": {
        "reference/generated/numpy.ndarray.html": "class: numpy.ndarray",
        "reference/typing.html": "data: numpy.typing.ArrayLike numpy.typing.NDArray",
    },
    "pandas": {
        "reference/api/pandas.DataFrame.html": "class: pandas.DataFrame",
        "reference/api/pandas.Series.html": "class: pandas.Series",
    },
    "pyro": {
        "distributions.html": "class: pyro.distributions.TorchDistribution",
        "mcmc.html": "class: pyro.infer.mcmc.NUTS pyro.infer.mcmc.HMC pyro.infer.mcmc.api.MCMC",
        "inference_algos.html": "class: pyro.infer.svi.SVI pyro.infer.elbo.ELBO pyro.infer.trace_elbo.Trace_ELBO",
        "optimization.html": "class: pyro.optim.optim.PyroOptim",
        "primitives.html": "function: pyro.primitives.param",
    },
    "python": {
        "library/functions.html": "class: bool bytes complex dict float frozenset int list object set slice str tuple type",
        "library/stdtypes.html": "class: memoryview",
        "library/constants.html": "data: None",
        "library/exceptions.html": "exception: ArithmeticError AttributeError Exception FileExistsError FileNotFoundError "
        "FloatingPointError ImportError IndexError KeyError MemoryError ModuleNotFoundError NotImplementedError OSError "
        "OverflowError RuntimeError RuntimeWarning TypeError UserWarning ValueError Warning ZeroDivisionError",
        "library/abc.html": "class: abc.ABC",
        "library/collections.abc.html": "class: collections.abc.Callable collections.abc.Collection collections.abc.Mapping "
        "collections.abc.Hashable collections.abc.Iterable collections.abc.Iterator collections.abc.MutableMapping "
        "collections.abc.Sequence",
        "library/os.html": "class: os.PathLike",
        "library/pathlib.html": "class: pathlib.Path",
        "library/typing.html": "data: typing.Any typing.Literal typing.Unpack typing.Generic typing.Protocol",
    },
    "sklearn": {
        "modules/generated/sklearn.base.ClassifierMixin.html": "class: sklearn.base.ClassifierMixin",
        "modules/generated/sklearn.base.RegressorMixin.html": "class: sklearn.base.RegressorMixin",
    },
    "torch": {
        "tensors.html": "class: torch.Tensor",
        "size.html": "class: torch.Size",
        "tensor_attributes.html": "class: torch.dtype torch.device",
        "optim.html": "class: torch.optim.Optimizer",
        "fx.html": "class: torch.fx.GraphModule",
        "generated/torch.Generator.html": "class: torch.Generator",
        "generated/torch.vmap.html": "function: torch.vmap",
        "generated/torch.func.functional_call.html": "function: torch.func.functional_call",
        "generated/torch.nn.Module.html": "class: torch.nn.Module",
        "generated/torch.nn.Dropout.html": "class: torch.nn.Dropout",
        "generated/torch.nn.MSELoss.html": "class: torch.nn.MSELoss",
        "generated/torch.nn.Parameter.html": "class: torch.nn.Parameter",
        "generated/torch.manual_seed.html": "function: torch.manual_seed",
        "distributions.html": "class: torch.distributions.distribution.Distribution torch.distributions.normal.Normal "
        "torch.distributions.constraints.Constraint torch.distributions.categorical.Categorical",
    },
    "xarray": {
        "generated/xarray.DataTree.html": "class: xarray.DataTree",
        "generated/xarray.Dataset.html": "class: xarray.Dataset",
    },
}

# How annotations and docstrings write a name, and how its project documents it.
WRITTEN = {
    "Axes": "matplotlib.axes.Axes",
    "DataTree": "xarray.DataTree",
    "Figure": "matplotlib.figure.Figure",
    "Module": "torch.nn.Module",
    "Size": "torch.Size",
    "Tensor": "torch.Tensor",
    "TorchDistribution": "pyro.distributions.TorchDistribution",
    "gpytorch.kernels.kernel.Kernel": "gpytorch.kernels.Kernel",
    "matplotlib.axes._axes.Axes": "matplotlib.axes.Axes",
    "pd.DataFrame": "pandas.DataFrame",
    "pd.Series": "pandas.Series",
    "pandas.core.frame.DataFrame": "pandas.DataFrame",
    "pyro.distributions.torch_distribution.TorchDistribution": "pyro.distributions.TorchDistribution",
    "pyro.infer.HMC": "pyro.infer.mcmc.HMC",
    "pyro.infer.MCMC": "pyro.infer.mcmc.api.MCMC",
    "pyro.infer.NUTS": "pyro.infer.mcmc.NUTS",
    "pyro.infer.SVI": "pyro.infer.svi.SVI",
    "pyro.param": "pyro.primitives.param",
    "torch._C.Generator": "torch.Generator",
    "torch.distributions.Distribution": "torch.distributions.distribution.Distribution",
    "torch.fx.graph_module.GraphModule": "torch.fx.GraphModule",
    "torch.nn.modules.module.Module": "torch.nn.Module",
    "torch.nn.parameter.Parameter": "torch.nn.Parameter",
    "torch.optim.optimizer.Optimizer": "torch.optim.Optimizer",
    "xarray.core.datatree.DataTree": "xarray.DataTree",
    "xarray.core.dataset.Dataset": "xarray.Dataset",
}


def mapping(folder: Path) -> dict[str, tuple[str, str]]:
    """Write an inventory per project into a folder; the value of Sphinx's ``intersphinx_mapping``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        (folder / f"{name}.inv").write_bytes(inventory(name))
    return {name: (ADDRESSES[name], str(folder / f"{name}.inv")) for name in PAGES}


def inventory(name: str) -> bytes:
    """The inventory of a project, in version 2 of Sphinx's format."""
    lines = []
    for page, names in PAGES[name].items():
        kind, _, listed = names.partition(": ")
        lines += [f"{public_name} py:{kind} 1 {page}#$ -\n" for public_name in listed.split()]
    head = f"# Sphinx inventory version 2\n# Project: {name}\n# Version: \n# The rest is compressed with zlib.\n"
    return head.encode() + zlib.compress("".join(lines).encode(), 9)
