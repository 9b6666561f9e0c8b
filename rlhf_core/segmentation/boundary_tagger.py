"""A sentence-boundary tagger of the project's own, in the form that wtpsplit's `SaT` loads.

The model is SaT's: an XLM-R encoder of 1, 3 or 9 layers with one logit per token, high where the token ends a
sentence; trained on gold sentences with binary cross-entropy. Source: Frohmann et al. 2024 for the model, whose
pre-training on unsegmented text is left out.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf_core.data.batching import LengthBucketedBatches
from rlhf_core.data.tokenizers import train_byte_level_bpe
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.loading import save_model
from rlhf_core.models.policy import pad_rows
from rlhf_core.segmentation.sat import SETTINGS_FILE, TaggerConfig
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.supervised.training import train

BEGIN, SEPARATOR = "<s>", "</s>"


@dataclass(frozen=True)
class GoldText:
    """A text and the increasing character ends of its sentences, without the white space behind them."""

    text: str
    ends: tuple[int, ...]


def build_tagger(config: TaggerConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> Any:
    """Returns a tagger with random weights."""
    try:
        from wtpsplit.models import SubwordXLMConfig, SubwordXLMForTokenClassification
    except ModuleNotFoundError as error:
        raise RecipeError(
            f"training a boundary tagger needs {error.name}: `pip install rewardsmith` installs it with wtpsplit"
        ) from None
    sizes = SubwordXLMConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=4 * config.hidden,
        # XLM-R counts positions from behind the padding id; two more tokens frame a window.
        max_position_embeddings=config.window + 4,
        type_vocab_size=1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.convert_tokens_to_ids(BEGIN),
        eos_token_id=tokenizer.convert_tokens_to_ids(SEPARATOR),
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
        initializer_range=0.05,
        num_labels=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return SubwordXLMForTokenClassification(sizes)


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> PreTrainedTokenizerBase:
    """Returns the tagger's tokenizer: any text survives it, and each token knows its characters."""
    tokenizer = train_byte_level_bpe(texts, vocabulary, (BEGIN, SEPARATOR), eos_token=SEPARATOR, bos_token=BEGIN)
    tokenizer.cls_token, tokenizer.sep_token = BEGIN, SEPARATOR
    return tokenizer


def labelled_windows(
    gold: Sequence[GoldText], tokenizer: PreTrainedTokenizerBase, window: int
) -> list[tuple[list[int], list[int]]]:
    """Returns (token ids, 1 where the token ends a sentence) of stretches of at most `window` tokens, which overlap by
    half."""
    windows: list[tuple[list[int], list[int]]] = []
    for item in gold:
        encoded = tokenizer(item.text, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True)
        ids, spans = encoded["input_ids"], encoded["offset_mapping"]
        starts, labels = [start for start, _ in spans], [0] * len(ids)
        for end in item.ends:
            if ids:
                labels[max(0, bisect_left(starts, end) - 1)] = 1
        for start in range(0, max(1, len(ids) - window // 2), max(1, window // 2)):
            if ids[start : start + window]:
                windows.append((ids[start : start + window], labels[start : start + window]))
    if not windows:
        raise DataError("there is no text with sentences to train a boundary tagger on")
    return windows


def tagger_loss(
    model: Any, rows: Sequence[tuple[list[int], list[int]]], tokenizer: PreTrainedTokenizerBase
) -> tuple[Tensor, float]:
    """Returns (sum of the binary cross-entropy over real tokens, number of real tokens)."""
    begin, end = (tokenizer.get_vocab()[token] for token in (BEGIN, SEPARATOR))
    ids, mask = pad_rows([[begin, *tokens, end] for tokens, _ in rows], int(tokenizer.pad_token_id or 0), "right")
    labels, _ = pad_rows([[-1, *marks, -1] for _, marks in rows], -1, "right")
    device = next(model.parameters()).device
    logits = model(input_ids=ids.to(device), attention_mask=mask.long().to(device)).logits[..., 0].float()
    labels = labels.to(device)
    real = labels >= 0
    loss = F.binary_cross_entropy_with_logits(logits[real], labels[real].float(), reduction="sum")
    return loss, float(real.sum())


def train_tagger(
    gold: Sequence[GoldText],
    config: TaggerConfig,
    training: TrainingConfig,
    seed: int,
    on_step: Callable[[int, int, dict[str, float]], None] = lambda step, steps, metrics: None,
    device: torch.device | None = None,
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Returns a trained tagger and its tokenizer.

    Args:
        gold: texts with their sentences.
        config, training: sizes and settings; `batch` counts windows.
        seed: of weights, order and dropout.
        on_step: sees (step from 1, steps, metrics).
    """
    tokenizer = train_tokenizer([item.text for item in gold], config.vocabulary)
    windows = labelled_windows(gold, tokenizer, config.window)
    model = build_tagger(config, tokenizer, seed).to(device or torch.device("cpu"))
    batches = LengthBucketedBatches([len(ids) for ids, _ in windows], seed=seed, rows_per_batch=training.batch)
    steps = training.steps(len(windows))

    def loss(rows: Sequence[int]) -> tuple[Tensor, float, dict[str, float]]:
        value, tokens = tagger_loss(model, [windows[i] for i in rows], tokenizer)
        return value, tokens, {}

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        train(
            model,
            loss,
            batches,
            steps,
            training,
            lambda step, metrics: on_step(step, steps, metrics),
            weight=lambda rows: float(sum(len(windows[i][0]) for i in rows)),
        )
    return model, tokenizer


def save_tagger(
    model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path, *, threshold: float, max_sentence_chars: int
) -> None:
    """Saves a folder that wtpsplit's `SaT(folder, tokenizer_name_or_path=folder)` loads, and our settings in it."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model, folder)
    tokenizer.save_pretrained(folder)
    settings = {"threshold": threshold, "max_sentence_chars": max_sentence_chars}
    (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def sentence_scores(found: Sequence[Sequence[int]], gold: Sequence[GoldText]) -> dict[str, float]:
    """Returns the precision, recall and F1 of character ends of sentences, pooled over texts.

    White space behind a sentence does not matter, and a text's own end is left out.
    """
    right = said = true = 0
    for ends, item in zip(found, gold, strict=True):
        last = len(item.text.rstrip())
        predicted = {len(item.text[:end].rstrip()) for end in ends} - {last}
        actual = set(item.ends) - {last}
        right, said, true = right + len(predicted & actual), said + len(predicted), true + len(actual)
    precision, recall = right / max(1, said), right / max(1, true)
    f1 = 2 * right / max(1, said + true)
    return {"precision": precision, "recall": recall, "f1": f1, "boundaries": float(true)}
