"""Policies behind one adapter: response log-probabilities, entropies, hidden states and decoding.

A prompt is what a decoder-only model reads before the response, or what the encoder of an encoder-decoder model
reads. Everything else in the project sees a `Policy` only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.models.decoding import DecoderDecoding, Decoding, EncoderDecoderDecoding
from rlhf_core.models.loading import decoder_of
from rlhf_core.models.logprobs import token_statistics
from rlhf_core.models.packing import packs
from rlhf_core.models.response_states import response_states, start_token
from rlhf_core.rollout import Inputs


@dataclass(frozen=True)
class TokenStatistics:
    """Per response token, float32, zero on padding.

    Attributes:
        logprobs: [batch, response_len] log-probability of the token.
        entropies: [batch, response_len] nats, of the distribution that predicts the token.
    """

    logprobs: Tensor
    entropies: Tensor


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int, side: str) -> tuple[Tensor, Tensor]:
    """Returns (ids [batch, max_len] int64, mask bool) of token lists padded on `side` ('left' or 'right')."""
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


def pad_sequences(sequences: Sequence[EncodedSequence], pad_id: int, device: torch.device) -> Inputs:
    """Returns prompts, padded on the left, and responses, padded on the right, with their masks."""
    prompts = pad_rows([sequence.prompt for sequence in sequences], pad_id, "left")
    responses = pad_rows([sequence.response for sequence in sequences], pad_id, "right")
    prompt_ids, prompt_mask, ids, mask = (part.to(device) for part in (*prompts, *responses))
    return prompt_ids, prompt_mask, ids, mask


class Policy:
    """A language model as a policy; this class is that of decoders.

    Args:
        model: the transformers model, output projection included.
        pad_id, eos_id: token ids; a response ends with its first EOS.

    Attributes:
        applied: returns a context in which `model` computes as this policy (see `Adapter.reference`).
    """

    def __init__(self, model: PreTrainedModel, *, pad_id: int, eos_id: int) -> None:
        self.model, self.pad_id, self.eos_id = model, pad_id, eos_id
        self.softcap: float | None = getattr(model.config, "final_logit_softcapping", None)
        self.applied: Callable[[], AbstractContextManager[None]] = nullcontext

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
        """Returns the log-probability and entropy of every response token in one forward pass; see `response_states`.

        Zeros are returned for the entropy where it is not asked for.
        """
        with self.applied():
            states = self.states(prompt_ids, prompt_mask, response_ids, response_mask)
            flat, entropy = token_statistics(
                states[response_mask],
                response_ids[response_mask],
                self.model.get_output_embeddings(),
                softcap=self.softcap,
                with_entropy=with_entropy,
            )
        logprobs = torch.zeros(response_ids.shape, dtype=torch.float32, device=states.device)
        entropies = torch.zeros_like(logprobs)
        return TokenStatistics(
            logprobs.masked_scatter(response_mask, flat), entropies.masked_scatter(response_mask, entropy)
        )

    @property
    def packs(self) -> bool:
        """Returns whether its passes compute each prompt once and no padding."""
        return packs(decoder_of(self.model))

    def states(self, *sequences: Tensor) -> Tensor:
        """Returns [batch, response_len, hidden]: the states that predict the tokens of responses; see
        `response_states`."""
        return response_states(decoder_of(self.model), *sequences)[:, :-1]

    def decoding(self, prompt_ids: Tensor, prompt_mask: Tensor) -> Decoding:
        """Starts to decode after these prompts [batch, prompt_len], left-padded, within `applied`."""
        return DecoderDecoding(self.model, self.softcap, prompt_ids, prompt_mask)


class EncoderDecoderPolicy(Policy):
    """An encoder-decoder (T5, mT5) as a policy; see `Policy`. The prompt is what the encoder reads."""

    def __init__(self, model: PreTrainedModel, *, pad_id: int, eos_id: int) -> None:
        super().__init__(model, pad_id=pad_id, eos_id=eos_id)
        self.softcap = None
        self.start_id = start_token(model.config)
        #: T5 with tied embeddings scales its states before the projection.
        scaled = getattr(model.config, "scale_decoder_outputs", False)
        self.scale: float = float(model.config.d_model) ** -0.5 if scaled else 1.0

    @property
    def packs(self) -> bool:
        return False

    def states(self, *sequences: Tensor) -> Tensor:
        return self.scale * response_states(self.model, *sequences)[:, :-1]

    def decoding(self, prompt_ids: Tensor, prompt_mask: Tensor) -> Decoding:
        return EncoderDecoderDecoding(self.model, self.start_id, self.scale, prompt_ids, prompt_mask)


def policy_of(model: PreTrainedModel, *, pad_id: int, eos_id: int) -> Policy:
    """Returns the adapter that fits a model."""
    adapter = EncoderDecoderPolicy if model.config.is_encoder_decoder else Policy
    return adapter(model, pad_id=pad_id, eos_id=eos_id)


def sequence_statistics(
    policy: Policy, sequences: Sequence[EncodedSequence], *, with_entropy: bool = False
) -> tuple[TokenStatistics, Tensor]:
    """Returns the response token statistics and mask [batch, response_len] of encoded sequences."""
    inputs = pad_sequences(sequences, policy.pad_id, policy.device)
    return policy.statistics(*inputs, with_entropy=with_entropy), inputs[3]


def weighted_nll(policy: Policy, sequences: Sequence[EncodedSequence], weights: Sequence[Sequence[float]]) -> Tensor:
    """Returns the sum of weight * -log p over response tokens; each sequence has a weight for every token."""
    statistics, mask = sequence_statistics(policy, sequences)
    filled = torch.zeros(mask.shape)
    for place, row in enumerate(weights):
        filled[place, : len(row)] = torch.tensor(list(row))
    return -(filled.to(mask.device) * statistics.logprobs).sum()
