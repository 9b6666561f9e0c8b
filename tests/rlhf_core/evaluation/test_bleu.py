"""BLEU by hand: precisions, brevity, smoothing and tokenisation are sacrebleu's defaults."""

from __future__ import annotations

import math

import pytest

from rlhf_core.errors import DataError
from rlhf_core.evaluation.bleu import corpus_bleu


def test_a_translation_that_stops_early_loses_by_its_brevity_alone() -> None:
    # every n-gram is right; 6 words against 7
    assert corpus_bleu(["the cat sat on the mat"], ["the cat sat on the mat today"]) == pytest.approx(
        100 * math.exp(1 - 7 / 6)
    )


def test_precisions_without_a_match_are_smoothed_exponentially() -> None:
    # 4/5 words, 2/4 pairs, 1/3 triples; no 4-gram of 2 matches, which counts as 1/2 of one
    expected = 100 * (4 / 5 * 2 / 4 * 1 / 3 * 0.5 / 2) ** 0.25
    assert corpus_bleu(["a b c d e"], ["a b c x e"]) == pytest.approx(expected)


def test_counts_are_of_the_whole_corpus_and_marks_are_words() -> None:
    # "Hello, world!" is four tokens whatever the space before its marks; case counts
    assert corpus_bleu(["Hello , world !", "so it is said"], ["Hello, world!", "so it is said"]) == pytest.approx(100)
    words, pairs, triples, fours = 7 / 8, 5 / 6, 3 / 4, 1 / 2
    expected = 100 * (words * pairs * triples * fours) ** 0.25
    found = corpus_bleu(["hello, world!", "so it is said"], ["Hello, world!", "so it is said"])
    assert found == pytest.approx(expected)


def test_sentences_without_references_are_refused() -> None:
    with pytest.raises(DataError, match="1 translations against 0 references"):
        corpus_bleu(["a"], [])
