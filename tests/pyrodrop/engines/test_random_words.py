"""Random words of several generators at once, against `Tensor.random_`, by which each generator draws alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pyrodrop.distributions.coins import StackedMasks, words_of
from pyrodrop.engines import random_words
from pyrodrop.engines.private_apis import Program
from pyrodrop.engines.random_words import RandomWords

R = 16


def generators() -> list[torch.Generator]:
    return [torch.Generator().manual_seed(100 + r) for r in range(R)]


def drawn(own: list[torch.Generator], count: int) -> Tensor:
    return torch.stack([torch.empty(count, dtype=torch.long).random_(-(2**63), None, generator=g) for g in own])


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations of the program without a compiler."""
    program = Program(lambda inputs: random_words._advance(*inputs))
    monkeypatch.setattr(random_words, "found_or_made", lambda parts, inputs, make, check: check(program))


def compare(before: int) -> None:
    """Words, and whatever the generators draw next, from a state that has given so many numbers."""
    ours, theirs = generators(), generators()
    for generator in ours + theirs:
        torch.randperm(before + 1, generator=generator)  # takes so many
    words = RandomWords(R, 1000)
    assert words._call is not None
    for count in (1, 311, 312, 313, 624, 1000):
        words.fill(count, ours)
        assert torch.equal(words.bits[:, :count], drawn(theirs, count))
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(torch.randperm(8, generator=one), torch.randperm(8, generator=other))
            assert torch.equal(torch.randn(3, generator=one), torch.randn(3, generator=other))


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("before", [0, 1, 623, 624])
def test_words_are_those_of_the_generators(before: int) -> None:
    compare(before)


@pytest.mark.more
def test_so_are_those_of_the_compiled_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYRODROP_CACHE", str(tmp_path))
    compare(3)
    compare(3)  # by the file of the first


@pytest.mark.usefixtures("uncompiled")
def test_generators_at_different_places_draw_their_own() -> None:
    ours, theirs = generators(), generators()
    for own in (ours, theirs):
        torch.randperm(9, generator=own[4])
    words = RandomWords(R, 400)
    words.fill(400, ours)
    assert torch.equal(words.bits[:, :400], drawn(theirs, 400))


@pytest.mark.usefixtures("uncompiled")
def test_masks_of_several_steps_are_the_signs_of_pieces_of_words() -> None:
    """At rate 1/2 an entry is kept where its 16 bits are a negative number; a mask takes whole words, one piece unused."""
    shapes, steps = [(3, 5), (7,)], 4
    words = RandomWords(R, steps * words_of(shapes))
    places = [torch.empty(steps, R, *shape, dtype=torch.uint8) for shape in shapes]
    ours, theirs = generators(), generators()
    keeps: Any = [[torch.tensor(0.5)] * R] * 2
    masks_of_steps = StackedMasks(keeps, shapes, ours, places, words.bits, words.fill)
    for count in (4, 2, 3):
        masks_of_steps.draw(count)
        for step in range(count):
            for shape, place in zip(shapes, places, strict=True):
                size = torch.Size(shape).numel()
                pieces = drawn(theirs, size // 4 + 1).view(torch.int16)[:, :size]
                assert torch.equal(place[step], (pieces < 0).byte().reshape(R, *shape))


def test_without_a_program_each_generator_draws(
    uncompiled: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the program makes other words, which the log says."""
    monkeypatch.setattr(random_words, "_advance", lambda even, odd, words: words.zero_())
    with caplog.at_level("INFO", "pyrodrop"):
        words = RandomWords(R, 10)
    assert "its random words are not those of the generators" in caplog.text
    words.fill(10, generators())
    assert torch.equal(words.bits[:, :10], drawn(generators(), 10))
