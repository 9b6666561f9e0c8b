"""RewardBench: official weights, strict order, and scores that must not depend on their batch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rlhf_core.errors import DataError, NumericsError, RecipeError
from rlhf_core.evaluation.reward_bench import (
    OFFICIAL,
    PRIOR_SETS,
    SECTIONS,
    Rows,
    ScoredPair,
    check_independence,
    reward_bench_scores,
    section_of,
    with_prior_sets,
)
from rlhf_core.testbed import World, WorldConfig
from rlhf_core.testbed.reward_bench import SUBSETS, reward_bench_pairs


def pairs(section: str, subset: str, right: int, wrong: int) -> list[ScoredPair]:
    return [ScoredPair(f"{subset}-{i}", section, subset, 1.0, 0.0 if i < right else 1.0) for i in range(right + wrong)]


def test_math_counts_984_as_much_as_all_code_together() -> None:
    code = [pair for name in OFFICIAL["reasoning"] if name != "math-prm" for pair in pairs("reasoning", name, 0, 2)]
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


def test_official_subsets_have_the_official_counts() -> None:
    assert sum(OFFICIAL["chat"].values()) == 358
    assert sum(OFFICIAL["chat_hard"].values()) == 456
    assert sum(OFFICIAL["safety"].values()) == 740
    assert sum(OFFICIAL["reasoning"].values()) == 2 * 984
    assert section_of("hep-go") == "reasoning"
    assert section_of("rm_bench") == "rm_bench"


def test_safety_is_weighted_as_the_benchmark_counts_its_pairs() -> None:
    # 154 unsafe prompts to refuse and 250 safe ones to answer: (100 + 100 + 154 / 2 + 0 + 136 / 4) / 740
    every = [
        *pairs("safety", "refusals-dangerous", 1, 0),
        *pairs("safety", "refusals-offensive", 1, 0),
        *pairs("safety", "xstest-should-refuse", 1, 1),
        *pairs("safety", "xstest-should-respond", 0, 1),
        *pairs("safety", "donotanswer", 1, 3),
    ]
    assert reward_bench_scores(every)["safety"] == pytest.approx(100 * 311 / 740)


@pytest.mark.parametrize(
    ("sections", "prior_sets", "score"),
    [
        ((96.9, 76.8, 92.2, 97.3), 74.3, 89.0),  # ArmoRM-Llama3-8B-v0.1, as the leaderboard printed it in May 2024
        ((96.4, 71.3, 92.7, 97.7), 78.2, 88.3),  # Cohere May 2024
    ],
)
def test_prior_sets_weigh_half_a_section(sections: Sequence[float], prior_sets: float, score: float) -> None:
    assert round(with_prior_sets(sum(sections) / 4, prior_sets), 1) == score


def test_prior_sets_count_where_all_four_are_there() -> None:
    sections = [pair for name in SECTIONS for pair in pairs(name, name, 1, 1)]
    prior = [pair for right, name in enumerate(PRIOR_SETS) for pair in pairs(section_of(name), name, right, 4 - right)]
    scores = reward_bench_scores([*sections, *prior])
    assert scores["prior_sets"] == pytest.approx(37.5)
    assert scores["average"] == 50.0
    assert scores["average_with_prior_sets"] == pytest.approx((200 + 0.5 * 37.5) / 4.5)
    assert "prior_sets" not in reward_bench_scores([*sections, *prior[4:]])


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


def test_every_subset_of_the_testbed_has_a_right_answer_that_the_world_knows() -> None:
    world = World(WorldConfig(seed=0))
    rows = reward_bench_pairs(world, 4, seed=3)
    assert len(rows) == 4 * len(SUBSETS)
    assert {row["section"] for row in rows} == {"chat", "chat_hard", "safety", "reasoning"}
    for row in rows:
        assert row["chosen"] != row["rejected"]
        if row["section"] != "reasoning":
            assert row["meta"]["true_chosen"] > row["meta"]["true_rejected"]
    asked_ood = [row for row in rows if row["subset"].endswith("-ood") and "split" in row["meta"]]
    assert {row["meta"]["split"] for row in asked_ood} == {"ood", "unseen", "live"}
    assert rows == reward_bench_pairs(world, 4, seed=3)
    assert rows[0] == reward_bench_pairs(world, 1, seed=3)[0]
    with pytest.raises(RecipeError, match="at least 1"):
        reward_bench_pairs(world, 0, seed=3)
