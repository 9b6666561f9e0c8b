"""Batches without padding and without repeated prompts: a decoder's pass over each distinct token once.

The real tokens of a batch follow each other as one row: every distinct prompt, then every response. Linear layers
compute that row; attention cuts it into blocks, in which each response sees its prompt and itself. Where prompts
are shared, prompts attend among themselves and responses to both; where none is, a prompt and its response are a row of
causal attention, which needs no mask. Blocks are padded for torch's attention, and ragged for flash attention.

transformers' own attention functions hand what they are given on to this one; `obstacle` tries on a tiny model of the
same class whether an architecture does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AutoModel, PreTrainedConfig
from transformers.integrations.sdpa_attention import repeat_kv, use_gqa_in_sdpa
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlhf_core.errors import DataError
from rlhf_core.models.architecture import make_tiny
from rlhf_core.models.device import FLASH, padded
from rlhf_core.rollout import distinct_prompts

#: Fields of a configuration that limit how far back attention sees.
WINDOWS = ("sliding_window", "attention_chunk_size")
#: Types of layers, where a configuration states them, that read other tokens by attention alone.
ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
#: Attention scores of a head that a block has at least, where there are as many: fewer blocks are more padding, more
#: blocks more calls. Measured on the CPU.
SCORES = {"cpu": 2**16, "cuda": 2**24}
#: Settings of architectures whose attention counts tokens otherwise than by their positions (Llama 4).
OF_PLACES = ("attn_temperature_tuning",)
#: Options of attention functions that blocks do not compute.
NOT_COMPUTED = ("softcap", "s_aux", "position_bias")


@dataclass(frozen=True)
class Block:
    """Queries and keys of one call of attention, as numbers of packed tokens.

    Attributes:
        queries: [rows, q] int64, `real` on those that are not padding.
        keys: [rows, k] int64, `seen` likewise.
        mask: [rows, 1, q, k] float32, 0 where a query attends to a key, else -infinity; None for causal attention
            with q = k.
    """

    queries: Tensor
    real: Tensor
    keys: Tensor
    seen: Tensor
    mask: Tensor | None = None

    def to(self, device: torch.device) -> Block:
        """Returns the block on a device."""
        parts = (self.queries, self.real, self.keys, self.seen, self.mask)
        return Block(*(None if part is None else part.to(device) for part in parts))  # type: ignore[arg-type]


def spans(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ([rows, longest] int64 starts[i], starts[i] + 1, ..., and bool, True up to each row's length)."""
    offsets = torch.arange(max(1, int(lengths.max())), device=starts.device)
    real = offsets < lengths[:, None]
    return torch.where(real, starts[:, None] + offsets, 0), real


def _alike(scores: Tensor, most: int) -> list[Tensor]:
    """Returns the places of numbers [rows] in parts of similar ones, each of about `most` in sum or of one row."""
    order = scores.argsort(stable=True)
    parts = (scores[order].cumsum(0) - scores[order]) // most
    return list(order.split(torch.unique_consecutive(parts, return_counts=True)[1].tolist()))


class Layout:
    """The packed tokens of a batch, and the blocks in which they attend.

    Args:
        prompt_ids, prompt_mask: [batch, prompt_len], left-padded; prompts are not empty.
        response_ids, response_mask: [batch, response_len], right-padded.

    Attributes:
        ids, positions: [tokens] int64: distinct prompts one behind the other, then responses.
        states: [batch, response_len + 1] int64: the prompt's last token and the response's, on padding its last one.
        blocks: of attention; every token is a query of one of them.
        outputs: [tokens] int64, each token's place among the queries of all blocks.
        longest: tokens of the longest sequence.
    """

    def __init__(self, prompt_ids: Tensor, prompt_mask: Tensor, response_ids: Tensor, response_mask: Tensor) -> None:
        device = prompt_ids.device
        parts = [part.cpu() for part in (prompt_ids, prompt_mask, response_ids, response_mask)]
        distinct, group = distinct_prompts(*parts[:2])
        prompts, responses = (distinct >= 0).sum(dim=1), parts[3].sum(dim=1)
        if not prompts.all():
            raise DataError("a prompt of a batch has no token", remedy="Leave rows with empty prompts out")
        before, firsts = prompts[group], prompts.cumsum(0) - prompts
        starts = prompts.sum() + responses.cumsum(0) - responses
        offsets = torch.arange(max(distinct.shape[1], response_ids.shape[1]))
        ids = torch.cat([distinct[distinct >= 0], parts[2][parts[3]]])
        positions = torch.cat([(offsets < prompts[:, None]).nonzero()[:, 1],
                               (before[:, None] + offsets[: response_ids.shape[1]])[parts[3]]])  # fmt: skip
        last = (firsts[group] + before - 1)[:, None]
        places = offsets[: response_ids.shape[1]].clamp(max=(responses[:, None] - 1).clamp(min=0))
        states = torch.cat([last, torch.where(responses[:, None] > 0, starts[:, None] + places, last)], dim=1)

        def whole(rows: Tensor) -> Block:
            place, real = spans(torch.zeros_like(rows), (before + responses)[rows])
            begins = torch.where(place < before[rows, None], firsts[group[rows], None], (starts - before)[rows, None])
            tokens = torch.where(real, begins + place, 0)
            return Block(tokens, real, tokens, real)

        def prompt(numbers: Tensor) -> Block:
            tokens, real = spans(firsts[numbers], prompts[numbers])
            return Block(tokens, real, tokens, real)

        def response(rows: Tensor) -> Block:
            read, seen = spans(firsts[group[rows]], before[rows])
            said, real = spans(starts[rows], responses[rows])
            later = torch.full((said.shape[1], said.shape[1]), -torch.inf).triu(1).expand(len(rows), -1, -1)
            unseen = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)[:, None].expand(-1, said.shape[1], -1)
            mask = torch.cat([unseen, later], dim=2)[:, None]
            return Block(said, real, torch.cat([read, said], dim=1), torch.cat([seen, real], dim=1), mask)

        shared = torch.bincount(group) > 1
        blocks = [
            make(chosen[rows])
            for make, chosen, scores in (
                (whole, (~shared[group]).nonzero().flatten(), (before + responses) ** 2),
                (prompt, shared.nonzero().flatten(), prompts**2),
                (response, shared[group].nonzero().flatten(), responses * (before + responses)),
            )
            for rows in _alike(scores[chosen], SCORES.get(device.type, SCORES["cuda"]))
        ]
        taken = torch.cat([block.real.flatten() for block in blocks])
        outputs = torch.empty_like(ids)
        outputs[torch.cat([block.queries.flatten() for block in blocks])[taken]] = taken.nonzero().squeeze(1)
        self.ids, self.positions, self.states, self.outputs = (
            part.to(device) for part in (ids, positions, states, outputs)
        )
        self.blocks = [block.to(device) for block in blocks]
        self._queries = torch.cat([block.queries.flatten() for block in self.blocks])
        self._keys = torch.cat([block.keys.flatten() for block in self.blocks])
        self.longest = int((before + responses).max())

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None) -> Tensor:
        """Returns attention [1, tokens, heads, size] of packed queries, keys and values [1, heads, tokens, size]."""
        groups, made = query.shape[1] // key.shape[1], []
        queries = self._rows(query, self._queries, [block.queries.shape for block in self.blocks])
        shapes = [block.keys.shape for block in self.blocks]
        read = (self._rows(part, self._keys, shapes) for part in (key, value))
        for block, asked, keys, values in zip(self.blocks, queries, *read, strict=True):
            together = groups > 1 and use_gqa_in_sdpa(block.mask, keys, values)
            if groups > 1 and not together:
                keys, values = repeat_kv(keys, groups), repeat_kv(values, groups)
            mask = None if block.mask is None else block.mask.to(asked.dtype)
            found = functional.scaled_dot_product_attention(
                asked, keys, values, attn_mask=mask, is_causal=mask is None, dropout_p=dropout, scale=scaling,
                enable_gqa=together,
            )  # fmt: skip
            made.append(found.transpose(1, 2).flatten(2).flatten(0, 1))
        chosen = functional.embedding(self.outputs, torch.cat(made))
        return chosen.view(1, len(self.outputs), query.shape[1], -1)

    @staticmethod
    def _rows(packed: Tensor, index: Tensor, shapes: list[torch.Size]) -> list[Tensor]:
        """Returns the rows of every block, [rows, heads, length, size], from one gather of all."""
        taken = _taken(packed, index).split([shape.numel() for shape in shapes])
        parts = zip(taken, shapes, strict=True)
        return [part.view(*shape, *part.shape[1:]).transpose(1, 2) for part, shape in parts]

    def attend_ragged(
        self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None
    ) -> Tensor:
        """Returns the same by flash attention, whose causal mask ends with each row's last query and last key."""
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

        queries = torch.cat([block.queries[block.real] for block in self.blocks])
        keys = torch.cat([block.keys[block.seen] for block in self.blocks])
        lengths = [torch.cat([getattr(block, name).sum(dim=1) for block in self.blocks]) for name in ("real", "seen")]
        ends = [functional.pad(each.cumsum(0, dtype=torch.int32), (1, 0)) for each in lengths]
        rows = [_taken(part, index).to(value.dtype) for part, index in ((query, queries), (key, keys), (value, keys))]
        found = flash_attn_varlen_func(
            *rows,
            *ends,
            *(int(each.max()) for each in lengths),
            dropout_p=dropout,
            softmax_scale=scaling,
            causal=True,
            deterministic=os.environ.get("FLASH_ATTENTION_DETERMINISTIC") == "1",
        )
        return found[queries.argsort()][None]


def _taken(packed: Tensor, index: Tensor) -> Tensor:
    """Returns [n, heads, size] of packed tokens [1, heads, tokens, size] by their numbers [n].

    An embedding's gradient adds up tokens that are read more than once in the same order every time.
    """
    _, heads, tokens, size = packed.shape
    taken = functional.embedding(index, packed[0].transpose(0, 1).reshape(tokens, heads * size))
    return taken.view(len(index), heads, size)


def _attention(stock: Callable[..., Any], ragged: bool, module: Any, *parts: Tensor | None, **options: Any) -> Any:
    """Computes packed tokens by their layout, and everything else as transformers does."""
    layout: Layout | None = options.pop("layout", None)
    if layout is None:
        return stock(module, *parts, **options)
    if unknown := [name for name in NOT_COMPUTED if options.get(name) is not None]:
        raise TypeError(f"attention with {', '.join(unknown)} is not computed for packed tokens")
    query, key, value = (part for part in parts[:3] if part is not None)
    compute = layout.attend_ragged if ragged else layout.attend
    return compute(query, key, value, dropout=options.get("dropout", 0.0), scaling=options.get("scaling")), None


#: Attention functions that compute packed tokens, by transformers' names.
PACKED = ("sdpa", FLASH)
for _name in PACKED:
    AttentionInterface.register(_name, partial(_attention, ALL_ATTENTION_FUNCTIONS[_name], _name == FLASH))


def packed_states(backbone: Any, layout: Layout) -> Tensor:
    """Returns [tokens, hidden]: the states of packed tokens."""
    # transformers takes a mask of four dimensions as it is and makes none of its own
    mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=layout.ids.device)
    states: Tensor = backbone(
        input_ids=layout.ids[None], position_ids=layout.positions[None], attention_mask=mask, layout=layout,
        use_cache=False,
    )[0][0]  # fmt: skip
    return states


def packs(backbone: Any) -> bool:
    """Returns whether a decoder's passes are packed: its class can be, and its attention function is of `PACKED`."""
    config = backbone.config
    if config._attn_implementation not in PACKED:
        note_padded(config, f"attention is {config._attn_implementation}")
        return False
    if backbone not in _tried:
        _tried[backbone] = obstacle(config)
    if _tried[backbone]:
        note_padded(config, _tried[backbone])
    return not _tried[backbone]


def note_padded(config: PreTrainedConfig, reason: str) -> None:
    """Says once, and in the record of the stage, that batches of a type of model are padded, and why."""
    if config.model_type not in padded:
        padded.add(config.model_type)
        print(f"note: batches of {config.model_type} are padded: {reason}", file=sys.stderr)


def pad(backbone: Any) -> None:
    """Lets a decoder's batches be padded from here on, to compare the two."""
    _tried[backbone] = "as asked for"


#: Reasons why models are padded, empty where they are packed; and the same by the configuration of a tiny model.
_tried: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_known: dict[str, str] = {}


def obstacle(config: PreTrainedConfig) -> str:
    """Returns why an architecture's passes are not packed: another kind of layer than attention, or a tiny model of it
    that computes other states than from each row alone. Empty where they are."""
    layers = {*(getattr(config, "layer_types", None) or ()), *(getattr(config, "layers_block_type", None) or ())}
    if config.is_encoder_decoder or layers - ATTENTION_LAYERS:
        return "it is an encoder-decoder" if config.is_encoder_decoder else "not all its layers are attention"
    if any(getattr(config, name, None) for name in OF_PLACES):
        return "its attention depends on the number of tokens before"
    try:
        tiny = make_tiny(config)
        for name in WINDOWS:
            if getattr(tiny, name, None):
                setattr(tiny, name, 64)
        tiny._attn_implementation = None
        kind = tiny.to_json_string()
        if kind not in _known:
            _known[kind] = "" if _computes_packed(tiny) else "a tiny model of its kind computes other states packed"
        return _known[kind]
    except Exception as error:  # whatever an architecture does that this project does not know
        said = str(error).strip().splitlines()
        return f"a tiny model of its kind cannot be tried ({type(error).__name__}: {said[0][:160] if said else ''})"


@torch.no_grad()
def _computes_packed(tiny: PreTrainedConfig) -> bool:
    prompts, responses = (
        torch.tensor([[3, 1, 4], [3, 1, 4], [0, 0, 2]]),
        torch.tensor([[7, 1, 8], [5, 0, 0], [6, 2, 0]]),
    )
    real, given = torch.tensor([3, 3, 1]), torch.tensor([3, 1, 2])
    places = torch.arange(3)
    layout = Layout(prompts, places >= 3 - real[:, None], responses, places < given[:, None])
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # GPUs are not touched
        model: Any = AutoModel.from_config(tiny, dtype=torch.float32).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    model.set_attn_implementation("sdpa")
    found = packed_states(model, layout)[layout.states]
    for row in range(3):
        tokens = torch.cat([prompts[row, 3 - real[row] :], responses[row, : given[row]]])
        alone = model(input_ids=tokens[None], use_cache=False)[0][0, real[row] - 1 :]
        if not torch.allclose(found[row, : given[row] + 1], alone, atol=1e-4):
            return False
    return True
