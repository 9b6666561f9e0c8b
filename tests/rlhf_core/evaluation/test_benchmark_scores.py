"""Scores of benchmarks by hand."""

import math

import numpy as np
import pytest

from rlhf_core.errors import DataError, NumericsError
from rlhf_core.evaluation.benchmark_scores import corpus_bleu, mt_bench_scores, right_choices, win_rate


def test_soft_win_rates():
    result = win_rate([2, 1, 1.5, 1.75])
    assert result["win_rate"] == pytest.approx(56.25)
    assert result["standard_error"] == pytest.approx(np.std([1, 0, 0.5, 0.75], ddof=1) / 2 * 100)


def test_invalid_preferences_are_dropped_and_counted_and_zero_is_a_draw():
    result = win_rate([2, None, float("nan"), 2.5, 0.5, 0, -1, float("inf")])
    assert result["n_invalid"] == 6
    assert result["win_rate"] == pytest.approx(75.0)
    assert math.isnan(win_rate([])["win_rate"])
    assert math.isnan(win_rate([2])["standard_error"])


def test_mt_bench_has_means_by_turn_without_missing_scores():
    result = mt_bench_scores([(1, 8), (1, 6), (2, 5), (2, None), (1, -1), (2, math.nan)])
    assert (result["mtbench_turn1"], result["mtbench_turn2"]) == (7, 5)
    assert result["mtbench"] == pytest.approx(19 / 3)
    assert result["n_missing"] == 3
    assert math.isnan(mt_bench_scores([])["mtbench"])


def test_the_likeliest_choice_per_character_counts_and_the_first_of_equal_ones():
    table = {"no": -4.0, "absolutely": -6.0, "é": -1.0, "ab": -2.0}
    questions = [
        {"id": "1", "question": "Q", "choices": ["no", "absolutely"], "answer_index": 1},
        {"id": "2", "question": "R", "choices": ["é", "ab"], "answer_index": 0},
    ]
    asked = []

    def likelihoods(contexts, choices):
        asked.extend(zip(contexts, choices, strict=True))
        return [table[choice] for choice in choices]

    assert right_choices(questions, likelihoods) == [True, True]
    assert asked == [("Q", "no"), ("Q", "absolutely"), ("R", "é"), ("R", "ab")]
    assert right_choices([], likelihoods) == []
    with pytest.raises(NumericsError, match="question '1'"):
        right_choices(questions, lambda contexts, choices: [math.nan] * 4)


def test_bleu_by_hand():
    # every n-gram is right; 6 words against 7
    short = corpus_bleu(["the cat sat on the mat"], ["the cat sat on the mat today"])
    assert short == pytest.approx(100 * math.exp(1 - 7 / 6))
    # 4/5 words, 2/4 pairs, 1/3 triples; no 4-gram of 2 matches, which counts as 1/2 of one
    assert corpus_bleu(["a b c d e"], ["a b c x e"]) == pytest.approx(100 * (4 / 5 * 2 / 4 * 1 / 3 * 0.5 / 2) ** 0.25)
    # counts are of the whole corpus, marks are words, and case counts
    found = corpus_bleu(["hello, world!", "so it is said"], ["Hello, world!", "so it is said"])
    assert found == pytest.approx(100 * (7 / 8 * 5 / 6 * 3 / 4 * 1 / 2) ** 0.25)
    with pytest.raises(DataError, match="1 translations against 0 references"):
        corpus_bleu(["a"], [])
