"""Whether a compilation is worth its time.

    a compiled step saves    (a + b n) o + m e / 2       of n operations with m entries in all their results
    compiling takes          s (c + d n) o               for s shapes of minibatches

o is the time of an operation on a few numbers, and e that of an entry. b, c and d are larger where `torch.vmap` maps
operations over replicates. All were measured on one machine and are constants, so that a call takes the same engine on
every machine. Only the ratio of e to o decides, which differs between machines by less than a factor of 2. On a GPU an
operation is a launch, which takes ten times o, and a compilation takes about as long as on a CPU.
"""

from __future__ import annotations

from pyrodrop.compiled.graph import Graph

_STEP, _OPERATION, _COMPILATION, _COMPILED_OPERATION = 100, 1.6, 6.5e6, 1e4  # a, b, c and d
_MAPPED_OPERATION, _MAPPED_COMPILATION = 25, 3  # b, and times c and d, of operations that are mapped
_SECONDS, _SECONDS_OF_ENTRY = 6.2e-7, 1.15e-10  # o and e
_LAUNCH = 10  # times o, of networks of 50 to 1,000 units and a LeNet on an H100
_COUNTED = 1 / 3  # of a compilation's time: later fits find the program again


def worth_compiling(graph: Graph, steps: int, replicates: int = 1, *, shapes: int = 1, on_gpu: bool = False) -> bool:
    """Whether compiled steps are likely to save more than a third of the time of their compilation.

    Args:
        graph: the graph of the gradient of a minibatch.
        steps: number of steps.
        replicates: number of replicates that are trained together; steps that are not compiled are mapped over several.
        shapes: number of shapes of the minibatches.
        on_gpu: whether the steps are made on a GPU.
    """
    operations, entries = len(graph.operations), graph.entries * replicates
    operation, times = (_OPERATION, 1) if replicates == 1 else (_MAPPED_OPERATION, _MAPPED_COMPILATION)
    launched = _LAUNCH if on_gpu else 1
    saved = launched * (_STEP + operation * operations) * _SECONDS + 0.5 * entries * _SECONDS_OF_ENTRY
    compilation = times * shapes * (_COMPILATION + _COMPILED_OPERATION * operations) * _SECONDS
    return steps * saved > _COUNTED * compilation
