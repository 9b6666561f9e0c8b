"""Model folders as the hub has them, tiny and with random weights: the families that the papers use or a user would.

Each has its own tokenizer class, trained on given texts, its own chat template and its own habits: Phi-3's pad token is
its EOS and its markers swallow the blanks behind them; Llama 2 and 3 have no pad token; Gemma refuses a system turn;
Qwen adds one, and its pad token is the base model's EOS; T5 decodes from the pad token on and knows no line breaks.
Embeddings have more rows than the tokenizer has tokens, and weights are stored in the precision of the release.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GemmaTokenizer,
    LlamaTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
    T5Tokenizer,
)

PIECES = 300
#: Rows of the embeddings beyond the tokenizer's vocabulary.
SPARE = 24
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
OPENS = "{% if add_generation_prompt %}"
PHI3 = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    + OPENS
    + "<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    + OPENS
    + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}" + OPENS + "<start_of_turn>model\n{% endif %}"
)
QWEN = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    + OPENS
    + "<|im_start|>assistant\n{% endif %}"
)


def _bpe(texts: Sequence[str], pre_tokenizer: Any, alphabet: Sequence[str] = ()) -> tuple[list[str], list[Any]]:
    """(letters and pieces in order of their ids, merges)."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=PIECES, initial_alphabet=list(alphabet), show_progress=False)
    backend.train_from_iterator(texts, trainer)
    made = json.loads(backend.to_str())["model"]
    return sorted(made["vocab"], key=made["vocab"].__getitem__), [tuple(merge) for merge in made["merges"]]


def _ids(*parts: Sequence[str]) -> dict[str, int]:
    return {token: i for i, token in enumerate(dict.fromkeys(token for part in parts for token in part))}


def phi3(texts: Sequence[str]) -> Any:
    pieces, merges = _bpe(texts, pre_tokenizers.Metaspace(prepend_scheme="always"))
    tokenizer = LlamaTokenizer(
        vocab=_ids(["<unk>", "<s>", "</s>"], BYTES, pieces), merges=merges,
        eos_token="<|endoftext|>", pad_token="<|endoftext|>",
    )  # fmt: skip
    markers = ["<|assistant|>", "<|system|>", "<|end|>", "<|user|>"]
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [AddedToken(marker, rstrip=True, special=True) for marker in markers]}
    )
    tokenizer.chat_template = PHI3
    return tokenizer


def llama2(texts: Sequence[str]) -> Any:
    pieces, merges = _bpe(texts, pre_tokenizers.Metaspace(prepend_scheme="always"))
    return LlamaTokenizer(vocab=_ids(["<unk>", "<s>", "</s>"], BYTES, pieces), merges=merges)


def llama(texts: Sequence[str]) -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces, merges = _bpe(texts, pre_tokenizers.ByteLevel(add_prefix_space=False), letters)
    backend = Tokenizer(models.BPE(vocab=_ids(pieces), merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>"
    )
    markers = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": markers})
    tokenizer.chat_template = LLAMA3
    return tokenizer


def gemma2(texts: Sequence[str]) -> Any:
    pieces, merges = _bpe(texts, pre_tokenizers.Metaspace(prepend_scheme="never"))
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer = GemmaTokenizer(vocab=_ids(special, BYTES, ["\n"], pieces), merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"]})
    tokenizer.chat_template = GEMMA
    return tokenizer


def qwen2(texts: Sequence[str]) -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces, merges = _bpe(texts, pre_tokenizers.ByteLevel(add_prefix_space=False), letters)
    tokenizer = Qwen2Tokenizer(vocab=_ids(pieces, ["<|endoftext|>"]), merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = QWEN
    return tokenizer


def t5(texts: Sequence[str]) -> Any:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    trainer = trainers.UnigramTrainer(
        vocab_size=PIECES, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    pieces = json.loads(backend.to_str())["model"]["vocab"]
    return T5Tokenizer(vocab=[(piece, score) for piece, score in pieces])


DECODER: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 2048, "initializer_range": 0.1,
}  # fmt: skip
T5: dict[str, Any] = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
_T5_IDS = {"pad_token_id": "<pad>", "eos_token_id": "</s>", "decoder_start_token_id": "<pad>"}


@dataclass(frozen=True)
class ModelFamily:
    """A family as it is published.

    Attributes:
        model_type: of its configuration.
        tokenizer: trains one on texts.
        template: the chat template of its recipes; `tokenizer` is its own.
        architecture: fields of its configuration.
        ids: special ids of its configuration, by token.
        dtype: of the stored weights.
        spare: rows of the embeddings beyond the vocabulary.
    """

    model_type: str
    tokenizer: Callable[[Sequence[str]], Any]
    template: str
    architecture: dict[str, Any]
    ids: dict[str, str]
    dtype: torch.dtype = torch.bfloat16
    spare: int = SPARE


FAMILIES: dict[str, ModelFamily] = {
    "phi3": ModelFamily(
        "phi3",
        phi3,
        "phi3",
        {**DECODER, "sliding_window": 48, "original_max_position_embeddings": 2048, "tie_word_embeddings": False},
        {"bos_token_id": "<s>", "eos_token_id": "<|endoftext|>", "pad_token_id": "<|endoftext|>"},
    ),
    "llama": ModelFamily(
        "llama",
        llama,
        "llama3",
        {**DECODER, "tie_word_embeddings": False},
        {"bos_token_id": "<|begin_of_text|>", "eos_token_id": "<|end_of_text|>"},
        spare=0,
    ),
    "llama2": ModelFamily(
        "llama",
        llama2,
        "alpaca",
        {**DECODER, "tie_word_embeddings": False},
        {"bos_token_id": "<s>", "eos_token_id": "</s>"},
        spare=0,
    ),
    "gemma2": ModelFamily(
        "gemma2",
        gemma2,
        "gemma",
        {**DECODER, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 48},
        {"bos_token_id": "<bos>", "eos_token_id": "<eos>", "pad_token_id": "<pad>"},
    ),
    "qwen2": ModelFamily(
        "qwen2",
        qwen2,
        "tokenizer",
        {**DECODER, "tie_word_embeddings": True},
        {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|im_end|>"},
    ),
    "t5": ModelFamily("t5", t5, "seq2seq", T5, _T5_IDS, torch.float32),
    "mt5": ModelFamily("mt5", t5, "seq2seq", {**T5, "feed_forward_proj": "gated-gelu"}, _T5_IDS, torch.float32),
}


def published(name: str, texts: Sequence[str], folder: Path, own: Mapping[str, Any] | None = None) -> Path:
    """Writes a family's folder; returns it.

    Args:
        name: of the family.
        texts: that its tokenizer is trained on.
        folder: where it is written.
        own: fields of the configuration over the family's.
    """
    family = FAMILIES[name]
    tokenizer = family.tokenizer(texts)
    ids = {field: tokenizer.convert_tokens_to_ids(token) for field, token in family.ids.items()}
    fields = {**family.architecture, **(own or {}), **ids}
    config = AutoConfig.for_model(family.model_type, vocab_size=len(tokenizer) + family.spare, **fields)
    save_random(config, folder, family.dtype)
    tokenizer.save_pretrained(folder)
    return folder


def save_random(config: PreTrainedConfig, folder: Path, dtype: torch.dtype) -> None:
    """Writes a model of a configuration with random weights, always the same ones."""
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kind.from_config(config, dtype=dtype).save_pretrained(folder)
