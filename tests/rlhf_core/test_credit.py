"""Credit rules pay what they declare, and nothing on padding."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import EOS, responses_of

from rlhf_core.credit import (
    CREDITS,
    even_split,
    even_split_by_length,
    last_token,
    repeat,
    segment_end,
)
from rlhf_core.segmentation.segmenters import Bandit, Entropy, NGram, Token
from rlhf_core.signals import Segments, Sequence, Tokens

GAIN = {
    "one": lambda tokens, n: 1,
    "segment_length": lambda tokens, n: tokens,
    "response_length": lambda tokens, n: n,
    "inverse_response_length": lambda tokens, n: 1 / n,
}


@st.composite
def lengths_and_ends(draw: st.DrawFn) -> list[list[int]]:
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        rows.append([5] * draw(st.integers(0, 7)) + ([EOS] if draw(st.booleans()) else []))
    return rows


@settings(max_examples=120, deadline=None)
@given(lengths_and_ends(), st.sampled_from(sorted(CREDITS)), st.integers(0, 1000), st.integers(0, 3))
def test_totals_are_the_declared_gain(rows: list[list[int]], name: str, seed: int, padding: int) -> None:
    width = max(len(row) for row in rows) + padding
    entropies = torch.rand(len(rows), width, generator=torch.Generator().manual_seed(seed)).tolist()
    responses = responses_of(rows, [e[: len(r)] for e, r in zip(entropies, rows, strict=True)], width=width)
    generator = torch.Generator().manual_seed(seed + 1)
    credit = CREDITS[name]
    gain = GAIN[credit.gain]
    expected = []
    if credit.takes is Sequence:
        values = torch.randn(len(rows), generator=generator)
        signal: Sequence | Segments | Tokens = Sequence(values)
        expected = [float(v) * gain(len(row), len(row)) * bool(row) for v, row in zip(values, rows, strict=True)]
    elif credit.takes is Segments:
        segmentation = [Token(), NGram(3), Entropy(0.5), Bandit()][seed % 4].segment(responses)
        values = torch.randn(segmentation.ends.shape, generator=generator)  # junk beyond each row's count
        signal = Segments(values, segmentation)
        for i, row in enumerate(rows):
            spans = segmentation.spans(i)
            expected.append(sum(float(values[i, t]) * gain(b - a, len(row)) for t, (a, b) in enumerate(spans)))
    else:
        values = torch.randn(responses.ids.shape, generator=generator)
        signal = Tokens(values)
        expected = [float(values[i, : len(row)].sum()) for i, row in enumerate(rows)]
    paid = credit.pay(signal, responses)
    assert paid.shape == responses.ids.shape
    assert paid.dtype == torch.float32
    promised = torch.tensor(expected, dtype=torch.float32)
    torch.testing.assert_close(paid.sum(dim=1), promised, atol=1e-4, rtol=1e-4)
    assert paid[~responses.mask].abs().sum() == 0


def test_placement_by_hand() -> None:
    responses = responses_of([[5, 6, 7, 8, EOS], [5, EOS]], width=6)
    segmentation = NGram(3).segment(responses)
    signal = Segments(torch.tensor([[3.0, 2.0], [7.0, 99.0]]), segmentation)
    assert even_split(signal, responses).tolist() == [[1, 1, 1, 2, 0, 0], [7, 0, 0, 0, 0, 0]]
    by_length = even_split_by_length(signal, responses)
    torch.testing.assert_close(by_length, torch.tensor([[0.2, 0.2, 0.2, 0.4, 0, 0], [3.5, 0, 0, 0, 0, 0]]))
    assert repeat(signal, responses).tolist() == [[3, 3, 3, 2, 0, 0], [7, 0, 0, 0, 0, 0]]
    assert segment_end(signal, responses).tolist() == [[0, 0, 3, 2, 0, 0], [7, 0, 0, 0, 0, 0]]
    paid = last_token(Sequence(torch.tensor([4.0, 5.0])), responses)
    assert paid.tolist() == [[0, 0, 0, 0, 4, 0], [0, 5, 0, 0, 0, 0]]
