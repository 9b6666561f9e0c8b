"""Hidden states of a model that reads prompts and responses: padded batches, and batches without padding.

Without padding a forward pass takes all rows end to end as one, and positions begin at 0 again with each row. That is
how transformers recognises packed rows: its masks let no row see another, and flash attention cuts the rows apart.
Not every architecture hands positions on; `can_pack` tries it on a tiny model of the same class.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, PreTrainedConfig

from rlhf_core.errors import RecipeError
from rlhf_core.models.architecture import make_tiny

#: Attribute of a transformer whose batches are packed.
PACKED = "packs_rows"


def response_states(
    backbone: torch.nn.Module,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    response_ids: Tensor,
    response_mask: Tensor,
) -> Tensor:
    """Returns [batch, response_len + 1, hidden]: state j has read the prompt and the first j response tokens.

    State j predicts response token j (a policy, a critic); state j + 1 has read it (a reward model). States on padding
    mean nothing.

    Args:
        backbone: a transformer without output projection, decoder-only or encoder-decoder.
        prompt_ids, prompt_mask: [batch, prompt_len], left-padded; prompts are not empty.
        response_ids, response_mask: [batch, response_len], right-padded.
    """
    if getattr(backbone.config, "is_encoder_decoder", False):
        return _decoder_states(backbone, prompt_ids, prompt_mask, response_ids)
    states = packed_states if getattr(backbone, PACKED, False) else padded_states
    ids, mask = torch.cat([prompt_ids, response_ids], dim=1), torch.cat([prompt_mask, response_mask], dim=1)
    return states(backbone, ids, mask, prompt_mask.sum(dim=1), response_ids.shape[1])


def padded_states(backbone: Any, ids: Tensor, mask: Tensor, prompts: Tensor, response_len: int) -> Tensor:
    """Returns the states of `response_states` by one row of the batch for each sequence.

    A row's padding is moved to its right end and cut to the longest row: half the positions of a batch can be padding
    between long prompts and long responses. Behind the last real token, padding needs no mask under causal attention,
    which keeps the fast attention kernels. Padding of ids and mask [batch, length] may be anywhere; `prompts` [batch]
    has the tokens of each prompt, `response_len` is the most of a response.
    """
    width = max(1, int(mask.sum(dim=1).max()))
    place = mask.long().argsort(dim=1, descending=True, stable=True)[:, :width]
    moved: Tensor = backbone(input_ids=ids.gather(1, place), use_cache=False).last_hidden_state
    wanted = _wanted(prompts, response_len).clamp(max=width - 1)
    return moved.gather(1, wanted[:, :, None].expand(-1, -1, moved.shape[2]))


def packed_states(backbone: Any, ids: Tensor, mask: Tensor, prompts: Tensor, response_len: int) -> Tensor:
    """Returns what `padded_states` returns, from one row in which the real tokens of all sequences follow each
    other."""
    lengths = mask.sum(dim=1)
    positions = (mask.cumsum(dim=1) - 1)[mask]
    packed: Tensor = backbone(input_ids=ids[mask][None], position_ids=positions[None], use_cache=False)[0][0]
    within = torch.minimum(_wanted(prompts, response_len), lengths[:, None] - 1)
    return packed[within + (lengths.cumsum(dim=0) - lengths)[:, None]]


def _wanted(prompts: Tensor, response_len: int) -> Tensor:
    """Returns [batch, response_len + 1]: places in each sequence, from the prompt's last token on."""
    return prompts[:, None] - 1 + torch.arange(response_len + 1, device=prompts.device)


def pack_rows(backbone: torch.nn.Module) -> None:
    """Lets a transformer that `can_pack` compute batches without padding from here on."""
    setattr(backbone, PACKED, True)


def _attend_by_positions(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Computes attention as flash attention does: rows are cut apart by the positions that the layer was given."""
    positions = options.get("position_ids")
    rows = torch.zeros(query.shape[2]).long() if positions is None else (positions[0] == 0).cumsum(0)
    sees = (rows[:, None] == rows[None]).tril()
    if (window := options.get("sliding_window")) is not None:
        sees = sees.triu(1 - window)
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(2, 3) * (options.get("scaling") or query.shape[-1] ** -0.5)
    if (cap := options.get("softcap")) is not None:
        scores = cap * torch.tanh(scores / cap)
    return (scores.masked_fill(~sees, float("-inf")).softmax(dim=-1) @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register(_attend_by_positions.__name__, _attend_by_positions)
AttentionMaskInterface.register(_attend_by_positions.__name__, lambda *args, **kwargs: None)


def can_pack(config: PreTrainedConfig, attention: str | None) -> bool:
    """Returns whether an architecture computes packed rows apart from each other.

    A tiny random model of the class reads three rows packed and padded. For flash attention its attention is replaced
    by one that knows the rows from positions alone, as the kernel does.
    """
    if config.is_encoder_decoder:
        return False
    kernel = _attend_by_positions.__name__ if attention is not None and attention.startswith("flash") else "eager"
    rows = [[3, 1, 4, 1, 5], [2], [7, 1, 8]]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        tiny = make_tiny(config)
        tiny._attn_implementation = None
        model: Any = AutoModel.from_config(tiny, dtype=torch.float32).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        alone = torch.cat([model(input_ids=torch.tensor([row]), use_cache=False)[0][0] for row in rows])
        model.set_attn_implementation(kernel)
        if model.config._attn_implementation != kernel:  # its attention is not to be replaced
            return False
        ids, places = [each for row in rows for each in row], [place for row in rows for place in range(len(row))]
        try:
            found = model(input_ids=torch.tensor([ids]), position_ids=torch.tensor([places]), use_cache=False)
        except TypeError:  # its forward pass takes no positions
            return False
    return torch.allclose(alone, found[0][0], atol=1e-4)


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
