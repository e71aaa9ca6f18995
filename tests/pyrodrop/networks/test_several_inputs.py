"""x as several tensors, positional or named: rows that stay together, strides, and names of arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.data import Dataset
from pyrodrop.training.rows import Minibatches


@pytest.mark.parametrize("form", ["tuple", "mapping"])
def test_rows_of_all_parts_and_targets_stay_together(form: str) -> None:
    """Every part carries the number of its row."""
    numbers = torch.arange(10.0)
    x: Any = (numbers[:, None], -numbers) if form == "tuple" else {"a": numbers[:, None], "b": -numbers}
    own, other = (
        Dataset(x, numbers),
        Dataset(x if form != "tuple" else (numbers[:, None] + 50, -numbers - 50), numbers + 50),
    )
    batches = Minibatches(own, 4, torch.device("cpu"))
    stacked = Minibatches([own, other], 4, torch.device("cpu"))
    assert [len(batch.y) for batch in batches.samples(3)] == [4, 2]
    assert [len(batch.y) for batch in batches.samples(2)] == [4]
    seen = []
    for batch in [batches.next() for _ in range(3)] + [stacked.next() for _ in range(3)]:
        first, second, y = batch.tensors
        assert torch.equal(first[..., 0] % 50, y % 50)
        assert torch.equal(-second.reshape(y.shape) % 50, y % 50)
        seen.append(y)
    assert torch.cat(seen[:3]).sort()[0].tolist() == numbers.tolist()
    assert torch.cat(seen[3:], 1)[1].sort()[0].tolist() == (numbers + 50).tolist()


@pytest.mark.parametrize("layout", ["columns", "transposed", "expanded", "every second row", "channels last"])
def test_the_first_rows_have_the_strides_of_all_later_ones(layout: str) -> None:
    """A compiled step is made for the strides of the first rows."""
    x, y = {
        "columns": (torch.randn(10, 7)[:, :3], torch.randn(10, 2)[:, 1]),
        "transposed": (torch.randn(3, 10).T, torch.randn(2, 10).T),
        "expanded": (torch.randn(10, 1).expand(10, 3), torch.randn(1).expand(10)),
        "every second row": (torch.randn(20, 3)[::2], torch.randn(20)[::2]),
        "channels last": (torch.randn(10, 3, 4, 4).to(memory_format=torch.channels_last), torch.randn(10)),
    }[layout]
    batches = Minibatches(Dataset(x, y), 4, torch.device("cpu"))
    whole, rest = batches.samples(None)
    assert torch.equal(whole.x, x[:4])  # type: ignore[arg-type]
    assert torch.equal(rest.y, y[:2])
    for first, later in zip((whole, whole, rest), [batches.next() for _ in range(3)], strict=True):
        assert [t.stride() for t in first.tensors] == [t.stride() for t in later.tensors]
        assert first.kwargs == later.kwargs == {"num_data": 10}


class Masked(nn.Module):
    """Takes its inputs one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.layer(x if mask is None else x * mask)  # type: ignore[no-any-return]


def test_an_input_with_another_name_than_the_arguments_is_named() -> None:
    net, a, y = Masked(), torch.randn(20, 3), torch.randn(20, 1)
    model = models.from_module(net, priors.Gaussian(), likelihoods.Gaussian(1.0))
    for inputs, message in ({"x": a, "msk": a}, "argument 'msk'"), ({"mask": a}, "argument: 'x'"):
        with pytest.raises(ValueError, match=message):
            pyrodrop.fit(model, guides.Point(model), (inputs, y), steps=1)
    torch.testing.assert_close(model.outputs(model.weight_sites(), {"x": a, "mask": a}), net(a * a))
