"""Shifted and foreign images: what is stored is of the file that loads, is what it scores, and is on the card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import ndimage
from sklearn.metrics import roc_auc_score

from pyrodrop import zoo
from pyrodrop.analysis.lab.zoo import shifted
from pyrodrop.analysis.zoo import references
from pyrodrop.metrics import predictive_entropy

STORED = references.shifted()


def test_what_was_measured_has_the_weights_that_load() -> None:
    assert {name for name in STORED if shifted.is_classifier(name)} == set(STORED) <= set(zoo.names(loads=True))
    assert set(STORED) >= {"rotated-digit/bernoulli", "cnn/lenet-all", "cnn/lenet-none"}
    assert {name: shifted.checksum(name) for name in STORED} == {name: one["sha256"] for name, one in STORED.items()}
    assert STORED["cnn/lenet-none"]["auroc_information"] is None  # one network
    assert "uci/yacht" not in STORED


@pytest.mark.more
def test_letters_are_prepared_as_digits(data_folder: Path) -> None:
    letters, (digits, y) = shifted.letters(), shifted.images()
    assert letters.shape == (len(shifted.FONTS) * len(shifted.LETTERS), 1, 28, 28) == (960, 1, 28, 28)
    assert len(y) == 1000
    assert len(letters.flatten(1).unique(dim=0)) > 940  # upright letters of a font without italics are its own
    for images in (letters, digits["as they are"]):
        assert (images.min(), images.max()) == (0, 1)
        sides = [(images.amax((1, axis)) > 0).sum(1).max() for axis in (2, 3)]
        assert max(sides) == 20
        mass = images / images.sum((2, 3), keepdim=True)
        for axis in (2, 3):
            centre = (mass.sum(axis)[:, 0] * torch.arange(28)).sum(1)
            assert (centre - 13.5).abs().median() < 0.6
            assert (centre - 13.5).abs().max() < 1.5


@pytest.mark.more
@pytest.mark.unshifted
@pytest.mark.parametrize("name", STORED)
def test_stored_scores_are_those_of_the_weights(name: str, data_folder: Path) -> None:
    """Two rows of the table and the AUROC by our own arithmetic and that of scikit-learn."""
    fit: Any = zoo.load(name, device="cpu")
    (digits, y), one, draws = shifted.images(), STORED[name], STORED[name]["draws"]
    entropies = []
    for shown in ("as they are", "rotated by 60"):
        probabilities = fit.predict(digits[shown], draws, seed=0).distribution.probs.double().mean(0)
        row = one["digits"][shown]
        assert row["error_percent"] == pytest.approx(100 * float((probabilities.argmax(-1) != y).double().mean()))
        density = float(probabilities[torch.arange(len(y)), y].log().mean())
        assert row["log_density"] == pytest.approx(density, rel=1e-3)
        entropies.append(-(probabilities * probabilities.clamp(min=1e-38).log()).sum(-1))
    outside = predictive_entropy(fit.predict(shifted.letters(), draws, seed=0))
    labels = [0] * len(y) + [1] * len(outside)
    assert one["auroc_entropy"] == pytest.approx(roc_auc_score(labels, [*entropies[0], *outside]), abs=1e-3)


@pytest.mark.parametrize("size", [28, 7])
def test_images_turn_as_scipy_turns_them(size: int) -> None:
    x, angles = torch.rand(3, 2, size, size), torch.tensor([0.0, 16.4, 90.0, 137.0, 180.0, -30.0])
    ours = shifted.turned(x, angles)
    assert ours.shape == (6, 3, 2, size, size)
    for a, degrees in enumerate(angles.tolist()):
        theirs = ndimage.rotate(x.numpy(), degrees, axes=(3, 2), reshape=False, order=1)
        rows, columns = torch.meshgrid(*(torch.arange(size) - (size - 1) / 2,) * 2, indexing="ij")
        within = (rows**2 + columns**2).sqrt() < size / 2 - 1
        torch.testing.assert_close(ours[a][..., within], torch.tensor(theirs)[..., within], atol=1e-4, rtol=0)


def test_a_quarter_turns_exactly_and_counterclockwise() -> None:
    x = torch.rand(1, 1, 5, 5)
    torch.testing.assert_close(shifted.turned(x, torch.tensor([90.0]))[0], torch.rot90(x, 1, (2, 3)), atol=1e-5, rtol=0)
    torch.testing.assert_close(shifted.turned(x, torch.tensor([0.0, 180.0]))[1], x.flip(2, 3), atol=1e-5, rtol=0)
