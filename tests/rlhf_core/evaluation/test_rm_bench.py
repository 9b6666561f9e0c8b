"""RM-Bench: nine comparisons of each prompt, by level and domain."""

from __future__ import annotations

import pytest

from rlhf_core.errors import DataError
from rlhf_core.evaluation.rm_bench import STYLES, StyledPair, comparisons, rm_bench_scores


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
    assert [scores[name].accuracy for name in ("easy", "hard")] == [1.0, 0.0]
    assert scores["chat"].accuracy == scores["average"].accuracy == pytest.approx(5 / 9)
    assert (scores["chat"].comparisons, scores["normal"].comparisons, scores["chat"].ties) == (9, 3, 1)


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
    assert scores["safety"].accuracy == 0.5
    assert scores["average"].accuracy == scores["hard"].accuracy == 0.75
    assert scores["safety"].comparisons == 36
    assert 0.0 <= scores["average"].lower <= scores["average"].upper <= 1.0


def test_a_prompt_without_all_styles_is_left_out_and_a_style_comes_once() -> None:
    whole, part = prompt("a", "chat", [1.0] * 3, [0.0] * 3), prompt("b", "chat", [0.0] * 3, [1.0] * 3)[:2]
    assert rm_bench_scores([*whole, *part])["chat"].comparisons == 9
    assert rm_bench_scores(part) == {}
    with pytest.raises(DataError, match="style 'concise' of prompt 'a'"):
        comparisons([*whole, whole[0]])
    with pytest.raises(DataError, match="style 'plain'"):
        comparisons([StyledPair("a", "chat", "plain", 1.0, 0.0)])
