"""Quality of reward models: RewardBench, RM-Bench, accuracy, calibration, and scores that depend on their batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from rlhf_core.errors import DataError, NumericsError
from rlhf_core.evaluation.benchmark_names import REWARD_BENCH
from rlhf_core.evaluation.reward_bench import (
    Rows,
    ScoredPair,
    calibration,
    check_independence,
    pairwise_accuracy,
    reward_bench_scores,
)
from rlhf_core.evaluation.rm_bench import STYLES, StyledPair, comparisons, rm_bench_scores


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


def prompt(group: str, domain: str, chosen: list[float], rejected: list[float]) -> list[StyledPair]:
    return [StyledPair(group, domain, *row) for row in zip(STYLES, chosen, rejected, strict=True)]


def test_the_levels_of_one_prompt_by_hand() -> None:
    # chosen 1, 2, 3 against rejected 0, 2, 2.5, plain to polished; rows are chosen, columns rejected:
    #   1 > 0 yes   1 > 2 no          1 > 2.5 no
    #   2 > 0 yes   2 > 2 no (a tie)  2 > 2.5 no
    #   3 > 0 yes   3 > 2 yes         3 > 2.5 yes
    pairs = prompt("a", "chat", [1.0, 2.0, 3.0], [0.0, 2.0, 2.5])
    shares, ties = comparisons(pairs)["chat"]
    assert shares.tolist() == [[1.0, pytest.approx(2 / 3), 0.0]]
    assert ties == 1
    scores = rm_bench_scores(pairs)
    assert [scores[name][0].estimate for name in ("easy", "hard")] == [1.0, 0.0]
    assert scores["chat"][0].estimate == scores["average"][0].estimate == pytest.approx(5 / 9)
    assert (scores["chat"][1], scores["normal"][1], scores["chat"][2]) == (9, 3, 1)


def test_safety_is_the_mean_of_its_parts_and_domains_weigh_alike() -> None:
    right, wrong = ([1.0] * 3, [0.0] * 3), ([0.0] * 3, [1.0] * 3)
    pairs = [
        *prompt("a", "safety-refuse", *right),
        *prompt("b", "safety-response", *wrong),
        *prompt("c", "safety-response", *wrong),
        *prompt("d", "safety-response", *wrong),
        *prompt("e", "chat", *right),
    ]
    scores = rm_bench_scores(pairs)
    assert scores["safety"][0].estimate == 0.5
    assert scores["average"][0].estimate == scores["hard"][0].estimate == 0.75
    assert scores["safety"][1] == 36
    assert 0.0 <= scores["average"][0].lower <= scores["average"][0].upper <= 1.0


def test_a_prompt_without_all_styles_is_left_out_and_a_style_comes_once() -> None:
    whole, part = prompt("a", "chat", [1.0] * 3, [0.0] * 3), prompt("b", "chat", [0.0] * 3, [1.0] * 3)[:2]
    assert rm_bench_scores([*whole, *part])["chat"][1] == 9
    assert rm_bench_scores(part) == {}
    with pytest.raises(DataError, match="style 'concise' of prompt 'a'"):
        comparisons([*whole, whole[0]])
    with pytest.raises(DataError, match="style 'plain'"):
        comparisons([StyledPair("a", "chat", "plain", 1.0, 0.0)])


def test_a_tie_is_wrong():
    assert pairwise_accuracy([2, 1, 1, 5], [1, 1, 2, 0]).estimate == 0.5
    assert math.isnan(pairwise_accuracy([], []).estimate)
    with pytest.raises(DataError):
        pairwise_accuracy([1], [1, 2])
    with pytest.raises(DataError, match="finite"):
        pairwise_accuracy([math.inf], [1])


def test_calibration_by_hand():
    margin = [math.log(3)] * 3 + [-math.log(3)]  # confidence .75, right three times of four
    result = calibration(margin, [0] * 4)
    assert result["ece"] == pytest.approx(0, abs=1e-12)
    assert result["brier"] == pytest.approx((3 * 0.25**2 + 0.75**2) / 4)
    confident = calibration([20, 20, -20, -20], [0] * 4)
    assert confident["ece"] == pytest.approx(0.5, abs=1e-6)
    assert calibration([0, 0], [0, 0])["ece"] == 0
    assert math.isnan(calibration([], [])["ece"])
