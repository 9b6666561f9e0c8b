"""A tiny causal model of random weights with a tokenizer of its own, in a folder as a hub has it."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["the cow gives milk .", "who gives milk ?", "a dog ; barks", "Human: Assistant:", "no\n\nyes", "x"]


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(WORDS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    made.add_special_tokens(["<eos>"])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", pad_token="<eos>")


def configuration(words: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.3, pad_token_id=words.pad_token_id,
    )  # fmt: skip


def save_causal(folder: Path) -> Path:
    """Writes the model and its tokenizer; returns the folder."""
    words = tokenizer()
    torch.manual_seed(0)
    LlamaForCausalLM(configuration(words)).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


#: A chat template of the simplest form.
CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def save_chat(folder: Path) -> Path:
    """Writes the model with a tokenizer that has a chat template; returns the folder."""
    save_causal(folder)
    words = tokenizer()
    words.chat_template = CHAT
    words.save_pretrained(folder)
    return folder
