"""RewardBench: official weights, strict order, and scores that must not depend on their batch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rlhf_core.errors import DataError, NumericsError
from rlhf_core.evaluation.benchmark_names import REWARD_BENCH
from rlhf_core.evaluation.reward_bench import (
    Rows,
    ScoredPair,
    check_independence,
    reward_bench_scores,
)


def pairs(section: str, subset: str, right: int, wrong: int) -> list[ScoredPair]:
    return [ScoredPair(f"{subset}-{i}", section, subset, 1.0, 0.0 if i < right else 1.0) for i in range(right + wrong)]


def test_math_counts_984_as_much_as_all_code_together() -> None:
    code = [pair for name in REWARD_BENCH["reasoning"] if name != "math-prm" for pair in pairs("reasoning", name, 0, 2)]
    scores = reward_bench_scores([*pairs("reasoning", "math-prm", 3, 0), *code])
    assert scores["reasoning"] == pytest.approx(50.0)
    assert scores["subset/math-prm"] == 100.0
    assert "average" not in scores


def test_the_average_is_the_plain_mean_of_four_sections_and_a_tie_is_wrong() -> None:
    every = [
        *pairs("chat", "easy", 4, 0),
        *pairs("chat_hard", "hard", 1, 3),
        *pairs("safety", "refuse", 2, 2),
        *pairs("reasoning", "math", 0, 1),
    ]
    scores = reward_bench_scores(every)
    assert [scores[name] for name in ("chat", "chat_hard", "safety", "reasoning")] == [100.0, 25.0, 50.0, 0.0]
    assert scores["average"] == pytest.approx(43.75)
    assert scores["ties"] == 6
    with pytest.raises(DataError, match="no pair"):
        reward_bench_scores([])


def test_scores_that_depend_on_padding_are_refused() -> None:
    rows, texts = [{"prompt": "?"}] * 3, ["a", "a b c", "a b"]

    def padded(rows: Rows, responses: Sequence[str], batch: int) -> list[float]:
        """Counts words, those of the longest text of its batch included by mistake."""
        found: list[float] = []
        for start in range(0, len(responses), batch):
            part = responses[start : start + batch]
            longest = max(len(text.split()) for text in part)
            found += [len(text.split()) + 0.1 * (longest - len(text.split())) for text in part]
        return found

    def sound(rows: Rows, responses: Sequence[str], batch: int) -> list[float]:
        return [float(len(text.split())) for text in responses]

    assert check_independence(sound, rows, texts) == 0.0
    with pytest.raises(NumericsError, match=r"depend on batch size or padding: response 1 has 1\.0000 alone and 1\.2"):
        check_independence(padded, rows, texts)
    with pytest.raises(NumericsError, match="not finite"):
        check_independence(lambda rows, texts, batch: [float("nan")] * len(texts), rows, texts)
