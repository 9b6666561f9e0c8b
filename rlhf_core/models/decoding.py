"""Decoding state: next-token logits of rows that grow by one token at a time; the prompt is computed once."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from rlhf_core.models.loading import decoder_of
from rlhf_core.models.logprobs import project


def position_ids(mask: Tensor) -> Tensor:
    """Returns [batch, length] positions that ignore padding on either side."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


class DecoderDecoding:
    """Decoding of a decoder-only model with its key-value cache.

    Args:
        model: a causal language model.
        softcap: Gemma 2's logit soft cap.
        prompt_ids, prompt_mask: [batch, prompt_len], left-padded.
    """

    def __init__(self, model: PreTrainedModel, softcap: float | None, prompt_ids: Tensor, prompt_mask: Tensor) -> None:
        self.decoder, self.output, self.softcap = decoder_of(model), model.get_output_embeddings(), softcap
        self.attention, self.cache = prompt_mask.clone(), None
        self.ids, self.positions = prompt_ids, position_ids(prompt_mask)

    def logits(self) -> Tensor:
        """Returns [rows, vocabulary] float32: of the next token of every row."""
        result = self.decoder(
            input_ids=self.ids,
            attention_mask=self.attention.long(),
            position_ids=self.positions,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache = result.past_key_values
        return project(result.last_hidden_state[:, -1], self.output, self.softcap)

    def append(self, chosen: Tensor, alive: Tensor) -> None:
        """Adds a token to every row.

        Args:
            chosen: [rows] int64.
            alive: [rows] bool, False where the row has ended and what it is given no longer matters.
        """
        self.attention = torch.cat([self.attention, alive[:, None]], dim=1)
        self.positions = self.positions[:, -1:] + 1
        self.ids = chosen[:, None]

    def keep(self, rows: Tensor) -> None:
        """Continues with these rows only, [kept] int64."""
        assert self.cache is not None
        self.cache.batch_select_indices(rows)
        self.attention, self.positions, self.ids = self.attention[rows], self.positions[rows], self.ids[rows]


class EncoderDecoderDecoding:
    """Decoding of an encoder-decoder model: the encoder runs once, the decoder with its caches.

    Args:
        model: a sequence-to-sequence model.
        start_id: the decoder's first input.
        scale: factor on the decoder's states before the output projection.
        prompt_ids, prompt_mask: [batch, prompt_len].
    """

    def __init__(
        self, model: PreTrainedModel, start_id: int, scale: float, prompt_ids: Tensor, prompt_mask: Tensor
    ) -> None:
        self.decoder, self.output, self.scale = model.get_decoder(), model.get_output_embeddings(), scale
        self.encoder_mask = prompt_mask.long()
        self.encoded: Tensor = model.get_encoder()(
            input_ids=prompt_ids, attention_mask=self.encoder_mask
        ).last_hidden_state
        self.cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
        self.ids = torch.full((prompt_ids.shape[0], 1), start_id, dtype=torch.long, device=prompt_ids.device)

    def logits(self) -> Tensor:
        hidden = self.decoder(
            input_ids=self.ids,
            encoder_hidden_states=self.encoded,
            encoder_attention_mask=self.encoder_mask,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        return project(hidden[:, -1] * self.scale, self.output, None)

    def append(self, chosen: Tensor, alive: Tensor) -> None:
        self.ids = chosen[:, None]

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.ids, self.encoded, self.encoder_mask = self.ids[rows], self.encoded[rows], self.encoder_mask[rows]


Decoding = DecoderDecoding | EncoderDecoderDecoding
