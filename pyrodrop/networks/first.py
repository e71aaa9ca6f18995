"""The weights that are applied to x itself: those of the first layers, in the order of the forward."""

from __future__ import annotations

from collections.abc import Collection

from torch import fx, nn

from pyrodrop.threads import drawing

# In layers with several weights: those that are multiplied with the layer's input.
_MEETS_INPUT = {
    nn.RNNBase: lambda own: own.startswith("weight_ih_l0"),
    nn.RNNCellBase: lambda own: own == "weight_ih",
    nn.MultiheadAttention: lambda own: own.startswith(("in_proj", "q_proj", "k_proj", "v_proj")),
}


def first_weights(network: nn.Module, units: Collection[str]) -> tuple[str, ...]:
    """Names of the weights that are applied to x, or to a function of x that uses no other weight with input units.

    Args:
        network: traced by `torch.fx`, not run.
        units: names of the weights that have input units.

    Raises:
        ValueError: `torch.fx` cannot trace the network, for instance because it branches on values, or no such weight is
            found.
    """
    try:
        with drawing():  # the tracer patches torch's functions while it runs
            graph = fx.Tracer().trace(network)
    except Exception as error:  # of any type: the forward may need values
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{_BY_NAME} (torch.fx cannot trace it: {text})") from error
    modules = dict(network.named_modules())
    untouched: set[fx.Node] = set()  # x, and functions of x that use no weight with input units
    touched: set[fx.Node] = set()  # everything behind such a weight
    found: list[str] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            untouched.add(node)
            continue
        own = _weights_at(node, modules, units)
        sees_x = any(source in untouched for source in node.all_input_nodes)
        if own or any(source in touched for source in node.all_input_nodes):
            touched.add(node)
        elif sees_x:
            untouched.add(node)
        if own and sees_x:
            found += own
    if not found:
        raise ValueError(_BY_NAME)
    return tuple(dict.fromkeys(found))


def _weights_at(node: fx.Node, modules: dict[str, nn.Module], units: Collection[str]) -> list[str]:
    """The weights with input units that an operation multiplies its input with."""
    if node.op == "call_module":
        module, prefix = modules[str(node.target)], f"{node.target}."
        own = [name.removeprefix(prefix) for name in units if name.startswith(prefix)]
        meets = next((rule for kind, rule in _MEETS_INPUT.items() if isinstance(module, kind)), None)
        if meets is not None:
            own = [name for name in own if meets(name)]
        elif len(own) > 1:
            raise ValueError(f"{_BY_NAME} ({node.target!r} is a {type(module).__name__} with several weights)")
        return [prefix + name for name in own]
    return [str(source.target) for source in node.all_input_nodes if source.op == "get_attr" and source.target in units]


_BY_NAME = (
    "mask_input=False needs the first layer, which cannot be identified in this network; set its rate by name instead, as "
    "in drop_rate={'first.weight': 0.0, '*': 0.1}"
)
