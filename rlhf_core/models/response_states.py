"""Hidden states of a model that reads prompts and responses: packed, padded, or by an encoder and a decoder.

Packed batches have neither padding nor a prompt twice (`rlhf_core.models.packing`); what cannot be packed is padded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rlhf_core.errors import RecipeError
from rlhf_core.models.packing import WINDOWS, Layout, note_padded, packed_states, packs


def response_states(
    backbone: Any,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    response_ids: Tensor,
    response_mask: Tensor,
) -> Tensor:
    """Returns [batch, response_len + 1, hidden]: state j has read the prompt and the first j response tokens.

    State j predicts response token j (a policy, a critic); state j + 1 has read it (a reward model). States on padding
    mean nothing. Sequences longer than a sliding window are padded: packed attention has none.

    Args:
        backbone: a transformer without output projection, decoder-only or encoder-decoder.
        prompt_ids, prompt_mask: [batch, prompt_len], left-padded; prompts are not empty.
        response_ids, response_mask: [batch, response_len], right-padded.
    """
    inputs = prompt_ids, prompt_mask, response_ids, response_mask
    if backbone.config.is_encoder_decoder:
        return _decoder_states(backbone, prompt_ids, prompt_mask, response_ids)
    if packs(backbone):
        layout, windows = Layout(*inputs), [getattr(backbone.config, name, None) for name in WINDOWS]
        if all(layout.longest <= (window or layout.longest) for window in windows):
            return functional.embedding(layout.states, packed_states(backbone, layout))
        note_padded(backbone.config, f"{layout.longest} tokens are longer than its sliding window")
    return padded_states(backbone, *inputs)


def padded_states(
    backbone: Any, prompt_ids: Tensor, prompt_mask: Tensor, response_ids: Tensor, response_mask: Tensor
) -> Tensor:
    """Returns the same by one row of the batch for each sequence.

    A row's padding is moved to its right end and cut to the longest row: half the positions of a batch can be padding
    between long prompts and long responses. Behind the last real token, padding needs no mask under causal attention,
    which keeps the fast attention kernels; it is read as the row's first token, so that it is a number.
    """
    ids, mask = torch.cat([prompt_ids, response_ids], dim=1), torch.cat([prompt_mask, response_mask], dim=1)
    width = max(1, int(mask.sum(dim=1).max()))
    place = mask.long().argsort(dim=1, descending=True, stable=True)[:, :width]
    ids = torch.where(mask.gather(1, place), ids.gather(1, place), ids.gather(1, place[:, :1]))
    moved: Tensor = backbone(input_ids=ids, use_cache=False).last_hidden_state
    wanted = prompt_mask.sum(dim=1)[:, None] - 1 + torch.arange(response_ids.shape[1] + 1, device=ids.device)
    return moved.gather(1, wanted.clamp(max=width - 1)[:, :, None].expand(-1, -1, moved.shape[2]))


def _decoder_states(model: Any, prompt_ids: Tensor, prompt_mask: Tensor, response_ids: Tensor) -> Tensor:
    """Returns an encoder-decoder's states; right padding needs no mask, since no token attends to later ones."""
    encoded = model.get_encoder()(input_ids=prompt_ids, attention_mask=prompt_mask.long()).last_hidden_state
    start = response_ids.new_full((response_ids.shape[0], 1), start_token(model.config))
    hidden: Tensor = model.get_decoder()(
        input_ids=torch.cat([start, response_ids], dim=1),
        encoder_hidden_states=encoded,
        encoder_attention_mask=prompt_mask.long(),
        use_cache=False,
    ).last_hidden_state
    return hidden


def start_token(config: object) -> int:
    """Returns the decoder's first input: `decoder_start_token_id`, else the pad token as T5 has it."""
    for name in ("decoder_start_token_id", "pad_token_id"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    raise RecipeError("the encoder-decoder's configuration names neither decoder_start_token_id nor pad_token_id")
