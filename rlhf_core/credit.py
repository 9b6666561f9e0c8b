"""Credit: how a signal's values are paid to response tokens.

Every rule declares its gain, the factor between what a value is and what is paid for it in total.
Source: Segment, §2.3 and Table 6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlhf_core.choices import Choices
from rlhf_core.lazy import torch
from rlhf_core.rollout import Responses
from rlhf_core.signals import Segments, Sequence, Signal, SignalType, Tokens

if TYPE_CHECKING:
    from torch import Tensor


def last_token(signal: Signal, responses: Responses) -> Tensor:
    """Returns the whole value on the last real token; nothing for an empty response. Gain 1."""
    assert isinstance(signal, Sequence)
    paid = torch.zeros(responses.ids.shape, dtype=torch.float32, device=responses.ids.device)
    rows = torch.nonzero(responses.lengths > 0).squeeze(1)
    paid[rows, responses.lengths[rows] - 1] = signal.values[rows].float()
    return paid


def every_token(signal: Signal, responses: Responses) -> Tensor:
    """Returns a sequence value on every real token. Gain n, the response's length."""
    assert isinstance(signal, Sequence)
    return signal.values.float()[:, None] * responses.mask


def as_is(signal: Signal, responses: Responses) -> Tensor:
    """Returns each token its own value. Gain 1."""
    assert isinstance(signal, Tokens)
    return torch.where(responses.mask, signal.values.float(), 0.0)


def segment_end(signal: Signal, responses: Responses) -> Tensor:
    """Returns each segment's value on its last token, 0 elsewhere ('No Interpolation'). Gain 1."""
    assert isinstance(signal, Segments)
    paid = torch.zeros(responses.ids.shape, dtype=torch.float32, device=responses.ids.device)
    rows, segments = torch.nonzero(signal.segmentation.mask, as_tuple=True)
    places = (rows, signal.segmentation.ends[rows, segments])
    return paid.index_put_(places, signal.values[rows, segments].float(), accumulate=True)


def repeat(signal: Signal, responses: Responses) -> Tensor:
    """Returns each segment's value on each of its tokens ('Repeat Segment Reward'). Gain |segment|."""
    assert isinstance(signal, Segments)
    index = signal.segmentation.index
    values = signal.values.float().gather(1, index.clamp(min=0))
    return torch.where(index >= 0, values, 0.0)


def even_split(signal: Signal, responses: Responses) -> Tensor:
    """Returns each segment's value divided evenly among its tokens; a segment without tokens pays its end. Gain 1."""
    assert isinstance(signal, Segments)
    lengths = signal.segmentation.lengths
    share = signal.values.float() / lengths.clamp(min=1)
    paid = repeat(Segments(share, signal.segmentation), responses)
    empty = signal.segmentation.mask & (lengths == 0)
    if empty.any():
        rows, segments = torch.nonzero(empty, as_tuple=True)
        places = (rows, signal.segmentation.ends[rows, segments])
        paid.index_put_(places, signal.values[rows, segments].float(), accumulate=True)
    return paid


def even_split_by_length(signal: Signal, responses: Responses) -> Tensor:
    """Returns `even_split` divided by the response's length, EOS included. Gain 1/n.

    Source: Segment's released code, for the token rewards of Llama-3 alone (`length_norm`).
    """
    return even_split(signal, responses) / responses.lengths.clamp(min=1)[:, None]


@dataclass(frozen=True)
class Credit:
    """A credit rule: the signal it takes, how it pays, and the total it promises.

    Args:
        takes: the signal type.
        pay: (signal, responses) -> [batch, response_len] float32.
        gain: what a value is multiplied by in total: 'one', 'segment_length', 'response_length' or
            'inverse_response_length'.
    """

    takes: SignalType
    pay: Callable[[Signal, Responses], Tensor]
    gain: str


CREDITS = Choices(
    "credit",
    {
        "last_token": Credit(Sequence, last_token, "one"),
        "every_token": Credit(Sequence, every_token, "response_length"),
        "segment_end": Credit(Segments, segment_end, "one"),
        "even_split": Credit(Segments, even_split, "one"),
        "even_split_by_length": Credit(Segments, even_split_by_length, "inverse_response_length"),
        "repeat": Credit(Segments, repeat, "segment_length"),
        "as_is": Credit(Tokens, as_is, "one"),
    },
    needs=("takes", "pay", "gain"),
)
