"""Files that were damaged are refused by a ValueError that names the file, or give exactly the values of the good ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.sampling.sampled import Sampled

pytestmark = pytest.mark.slow

X = torch.linspace(-1, 1, 40)[:, None]
Y = torch.sin(3 * X)


def model_of() -> Any:
    torch.manual_seed(2)
    return models.MLP([1, 6, 1], prior=priors.ARD(), likelihood=likelihoods.Gaussian(10.0))


def resumed(path: Path) -> list[Tensor]:
    model = model_of()
    fit = pyrodrop.fit(
        model, guides.ARDDropout(model), (X, Y), steps=4, batch_size=10, engine="pyro", checkpoint=path
    )  # fmt: skip
    return [fit.history, fit.predict(X, 3).f]


def loaded(path: Path) -> list[Tensor]:
    model = model_of()
    fit = pyrodrop.Fit.load(path, model, guides.ARDDropout(model), device="cpu")
    return [fit.history, fit.predict(X, 3).f, torch.tensor(fit.settings["num_data"])]


def drawn(path: Path) -> list[Tensor]:
    sampled = Sampled.load(path, small())
    return [sampled.predict(X, 3).f, *sampled.stats.values()]


def small() -> Any:
    torch.manual_seed(2)
    return models.MLP([1, 3, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))


def make(folder: Path) -> dict[str, tuple[Path, Callable[[Path], list[Tensor]]]]:
    """A good file of every kind, and what reads it."""
    model = model_of()
    options: dict[str, Any] = {"batch_size": 10, "engine": "pyro", "checkpoint": folder / "state"}
    fit = pyrodrop.fit(model, guides.ARDDropout(model), (X, Y), steps=3, **options)
    fit.save(folder / "fit")
    settings: dict[str, Any] = {"chains": 4, "draws": 4, "tune": 100, "engine": "traced", "max_steps": 2}
    pyrodrop.sample(small(), (X, Y), **settings).save(folder / "draws")
    return {
        "checkpoints": (folder / "state", resumed),
        "fits": (folder / "fit", loaded),
        "draws": (folder / "draws", drawn),
    }


def damaged(good: bytes, others: list[bytes], moment: random.Random, count: int) -> list[bytes]:
    """Bytes changed, cut, swapped, inserted, zeroed, empty, and the content of other files."""
    contents = [b"", b"\0", b"\0" * len(good), good + b"\0", good[8:], good[::-1], *others]
    header = int.from_bytes(good[:8], "little") + 8
    places = [lambda: moment.randrange(8), lambda: moment.randrange(8, header), lambda: moment.randrange(len(good))]
    while len(contents) < count:
        place, other = moment.choice(places)(), moment.randbytes(moment.choice([1, 1, 4, 64]))
        end = min(len(good), place + len(other))
        flipped = bytes([good[place] ^ (1 << moment.randrange(8))])
        contents.append(
            moment.choice(
                [
                    good[:place] + flipped + good[place + 1 :],
                    good[:place] + other[: end - place] + good[end:],
                    good[:place],
                    good[:place] + other + good[place:],
                    good[:place] + good[end : 2 * end - place] + good[place:end] + good[2 * end - place :],
                    good[:place] + bytes(end - place) + good[end:],
                ]
            )
        )
    return contents


def test_damaged_files(tmp_path: Path, counted: Counter[str]) -> None:
    kinds = make(tmp_path)
    contents = {kind: path.read_bytes() for kind, (path, _) in kinds.items()}
    moment, wrong = random.Random(0), []
    for kind, (path, read) in kinds.items():
        file = path.with_name(f"damaged-{path.name}")
        file.write_bytes(contents[kind])
        want = read(file)
        others = [content for other, content in contents.items() if other != kind]
        others += [b"[1, 2]", b"<html>not found</html>", nn.Linear(1, 1).weight.detach().numpy().tobytes()]
        for number, bad in enumerate(damaged(contents[kind], others, moment, 120)):
            file.write_bytes(bad)
            try:
                got = read(file)
            except ValueError as error:
                good, outcome = str(file) in str(error), "refused by name"
            except Exception as error:
                good, outcome = False, f"{type(error).__name__}"
            else:
                good = len(got) == len(want) and all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
                outcome = "read as they were"
            counted[f"damaged {kind} {outcome}"] += 1
            if not good:
                wrong.append((kind, number, outcome))
    assert wrong == []
