"""Cells in words."""

from __future__ import annotations

import pytest

from tasks.report.cells import verdict_lines


@pytest.mark.parametrize(
    ("word", "sees", "said"),
    [
        ("sees only effects above", 1414.98, "2 worlds cannot decide it"),
        ("sees only effects above", 12.34, "sees only effects above 12.3"),
        ("below", 140.0, "below"),
        ("below", 12.34, "below (sees 12.3)"),
    ],
)
def test_no_effect_is_named_that_a_percentage_cannot_have(word: str, sees: float, said: str) -> None:
    cell = {"difference": -7.0, "interval": None, "word": word, "smallest_visible": sees, "worlds": 2}
    assert verdict_lines(cell | {"reason": None, "missing": None}, 1) == ["-7.0", said]
