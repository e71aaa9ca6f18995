"""The command that checks a network of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrodrop.analysis.lab.networks import load
from pyrodrop.analysis.lab.networks.__main__ import main


def test_a_file_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command takes a file, checks its network and prints the table."""
    file = tmp_path / "mine.py"
    file.write_text(
        '"""A line."""\nimport torch\nfrom pyrodrop.analysis.lab.networks import Case\n'
        "CASE = Case(network=lambda: torch.nn.Linear(2, 1), x=lambda: torch.randn(4, 2))\n"
    )
    assert load(file)["mine"].about == "A line."
    assert main([str(file), "--cells", "few"]) == 0
    assert "6 cells of 1 networks: 6 right, 0 fallback, 0 other, 0 refused, 0 wrong" in capsys.readouterr().out
    file.write_text("CASE = 3\n")
    with pytest.raises(ValueError, match="CASE"):
        load(file)
