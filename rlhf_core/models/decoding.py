"""Decoding: next-token logits of rows that grow by a token at a time.

1. `Decoding` reads prompts and continues with the growing cache that transformers has for the architecture. Every model
   can decode so.
2. `FixedDecoding` continues rows of a decoder-only model in memory that is allocated once, where nothing is
   concatenated. If each step reads all of it, addresses and shapes stay as they are, and a GPU replays the step as a
   graph: the same kernels, without Python between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from rlhf_core.models.loading import decoder_of
from rlhf_core.models.logprobs import project

#: Captures a step without running it, and returns what runs it.
Capture = Callable[[Callable[[], None]], Callable[[], None]]
#: Fields of a configuration that count experts.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
#: Attention kernels that take a mask of any kind, as transformers names them.
MASKED = ("sdpa", "eager")


class Decoding:
    """Rows with the cache that transformers gives their model.

    Args:
        transformer: the model without its output projection.
        logits_of: [rows, hidden] -> [rows, vocabulary] float32.
        tokens: [rows, length] int64, which are read first.
        cache: the transformer's cache; None for the one that it makes itself.
        inputs: arguments of the transformer beside tokens and cache, each [rows, ...].

    Attributes:
        obstacle: why its steps cannot be captured; empty where they can.
    """

    obstacle = ""

    def __init__(
        self, transformer: Any, logits_of: Callable[[Tensor], Tensor], tokens: Tensor, cache: Any, **inputs: Tensor
    ) -> None:
        self.transformer, self.logits_of, self.tokens = transformer, logits_of, tokens
        self.cache, self.inputs = cache, inputs

    def first(self) -> Tensor:
        """Returns [rows, vocabulary] float32: logits of every row's first token."""
        return self.logits(self.tokens)

    def logits(self, tokens: Tensor) -> Tensor:
        """Returns [rows, vocabulary] float32: logits of the token that follows these [rows, length] int64."""
        result = self.transformer(input_ids=tokens, past_key_values=self.cache, use_cache=True, **self.inputs)
        self.cache = result.past_key_values
        return self.logits_of(result.last_hidden_state[:, -1])

    def keep(self, rows: Tensor) -> None:
        """Continues with these rows, [kept] int64; one that is named several times is continued as often."""
        self.cache.batch_select_indices(rows)
        self.inputs = {name: values[rows] for name, values in self.inputs.items()}

    def continued(self, rows: Tensor, room: int, *, captured: bool) -> Decoding:
        """Returns what decodes after the first token.

        Args:
            rows: [rows] int64, the prompt of each row; each has been read once.
            room: tokens that can be added.
            captured: whether steps are to be captured.
        """
        if len(rows) > len(self.tokens):
            self.keep(rows)
        return self


class DecoderDecoding(Decoding):
    """Rows of a decoder-only model after their prompts, [rows, prompt_len], left-padded."""

    def __init__(self, model: PreTrainedModel, softcap: float | None, prompt_ids: Tensor, prompt_mask: Tensor) -> None:
        self.model, output = model, model.get_output_embeddings()
        positions = (prompt_mask.long().cumsum(dim=1) - 1).clamp(min=0)
        super().__init__(
            decoder_of(model), lambda hidden: project(hidden, output, softcap), prompt_ids, None,
            attention_mask=prompt_mask.long(), position_ids=positions,
        )  # fmt: skip

    def logits(self, tokens: Tensor) -> Tensor:
        if self.cache is not None:
            mask, positions = self.inputs["attention_mask"], self.inputs["position_ids"]
            self.inputs["attention_mask"] = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            self.inputs["position_ids"] = positions[:, -1:] + 1
        return super().logits(tokens)

    def continued(self, rows: Tensor, room: int, *, captured: bool) -> Decoding:
        self.obstacle = self._obstacle(room)
        if self.obstacle:
            return super().continued(rows, room, captured=captured)
        return FixedDecoding(self, rows, room, captured=captured)

    def _obstacle(self, room: int) -> str:
        """Returns why `FixedDecoding` cannot continue these rows; empty where it can."""
        positions = "position_ids" in signature(self.transformer.forward).parameters
        if not self.model._can_compile_fullgraph or not positions or getattr(self.model.config, "alibi", False):
            return f"{self.model.config.model_type} makes masks or positions of its own"
        if any(getattr(self.model.config, name, None) for name in EXPERTS):
            return "experts are chosen on the host"
        if any(hasattr(parameter, "ds_id") for parameter in self.model.parameters()):
            return "the weights are sharded"
        attention, length = _attention(self.transformer), self.tokens.shape[1] + room
        if attention not in MASKED and not self.transformer._supports_sdpa:
            return f"attention is {attention}, and {self.model.config.model_type} has no sdpa"
        for layer in self.cache.layers:
            if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
                return f"a layer's cache is a {type(layer).__name__}"
            if layer.is_sliding and layer.sliding_window < length:
                return f"{length} tokens do not fit the sliding window of {layer.sliding_window}"
        return ""


class EncoderDecoderDecoding(Decoding):
    """Rows of an encoder-decoder model; the encoder has read their prompts once.

    Args:
        model, prompt_ids, prompt_mask: as of a decoder.
        start_id: the decoder's first input.
        scale: factor on the decoder's states before the output projection.
    """

    obstacle = "the model is an encoder-decoder"

    def __init__(
        self, model: PreTrainedModel, start_id: int, scale: float, prompt_ids: Tensor, prompt_mask: Tensor
    ) -> None:
        output, mask = model.get_output_embeddings(), prompt_mask.long()
        super().__init__(
            model.get_decoder(),
            lambda hidden: project(hidden * scale, output, None),
            torch.full_like(prompt_ids[:, :1], start_id),
            EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config)),
            encoder_hidden_states=model.get_encoder()(input_ids=prompt_ids, attention_mask=mask).last_hidden_state,
            encoder_attention_mask=mask,
        )


class FixedDecoding(Decoding):
    """Rows of a decoder-only model in memory for all tokens to come.

    Args:
        read: the prompts, which have been read.
        rows, room: see `Decoding.continued`.
        captured: whether every step reads the whole memory, else what has been written.

    Attributes:
        mask: [rows, 1, 1, length], which is added to attention scores.
        positions: [rows, 1] int64, of the next token.
    """

    def __init__(self, read: DecoderDecoding, rows: Tensor, room: int, *, captured: bool) -> None:
        prompt, length = read.tokens.shape[1], read.tokens.shape[1] + room
        length += -length % 8 if captured else 0  # each layer would pad a mask of another length
        self.end = _End(torch.tensor([prompt], device=rows.device), length if captured else prompt + 1)
        layers = [_FixedLayer(self.end, layer, rows, length) for layer in read.cache.layers]
        super().__init__(read.transformer, read.logits_of, read.tokens, Cache(layers=[*layers]))
        self.captured, self.positions = captured, read.inputs["position_ids"][rows, -1:] + 1
        self.mask = torch.full((len(rows), 1, 1, length), -torch.inf, dtype=layers[0].keys.dtype, device=rows.device)
        self.mask[:, 0, 0, :prompt].masked_fill_(read.inputs["attention_mask"][rows].bool(), 0.0)

    def logits(self, tokens: Tensor) -> Tensor:
        self.mask.index_fill_(3, self.end.place, 0.0)
        self.inputs = {"attention_mask": self.mask[..., : self.end.reach], "position_ids": self.positions}
        with _masked_attention(self.transformer):
            logits = super().logits(tokens)
        self.positions += 1
        self.end.place += 1
        self.end.reach += not self.captured
        return logits

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask, self.positions = self.mask[rows], self.positions[rows]


@dataclass
class _End:
    """End of what is written, for all layers.

    Attributes:
        place: [1] int64, where the next token is written.
        reach: tokens that the next one sees, itself and masked ones included.
    """

    place: Tensor
    reach: int


class _FixedLayer(DynamicLayer):
    """A layer's keys and values, [rows, heads, length, size] each."""

    keys: Tensor
    values: Tensor

    def __init__(self, end: _End, read: Any, rows: Tensor, length: int) -> None:
        super().__init__()
        self.end, self.is_initialized = end, True
        self.keys, self.values = (_with_room(part, rows, length) for part in (read.keys, read.values))

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self.end.place, key_states)
        self.values.index_copy_(2, self.end.place, value_states)
        return self.keys[:, :, : self.end.reach], self.values[:, :, : self.end.reach]

    def get_seq_length(self) -> Any:
        return self.end.place

    def batch_select_indices(self, indices: Tensor) -> None:
        length, seen = self.keys.shape[2], slice(self.end.reach)
        self.keys, self.values = (_with_room(part[:, :, seen], indices, length) for part in (self.keys, self.values))


def _with_room(values: Tensor, rows: Tensor, length: int) -> Tensor:
    """Returns these rows of [_, heads, _, size] in memory for `length` tokens."""
    held = values.new_empty(len(rows), values.shape[1], length, values.shape[3])
    torch.index_select(values, 0, rows, out=held[:, :, : values.shape[2]])
    held[:, :, values.shape[2] :] = 0  # where the mask is, too, must be numbers
    return held


def _attention(transformer: Any) -> str:
    return str(transformer.config._attn_implementation)


@contextmanager
def _masked_attention(transformer: Any) -> Iterator[None]:
    """Yields while a transformer has sdpa in the place of a kernel that takes no mask, such as flash attention."""
    own = _attention(transformer)
    if own in MASKED:
        yield
        return
    transformer.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        transformer.set_attn_implementation(own)


def cuda_graph(compute: Callable[[], None]) -> Callable[[], None]:
    """Captures what `compute` launches on a GPU, without running it; returns what runs it again and again."""
    graph = torch.cuda.CUDAGraph()
    # the outer stream comes back also where the capture fails, which torch leaves to its caller
    with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        compute()
    return graph.replay


class Step:
    """A step that changes tensors in place: computed once, for what kernels load, then captured and replayed.

    Args:
        compute: computes the step.
        capture: see `cuda_graph`; None to compute every step.
        failed: is told why a step cannot be captured; it is computed then.
    """

    def __init__(self, compute: Callable[[], None], capture: Capture | None, failed: Callable[[str], None]) -> None:
        self.compute, self.capture, self.failed = compute, capture, failed
        self.forget()

    def forget(self) -> None:
        """Forgets the graph, whose shapes are no longer those of the step."""
        self.run, self.calls = self.compute, 0

    def __call__(self) -> None:
        if self.calls == 1 and self.capture is not None:
            try:
                self.run = self.capture(self.compute)
            except RuntimeError as error:
                self.capture, cause = None, error
                while isinstance(cause.__context__, RuntimeError):
                    cause = cause.__context__
                self.failed(str(cause).splitlines()[0])
        self.run()
        self.calls += 1
