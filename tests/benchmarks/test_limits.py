"""Shares of the time of a benchmark's own side."""

from __future__ import annotations

import pytest

from benchmarks.limits import shares


def test_shares_are_of_all_seconds() -> None:
    operations = {"aten::mm": 3.0, "aten::_scaled_dot_product_flash_attention": 1.0, "aten::mul": 2.0, "aten::cat": 1.0}
    found = shares(operations, 10.0)
    assert found == pytest.approx({"products": 0.4, "others": 0.3, "largest": 0.2, "outside": 0.3})
