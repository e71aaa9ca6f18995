"""Networks that return more than one tensor."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop import likelihoods
from pyrodrop.analysis.lab.networks import Case


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.tanh(self.body(x))
        return {"loss": hidden.square().mean(), "logits": self.head(hidden)}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(3, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state, states = x.new_zeros(len(x), 4), []
        for step in x.unbind(1):
            state = self.cell(step, state)
            states.append(state)
        return torch.stack(states, 1), state


CASES = {
    "mapping_output": Case(
        about="A mapping of logits and an auxiliary loss out: output= takes the logits.",
        network=Classifier,
        x=lambda: torch.randn(6, 3),
        likelihood=likelihoods.Categorical,
        options={"output": lambda out: out["logits"]},
    ),
    "tuple_output": Case(
        about="A tuple out, as recurrent layers return it: output= takes the last state.",
        network=Recurrent,
        x=lambda: torch.randn(6, 3, 3),
        options={"output": lambda out: out[1]},
        rows=True,
    ),
}
