"""Profile of a compiled training step by operation.

``python -m pyrodrop.analysis.benchmarks.profile [--posterior NAME] [--steps N] [--least SHARE]``: PyTorch's profiler over
compiled steps on one thread; every operation above a share of the time.
"""

from __future__ import annotations

import warnings

import jsonargparse
import torch
from torch.profiler import ProfilerActivity, profile

from pyrodrop.analysis.benchmarks.networks import POSTERIORS, networks, prepared
from pyrodrop.analysis.benchmarks.timing import machine, report
from pyrodrop.names import known
from pyrodrop.private_apis import profile_kernels


def main(posterior: str = "Bernoulli", network: str = "MLP", steps: int = 30, least: float = 0.01) -> None:
    """Print the table.

    Args:
        posterior: Bernoulli, variational B or mean field.
        network: MLP, LeNet or 13-50-1.
        steps: number of profiled steps.
        least: smallest share of the time of a listed operation.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known(posterior, POSTERIORS, "posterior")
    profile_kernels()
    training = prepared(networks()[known(network, networks(), "network")], posterior, "compiled")
    training.advance(training.done + 5)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        training.advance(training.done + steps)
    events = sorted(recorded.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    print(machine())
    rows = {
        event.key[:100]: {
            "share": event.self_cpu_time_total / total,
            "ms a step": event.self_cpu_time_total / 1e3 / steps,
        }
        for event in events
        if event.self_cpu_time_total >= least * total
    }
    report(f"{network}, {posterior}, compiled: {total / 1e3 / steps:.2f} ms a step", rows, ".3f")


if __name__ == "__main__":
    jsonargparse.auto_cli(main)
