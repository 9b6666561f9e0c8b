"""Numbers at the edges, for every choice of every table: empty, huge, equal but for rounding, not finite, mispadded."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import batch_of, random_rows

from rlhf_core.errors import DataError, NumericsError, RecipeError
from rlhf_core.evaluation.judges.games import JudgedPair
from rlhf_core.evaluation.judges.templates import JudgeRequest
from rlhf_core.evaluation.protocols import PROTOCOLS, tally_of_values
from rlhf_core.evaluation.reward_bench import ScoredPair, reward_bench_scores
from rlhf_core.evaluation.rm_bench import STYLES, StyledPair, rm_bench_scores
from rlhf_core.models.logprobs import token_statistics
from rlhf_core.normalisers import NORMALISERS, REGRESSIONS, CalibrationSet, fit_line, fit_statistics
from rlhf_core.rewards.preference_losses import correlation
from rlhf_core.rollout import Responses, trimmed
from rlhf_core.segmentation.segmenters import SEGMENTERS, NGram
from rlhf_core.signals import Segments

QUICK = settings(max_examples=25, deadline=None)
BAD = (math.nan, math.inf, -math.inf)
BUILT = {"ngram": {"n": 3}, "entropy": {"cutoff": 0.5}}
lengths_of_a_batch = st.lists(st.integers(0, 3), max_size=5)


def prefix(lengths: list[int], width: int = 3) -> torch.Tensor:
    return torch.arange(width)[None] < torch.tensor(lengths, dtype=torch.long)[:, None]


def of_lengths(lengths: list[int], width: int = 3) -> Responses:
    mask = prefix(lengths, width)
    n = len(lengths)
    pieces = [["a"] * length for length in lengths]
    return Responses(mask.long(), mask, torch.zeros(n, dtype=torch.bool), pieces, torch.ones(n, width))


@pytest.mark.parametrize("name", [name for name in SEGMENTERS if not hasattr(SEGMENTERS[name], "of_stage")])
@QUICK
@given(lengths=lengths_of_a_batch)
def test_every_segmenter_takes_empty_responses_and_empty_batches(name: str, lengths: list[int]) -> None:
    responses = of_lengths(lengths)
    found = SEGMENTERS.build({"kind": name, **BUILT.get(name, {})}).segment(responses)
    assert found.ends.shape[0] == len(lengths)
    assert (found.ends < responses.lengths[:, None]).all()


def test_an_entropy_that_is_not_finite_is_refused() -> None:
    responses = of_lengths([3])
    cut = SEGMENTERS.build({"kind": "entropy", "cutoff": 0.5})
    with pytest.raises(NumericsError, match="entropy is not finite"):
        cut.segment(replace(responses, entropies=torch.tensor([[0.1, math.nan, 0.2]])))


@pytest.mark.parametrize("vocabulary", [16, 8200])
def test_a_logit_of_minus_infinity_adds_nothing_to_an_entropy(vocabulary: int) -> None:
    output = torch.nn.Linear(4, vocabulary)
    with torch.no_grad():
        output.bias[:3] = -math.inf
    hidden = torch.randn(2, 4, requires_grad=True)
    targets = torch.tensor([5, 6])
    logprobs, entropies = token_statistics(hidden, targets, output)
    p = torch.softmax(output(hidden).detach().double(), dim=-1)[:, 3:]
    torch.testing.assert_close(entropies.double(), -(p * p.log()).sum(dim=1), rtol=1e-4, atol=1e-4)
    (logprobs.sum() + entropies.sum()).backward()
    assert hidden.grad is not None
    assert torch.isfinite(hidden.grad).all()


@pytest.mark.parametrize("name", REGRESSIONS)
@QUICK
@given(shift=st.floats(-1e6, 1e6), seed=st.integers(0, 99))
def test_a_line_moves_with_its_values(name: str, shift: float, seed: int) -> None:
    log_p = np.log(np.linspace(0.01, 1, 40))
    values = 0.7 * log_p + np.random.default_rng(seed).normal(size=40)
    (slope, intercept), moved = fit_line(log_p, values, name), fit_line(log_p, values + shift, name)
    assert moved == pytest.approx((slope, intercept + shift), rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("name", [name for name, choice in NORMALISERS.items() if choice.fit])
@pytest.mark.parametrize("mean", [0.1, -37.0, 1e5])
def test_a_normaliser_of_rewards_that_differ_by_rounding_is_refused(name: str, mean: float) -> None:
    next_to_it = np.nextafter(np.float32(mean), np.float32(0))
    rewards = np.where(np.arange(40) % 2 == 0, np.float64(np.float32(mean)), np.float64(next_to_it))
    given_ = CalibrationSet(rewards, np.repeat([0.25, 0.5, 0.75, 1.0], 10), rewards)
    assert rewards.std() > 0
    choice = NORMALISERS[name]
    with pytest.raises(RecipeError, match=r"constant|standard deviation"):
        choice.build(choice.fit(given_), "huber")  # type: ignore[misc]


@pytest.mark.parametrize("value", [0.1, -37.0, 1e5])
def test_heads_that_differ_by_rounding_are_not_correlated(value: float) -> None:
    equal = torch.full((4,), value)
    near = torch.where(torch.tensor([True, False, True, False]), equal, torch.nextafter(equal, torch.zeros(4)))
    near.requires_grad_()
    found = correlation(near, torch.tensor([1.0, 2.0, 3.0, 5.0]))
    found.backward()
    assert float(found.detach()) == 0.0
    assert float(near.grad.abs().max()) == 0.0  # type: ignore[union-attr]


@pytest.mark.parametrize("name", REGRESSIONS)
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e5, 1e9])
def test_a_line_scales_with_its_values(name: str, scale: float) -> None:
    log_p = np.log(np.linspace(0.05, 1, 40))
    values = 0.7 * log_p + 0.3 + 0.1 * np.random.default_rng(0).standard_normal(40)
    plain, scaled = fit_line(log_p, values, name), fit_line(log_p, scale * values, name)
    assert scaled == pytest.approx([scale * number for number in plain], rel=2e-3)


@pytest.mark.parametrize("bad", BAD)
def test_a_calibration_reward_that_is_not_finite_is_named(bad: float) -> None:
    segmentation = NGram(1).segment(of_lengths([3, 3]))
    values = torch.tensor([[1.0, 2.0, bad], [0.0, 1.0, 2.0]])
    with pytest.raises(NumericsError, match="segment reward 3 of 6 of the calibration set"):
        fit_statistics([Segments(values, segmentation)], np.array([1.0, 2.0]))
    with pytest.raises(NumericsError, match="response reward 1 of 1"):
        fit_statistics([Segments(values.nan_to_num(0, 0, 0), segmentation)], np.array([bad]))


@pytest.mark.parametrize("rows", [[[False, True]], [[True, True], [True, False], [False, True]], [[True, False, True]]])
def test_a_response_padded_on_the_left_is_refused(rows: list[list[bool]]) -> None:
    mask = torch.tensor(rows)
    with pytest.raises(DataError, match=rf"row {len(rows) - 1} of a batch .* padded on the right"):
        Responses(mask.long(), mask, torch.zeros(len(rows), dtype=torch.bool))


def test_a_prompt_padded_on_the_right_is_refused() -> None:
    made = batch_of([[5, 6], [7]], random_rows(0, [5, 3]))
    with pytest.raises(DataError, match=r"row 1 of a batch .* prompts are padded on the left"):
        replace(made, prompt_mask=made.prompt_mask.flip(1))


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_empty_batches_and_responses_have_a_width(lengths: list[int]) -> None:
    mask = prefix(lengths)
    cut = trimmed(torch.arange(len(lengths)), mask, mask, mask, mask)
    assert {part.shape for part in cut} == {(len(lengths), 1)}
    ended = Responses(mask.long(), mask, torch.ones(len(lengths), dtype=torch.bool), [[] for _ in lengths])
    assert [ended.spelled(i) for i in range(len(lengths))] == [("", [])] * len(lengths)


@pytest.mark.parametrize("bad", BAD)
def test_a_reward_that_is_not_finite_is_neither_wrong_nor_a_tie(bad: float) -> None:
    pair = ScoredPair("p7", "Chat", "alpacaeval-easy", 1.0, bad)
    with pytest.raises(NumericsError, match="pair 'p7': the reward of the rejected response"):
        reward_bench_scores([replace(pair, rejected=0.0), pair])
    styled = [StyledPair("p7", "chat", style, 1.0, 0.0) for style in STYLES]
    with pytest.raises(NumericsError, match="prompt 'p7', style 'concise'"):
        rm_bench_scores([replace(styled[0], chosen=bad), *styled[1:]])
    with pytest.raises(NumericsError, match="of prompt 'b' is"):
        tally_of_values({"a": 1.0, "b": 2.0}, {"a": 0.0, "b": bad})


class Longer:
    """A judge that prefers the longer answer, in the words of every template."""

    name = "longer"
    words: ClassVar = {
        "pairwise": "Better: {}", "arena_hard": "[[{0}>{1}]]", "output_pair": "Output ({2})",
        "ranking": "[{{'model': 'model_1', 'rank': {3}}}, {{'model': 'model_2', 'rank': {4}}}]",
        "alpaca_eval": "preference: {3}",
    }  # fmt: skip

    def answer(self, requests: list[JudgeRequest]) -> list[str]:
        made = []
        for request in requests:
            first = len(request.answers[0]) > len(request.answers[1])
            words = ("A", "B", "a", 1, 2) if first else ("B", "A", "b", 2, 1)
            made.append(self.words[request.template].format(*words))
        return made


@pytest.mark.parametrize("name", PROTOCOLS)
@QUICK
@given(sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=6))
def test_a_win_rate_and_its_mirror_add_up_to_100(name: str, sizes: list[tuple[int, int]]) -> None:
    protocol = PROTOCOLS[name]
    rates = []
    for flip in (False, True):
        pairs = [
            JudgedPair(str(i), f"q{i}", *(("x" * a, "x" * b) if not flip else ("x" * b, "x" * a)))
            for i, (a, b) in enumerate(sizes)
        ]
        tally = protocol.tally(protocol.play(Longer(), pairs))
        assert not tally.unparsable
        rates.append(tally.win_rate)
    assert sum(rates) == pytest.approx(100)
