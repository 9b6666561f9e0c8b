"""A SaT model over many texts at once: windows of similar length share a forward pass.

It finds what wtpsplit's `SaT.split` finds, whose forward passes are padded to the longest text of all and whose logits
travel through lists of characters; a test compares both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def windows(length: int, block: int, stride: int) -> list[tuple[int, int]]:
    """Returns half-open token ranges of at most `block` tokens that cover a text; the last one ends with it."""
    found: list[tuple[int, int]] = []
    for start in range(0, length, stride):
        if start + block >= length:
            return [*found, (max(length - block, 0), length)]
        found.append((start, start + block))
    return found


@torch.inference_mode()
def token_logits(
    model: Any, tokenizer: Any, ids: Sequence[Sequence[int]], *, block: int, stride: int, batch: int
) -> list[NDArray[np.float16]]:
    """Returns [tokens] float16 logit of each token of each text that it ends a sentence, averaged over its windows.

    Args:
        model: token classifier.
        tokenizer: names begin, separator and padding.
        ids: tokens of each text.
        block, stride: tokens of a window, and from one window's start to the next one's.
        batch: windows per forward pass.
    """
    device = next(model.parameters()).device
    places = [(row, *window) for row, tokens in enumerate(ids) for window in windows(len(tokens), block, stride)]
    places.sort(key=lambda place: (place[2] - place[1], place))
    sums = [np.zeros(len(tokens), dtype=np.float16) for tokens in ids]
    counts = [np.zeros(len(tokens), dtype=np.float16) for tokens in ids]
    for first in range(0, len(places), batch):
        part = places[first : first + batch]
        width = part[-1][2] - part[-1][1] + 2
        inputs = np.full((len(part), width), tokenizer.pad_token_id, dtype=np.int64)
        mask = np.zeros(inputs.shape, dtype=np.float32)
        for i, (row, start, end) in enumerate(part):
            framed = [tokenizer.cls_token_id, *ids[row][start:end], tokenizer.sep_token_id]
            inputs[i, : len(framed)], mask[i, : len(framed)] = framed, 1
        output = model(input_ids=torch.from_numpy(inputs).to(device), attention_mask=torch.from_numpy(mask).to(device))
        logits = output.logits[:, 1:-1, 0].float().cpu().numpy()
        for i, (row, start, end) in enumerate(part):
            sums[row][start:end] += logits[i, : end - start]
            counts[row][start:end] += 1
    return [(total / count).astype(np.float16) for total, count in zip(sums, counts, strict=True)]


def split_together(
    splitter: Any, texts: Sequence[str], *, threshold: float, block: int, stride: int, batch: int
) -> list[list[str]]:
    """Returns the sentences of each text, white space behind them included.

    Args:
        splitter: wtpsplit's `SaT`.
        texts: none without visible characters.
        threshold: probability above which a character ends a sentence.
        block, stride, batch: as `token_logits` takes them.
    """
    tokenizer = splitter.tokenizer
    encoded = tokenizer(list(texts), return_offsets_mapping=True, verbose=False, add_special_tokens=False)
    found = token_logits(splitter.model.model, tokenizer, encoded["input_ids"], block=block, stride=stride, batch=batch)
    sentences = []
    for text, logits, spans in zip(texts, found, encoded["offset_mapping"], strict=True):
        # Of several tokens that end on one character the last one counts.
        by_letter = {end - 1 if end else len(text) - 1: float(x) for (_, end), x in zip(spans, logits, strict=True)}
        ends = sorted(place + 1 for place, logit in by_letter.items() if _probability(logit) > threshold)
        sentences.append(_cut(text, ends))
    return sentences


def _probability(logit: float) -> float:
    return float(1 / (1 + np.exp(-logit)))


def _cut(text: str, ends: Sequence[int]) -> list[str]:
    """Returns the text cut at ends, each moved behind the white space that follows it."""
    sentences, offset = [], 0
    for place in ends:
        end = place
        while end < len(text) and text[end].isspace():
            end += 1
        if end > offset:
            sentences.append(text[offset:end])
            offset = end
    return [*sentences, text[offset:]] if offset < len(text) else sentences
