"""Responses as tensors, and the batch of rollouts that every reward is a function of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

#: A text and the character span [start, end) of each of its tokens.
Spelling = tuple[str, list[tuple[int, int]]]
#: Prompt ids and mask [batch, prompt_len], left-padded; response ids and mask [batch, response_len], right-padded.
Inputs = tuple["Tensor", "Tensor", "Tensor", "Tensor"]


def check_side(mask: Tensor, side: Literal["left", "right"]) -> None:
    """Refuses a mask [batch, length] of rows that are padded on the other side: models would read padding."""
    before, after = mask[:, :-1].bool(), mask[:, 1:].bool()
    wrong = (after & ~before if side == "right" else before & ~after).any(dim=1)
    if bool(wrong.any()):
        row = int(torch.nonzero(wrong)[0])
        what = "responses are padded on the right" if side == "right" else "prompts are padded on the left"
        raise DataError(
            f"row {row} of a batch has padding before or between its tokens on the wrong side; {what}",
            field="mask",
            remedy=f"Pad with `pad_rows(rows, pad_id, '{side}')`",
        )


@dataclass(frozen=True)
class Responses:
    """Tokenised responses, right-padded.

    Attributes:
        ids: [batch, response_len] int64.
        mask: [batch, response_len] bool, True on real tokens (EOS included where the model produced it).
        ended: [batch] bool, True where the last real token is EOS.
        pieces: text of each real token, per row; needed by text-based segmenters only.
        entropies: [batch, response_len] float32, nats, of the distribution that predicts each token;
            needed by the entropy segmenter only.
        spelling: per row the text and each real token's [start, end) in it (EOS: an empty span), for segmenters of
            characters; without it, the pieces are put together.
    """

    ids: Tensor
    mask: Tensor
    ended: Tensor
    pieces: Sequence[Sequence[str]] | None = None
    entropies: Tensor | None = None
    spelling: Sequence[Spelling] | None = None

    def __post_init__(self) -> None:
        check_side(self.mask, "right")

    def spelled(self, row: int) -> Spelling:
        """Returns a row's text and its tokens' spans."""
        if self.spelling is not None:
            return self.spelling[row]
        if self.pieces is None:
            raise RecipeError("a segmenter of characters needs the text of each token (`spelling` or `pieces`)")
        pieces = list(self.pieces[row])
        if self.ended[row] and pieces:
            pieces[-1] = ""
        ends = list(accumulate(map(len, pieces)))
        return "".join(pieces), list(zip([0, *ends], ends, strict=False))

    @property
    def lengths(self) -> Tensor:
        """Returns [batch] int64: real tokens per response."""
        return self.mask.sum(dim=1)

    @property
    def dense_lengths(self) -> Tensor:
        """Returns [batch] int64: tokens that a dense segmentation covers: all but EOS, unless EOS is all there is."""
        lengths = self.lengths
        return torch.where(self.ended & (lengths > 1), lengths - 1, lengths)


@dataclass(frozen=True)
class RolloutBatch:
    """Prompts, responses and what a reward may know of them.

    Attributes:
        prompt_ids: [batch, prompt_len] int64, left-padded.
        prompt_mask: [batch, prompt_len] bool.
        responses: right-padded responses to the prompts.
        prompts: prompt text per row.
        texts: response text per row, without special tokens.
        records: the data row behind each prompt (ground truth, passages, meta).
        groups: [batch] int64, equal for responses to the same prompt.
        references: [M] float32 reference rewards by prompt id (a record's `id`), for reference-centred shaping; a
            component with references of its own shows its shaping those.
        logprobs: [batch, response_len] float32 of the sampled tokens under the sampling policy.
        reference_logprobs: [batch, response_len] float32 under the reference policy.
        entropies: [batch, response_len] float32, nats, of the sampling policy's distributions.
        engine_logprobs: [batch, response_len] float32 of the sampled tokens as the engine computed them, where
            `logprobs` are computed anew.
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    responses: Responses
    prompts: Sequence[str]
    texts: Sequence[str]
    records: Sequence[Mapping[str, Any]]
    groups: Tensor
    references: Mapping[str, Tensor] = field(default_factory=dict)
    logprobs: Tensor | None = None
    reference_logprobs: Tensor | None = None
    entropies: Tensor | None = None
    engine_logprobs: Tensor | None = None

    def __post_init__(self) -> None:
        check_side(self.prompt_mask, "left")

    def __len__(self) -> int:
        return self.prompt_ids.shape[0]

    @property
    def inputs(self) -> Inputs:
        """Returns (prompt ids, prompt mask, response ids, response mask)."""
        return self.prompt_ids, self.prompt_mask, self.responses.ids, self.responses.mask


def distinct_prompts(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the distinct prompts [prompts, prompt_len] of left-padded ones, -1 on padding, and the number [batch]
    int64 that each row's prompt has among them."""
    distinct, number = torch.unique(ids.masked_fill(~mask, -1), dim=0, return_inverse=True)
    return distinct, number


def trimmed(rows: Tensor, prompt_ids: Tensor, prompt_mask: Tensor, ids: Tensor, mask: Tensor) -> Inputs:
    """Returns some rows, cut to their longest prompt and response."""
    prompt, response = (max([1, *of[rows].sum(dim=1).tolist()]) for of in (prompt_mask, mask))
    return prompt_ids[rows, -prompt:], prompt_mask[rows, -prompt:], ids[rows, :response], mask[rows, :response]
