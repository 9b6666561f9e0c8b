"""Questions of the testbed and the truth about their solutions."""

from __future__ import annotations

import pytest

from rlhf_core.testbed.oracle import first_error, minimal_edit

STEPS = [["1 + 2 = 3.", "So 1 + 2 = 3.", "2 + 1 = 3."], ["3 * 2 = 6."], ["The answer is 6."]]


@pytest.mark.parametrize(
    ("prediction", "step", "edited"),
    [
        ("2 + 1 = 4.\n4 * 2 = 8.\nThe answer is 8.", 0, "2 + 1 = 3.\n3 * 2 = 6.\nThe answer is 6."),
        ("So 1 + 2 = 3.\n3 * 2 = 5.\nThe answer is 5.", 1, "So 1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6."),
        ("1 + 2 = 3.\nThe answer is 3.", 1, "1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6."),
        ("1 + 2 = 3.\n3 * 2 = 6.", 2, "1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6."),
        ("1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6.\nBye.", 3, "1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6."),
        ("", 0, "1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6."),
        ("nonsense", 0, "1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6."),
    ],
)
def test_the_oracle_keeps_wordings_and_corrects_what_is_wrong(prediction: str, step: int, edited: str) -> None:
    assert first_error(STEPS, prediction) == step
    assert minimal_edit(STEPS, prediction) == edited
