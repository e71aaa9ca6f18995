"""Random words of several generators at once: the same as each would draw for itself, in less time.

PyTorch's CPU generator is a Mersenne Twister (Matsumoto & Nishimura 1998), which draws one number after the other:

    x[k + 624] = x[k + 397] ^ t(x[k], x[k + 1]),   t(a, b) = (a's first bit and b's other 31) >> 1 ^ (b & 1) A

Random numbers are the tempered x. Here one compiled program makes 624 of each generator. A word has an x of even index in
its upper half and the next x in its lower one; these are two arrays, so that a processor's vector holds one kind of number.
The states are read from the generators and written back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyrodrop.engines.compiled import NATIVE, compile_graph
from pyrodrop.engines.private_apis import Program, twisters
from pyrodrop.engines.programs import found_or_made
from pyrodrop.engines.untraceable import Untraceable

_log = logging.getLogger("pyrodrop")

_HALF = 312  # words of a state
_FEWEST = 16  # generators: with fewer, reading and writing the states takes longer than the program saves


class RandomWords:
    """Draws the words of several CPU generators; one after the other if they are few, or if there is no program.

    Attributes:
        bits: where `fill` writes the words, ``[count, >= most]``.
    """

    def __init__(self, count: int, most: int) -> None:
        blocks = 2 ** (-(-most // _HALF) - 1).bit_length()  # few lengths, so that few programs serve all
        self.bits: Tensor = torch.zeros(count, blocks * _HALF, dtype=torch.long)
        self._places = self.bits.split(_HALF, 1)
        self._halves = [torch.zeros(count, _HALF, dtype=torch.int32) for _ in range(2)]
        self._call: Callable[[list[Tensor]], object] | None = None
        if count >= _FEWEST and most:
            try:
                self._compile([*self._halves, self._places[0]])
            except Untraceable as error:
                self._call = None
                _log.info("generators draw one after the other: %s", error)

    def _compile(self, inputs: list[Tensor]) -> None:
        with torch.no_grad():
            found_or_made(["random words"], inputs, lambda: compile_graph(_advance, inputs, NATIVE), self._take)

    def fill(self, count: int, generators: Sequence[torch.Generator]) -> None:
        """Draw words, of which the first `count` in each row are those of `Tensor.random_` with all 64 bits."""
        if self._call is None:
            _one_by_one(self.bits[:, :count], generators)
            return
        states = torch.stack([generator.get_state() for generator in generators])
        left, place, numbers = twisters(states)
        if not bool((left == left[0]).all()):  # their arrays of numbers end at different places
            _one_by_one(self.bits[:, :count], generators)
            return
        used, whole, rest = 2 * _HALF + 1 - int(left[0]), (count - 1) // _HALF, (count - 1) % _HALF + 1
        with torch.no_grad():
            self._set(numbers)
            self._call([*self._halves, self._places[0]])
            self._set(torch.cat([numbers[:, used:], _interleaved(*self._halves)[:, :used]], 1))
            for words in self._places[:whole]:
                self._call([*self._halves, words])
            numbers.copy_(_interleaved(*self._halves)).bitwise_and_(2**32 - 1)
            self._call([*self._halves, self._places[whole]])
        place.fill_(2 * rest)
        left.fill_(2 * _HALF + 1 - 2 * rest)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state.clone())  # a crash in PyTorch 2.13 if it is a view

    def _set(self, numbers: Tensor) -> None:
        self._halves[0].copy_(numbers[:, ::2])
        self._halves[1].copy_(numbers[:, 1::2])

    def _take(self, program: Program) -> None:
        """Use a program, after a comparison of two draws with those of generators."""
        self._call = program.call
        ours, theirs = ([torch.Generator().manual_seed(r) for r in range(len(self.bits))] for _ in range(2))
        for count in (self.bits.shape[1], 10):
            self.fill(count, ours)
            got = self.bits[:, :count].clone()
            _one_by_one(self.bits[:, :count], theirs)
            if not torch.equal(self.bits[:, :count], got):
                raise Untraceable("its random words are not those of the generators")


def _one_by_one(rows: Tensor, generators: Sequence[torch.Generator]) -> None:
    for row, generator in zip(rows, generators, strict=True):
        row.random_(-(2**63), None, generator=generator)


def _interleaved(even: Tensor, odd: Tensor) -> Tensor:
    return torch.stack([even, odd], 2).flatten(1)


def _advance(even: Tensor, odd: Tensor, words: Tensor) -> list[Tensor]:
    """Make the words of a state, and the next state of it, in place."""
    words.copy_((_tempered(even).long() << 32) | (_tempered(odd).long() & (2**32 - 1)))
    after_even, after_odd = _twist(even, odd), _twist(odd[:, :311], even[:, 1:])
    even_1, odd_1 = odd[:, 198:] ^ after_even[:, :114], even[:, 199:] ^ after_odd[:, :113]
    even_2, odd_2 = odd_1 ^ after_even[:, 114:227], even_1 ^ after_odd[:, 113:227]
    even_3, odd_3 = odd_2[:, :85] ^ after_even[:, 227:], even_2[:, :84] ^ after_odd[:, 227:]
    last = even_2[:, 84:85] ^ _twist(odd[:, 311:], even_1[:, :1])
    next_even, next_odd = torch.cat([even_1, even_2, even_3], 1), torch.cat([odd_1, odd_2, odd_3, last], 1)
    even.copy_(next_even)
    odd.copy_(next_odd)
    return []


def _twist(first: Tensor, second: Tensor) -> Tensor:
    return _shifted((first & -(2**31)) | (second & (2**31 - 1)), 1) ^ (-(second & 1) & (0x9908B0DF - 2**32))


def _tempered(x: Tensor) -> Tensor:
    x = x ^ _shifted(x, 11)
    x = x ^ ((x << 7) & (0x9D2C5680 - 2**32))
    x = x ^ ((x << 15) & (0xEFC60000 - 2**32))
    return x ^ _shifted(x, 18)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Shift bits to the right, with zeros from the left; for negative integers ``>>`` takes ones."""
    return (x >> by) & (2 ** (32 - by) - 1)
