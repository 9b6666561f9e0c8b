"""The ranking prompt: its answer is matched as text, whatever it says."""

from __future__ import annotations

import pytest

from rlhf_core.evaluation.judges.protocol import JudgeRequest
from rlhf_core.evaluation.judges.replies import parse_ranking
from rlhf_core.evaluation.judges.templates import render

RANKED = "[{'model': 'model_1', 'rank': %d}, {'model': 'model_2', 'rank': %d}]"


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (RANKED % (1, 2), "A"),
        (RANKED % (2, 1), "B"),
        (RANKED % (1, 1), "N"),
        ('[{"model": "model_2", "rank": 1},\n {"model": "model_1", "rank": 2},]', "B"),
        (f"```python\n{RANKED % (1, 2)}\n```", "A"),
    ],
)
def test_a_ranking_is_read(text: str, label: str) -> None:
    assert parse_ranking(text).label == label


@pytest.mark.parametrize(
    "text",
    [
        "",
        "model_1 is better",
        f"Sure: {RANKED % (1, 2)}",
        f"{RANKED % (1, 2)} {RANKED % (2, 1)}",
        RANKED % (1, 3),
        "[{'model': 'model_1', 'rank': 1}, {'model': 'model_1', 'rank': 2}]",
        "[{'model': 'model_1', 'rank': 1}]",
        "[{'model': 'model_1', 'rank': __import__('os').getpid() and 1}, {'model': 'model_2', 'rank': 2}]",
    ],
)
def test_anything_else_is_no_verdict(text: str) -> None:
    assert not parse_ranking(text).valid


def test_the_prompt_shows_both_answers_as_they_are() -> None:
    system, user = render(JudgeRequest("1", "Say {hi}.", ("first {x}", "second"), "ranking"))
    assert "ranks models" in system
    assert '"""Say {hi}."""' in user
    assert user.index('"""first {x}"""') < user.index('"""second"""')
