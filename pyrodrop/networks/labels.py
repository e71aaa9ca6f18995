"""Class labels of a frame, which are numbered 0, 1, ... in place of their values, and the likelihoods that can take them."""

from __future__ import annotations

from torch.distributions import Distribution

from pyrodrop.data.column_values import listed
from pyrodrop.data.columns import Columns
from pyrodrop.likelihoods.shapes import support_of


def check_labels(columns: Columns | None, distribution: Distribution, what: str) -> None:
    """Raise a ValueError for labels that a distribution of real numbers would take for values.

    Args:
        columns: of the frame that the observations are from, if they are from one.
        distribution: of y.
        what: the likelihood in words, for the message.
    """
    classes = None if columns is None else columns.classes
    if classes is None or classes == tuple(range(len(classes))):
        return
    support = support_of(distribution)
    if support is not None and not support.is_discrete:
        raise ValueError(
            f"y are class labels, the numbers 0 to {len(classes) - 1} for {listed(classes)}, which {what} would take for "
            "values: use likelihoods.Categorical(), or make the target a column of numbers"
        )
