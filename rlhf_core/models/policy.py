"""Policies behind one adapter: response log-probabilities, entropies, hidden states and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlhf_core.models.loading import decoder_of
from rlhf_core.models.logprobs import token_statistics


@dataclass(frozen=True)
class TokenStatistics:
    """Per response token, float32, zero on padding.

    Attributes:
        logprobs: [batch, response_len] log-probability of the token.
        entropies: [batch, response_len] nats, of the distribution that predicts the token.
    """

    logprobs: Tensor
    entropies: Tensor


def position_ids(mask: Tensor) -> Tensor:
    """[batch, length] positions that ignore padding on either side."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int, side: str) -> tuple[Tensor, Tensor]:
    """(ids [batch, max_len] int64, mask bool) of token lists padded on `side` ('left' or 'right')."""
    width = max((len(row) for row in rows), default=0)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, row in enumerate(rows):
        if not len(row):
            continue
        place = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[i, place] = torch.tensor(row, dtype=torch.long)
        mask[i, place] = True
    return ids, mask


def response_hidden(
    decoder: torch.nn.Module,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    response_ids: Tensor,
    response_mask: Tensor,
) -> Tensor:
    """[batch, prompt_len + response_len, hidden] states of prompt and response side by side, 0 on padding.

    The decoder sees each row with its padding moved to the right end and cut to the longest row: half the positions of
    a batch can be padding between long prompts and long responses. Behind the last real token, padding needs no mask
    under causal attention, which keeps the fast attention kernels.
    """
    ids = torch.cat([prompt_ids, response_ids], dim=1)
    mask = torch.cat([prompt_mask, response_mask], dim=1)
    real = mask.sum(dim=1)
    width = max(1, int(real.max()))
    place = mask.long().argsort(dim=1, descending=True, stable=True)[:, :width]
    kept = torch.arange(width, device=ids.device) < real[:, None]
    packed: Tensor = decoder(input_ids=ids.gather(1, place), use_cache=False).last_hidden_state
    packed = torch.where(kept[:, :, None], packed, 0.0)
    hidden = packed.new_zeros(*ids.shape, packed.shape[2])
    return hidden.scatter(1, place[:, :, None].expand_as(packed), packed)


class DecoderPolicy:
    """A decoder-only language model as a policy.

    Args:
        model: a causal language model.
        pad_id, eos_id: token ids; a response ends with its first EOS.
    """

    def __init__(self, model: PreTrainedModel, *, pad_id: int, eos_id: int) -> None:
        self.model = model
        self.pad_id = pad_id
        self.eos_id = eos_id
        self.softcap: float | None = getattr(model.config, "final_logit_softcapping", None)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def statistics(
        self,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        response_ids: Tensor,
        response_mask: Tensor,
        *,
        with_entropy: bool = True,
    ) -> TokenStatistics:
        """Log-probability and entropy of every response token in one forward pass, only at response positions.

        Args:
            prompt_ids, prompt_mask: [batch, prompt_len], left-padded; prompts are not empty.
            response_ids, response_mask: [batch, response_len], right-padded.
        """
        hidden = response_hidden(decoder_of(self.model), prompt_ids, prompt_mask, response_ids, response_mask)
        start = prompt_ids.shape[1] - 1
        predicting = hidden[:, start : start + response_ids.shape[1]]
        output = self.model.get_output_embeddings()
        flat, entropy = token_statistics(
            predicting[response_mask],
            response_ids[response_mask],
            output,
            softcap=self.softcap,
            with_entropy=with_entropy,
        )
        logprobs = torch.zeros(response_ids.shape, dtype=torch.float32, device=hidden.device)
        entropies = torch.zeros_like(logprobs)
        return TokenStatistics(
            logprobs.masked_scatter(response_mask, flat), entropies.masked_scatter(response_mask, entropy)
        )
