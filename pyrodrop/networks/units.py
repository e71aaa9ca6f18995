"""Which axis of each weight indexes input units, by the type of its module.

nn.Linear, nn.RNN, nn.LSTM, nn.GRU and their cells, nn.MultiheadAttention    axis 1
nn.Conv*d                                                                    axis 1, in groups
nn.ConvTranspose*d                                                           axis 0, in groups
nn.Embedding, nn.EmbeddingBag                                                axis 0, one unit per word
everything else: vectors, norms, class tokens, parameters of custom modules  none
"""

from __future__ import annotations

from torch import nn

from pyrodrop.distributions.units import InputUnits

_NONE = InputUnits(None)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


def input_units(network: nn.Module) -> dict[str, InputUnits]:
    """The input units of every parameter of a network, and of every buffer that may replace one (`sites.freeze`)."""
    found = {}
    for prefix, module in network.named_modules(remove_duplicate=False):
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            if value is not None:
                full = f"{prefix}.{name}" if prefix else name
                found[full] = units_of_parameter(module, name) if value.dim() > 1 else _NONE
    return found


def units_of_parameter(module: nn.Module, name: str) -> InputUnits:
    """The input units of one parameter of a module.

    Args:
        module: the module that owns the parameter.
        name: the parameter's name in the module, such as ``weight``.
    """
    if isinstance(module, _RECURRENT):
        return InputUnits(1) if name.startswith("weight") else _NONE
    if isinstance(module, nn.MultiheadAttention):
        return InputUnits(1) if name.endswith("proj_weight") else _NONE
    if name != "weight":
        return _NONE
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return InputUnits(0, module.groups)
    if isinstance(module, nn.modules.conv._ConvNd):
        return InputUnits(1, module.groups)
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return InputUnits(0)
    return InputUnits(1) if isinstance(module, nn.Linear) else _NONE
