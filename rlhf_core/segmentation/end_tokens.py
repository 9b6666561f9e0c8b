"""End tokens: a reward model's own text, with the special token `<END>` behind each sentence.

Each sentence is encoded by itself, as a tokenizer does between special tokens. Source: Sentence, §3.1 and A.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf_core.data.templates import encode_text
from rlhf_core.errors import DataError, RecipeError

#: The end token: a special token inserted behind every sentence; not the end of the sequence (EOS).
END = "<END>"


def add_end_token(tokenizer: PreTrainedTokenizerBase, backbone: PreTrainedModel) -> int:
    """Gives tokenizer and model the token `<END>`; its embedding starts as the mean of the others. Returns its id."""
    tokenizer.add_special_tokens({"additional_special_tokens": [END]}, replace_extra_special_tokens=False)
    index = end_token_id(tokenizer)
    known: int = backbone.get_input_embeddings().weight.shape[0]  # type: ignore[assignment,index]
    if index >= known:
        backbone.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    weight: torch.Tensor = backbone.get_input_embeddings().weight  # type: ignore[assignment]
    with torch.no_grad():
        weight[index] = weight[: min(index, known)].mean(dim=0)
    return index


def end_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns the id of `<END>`."""
    index = tokenizer.get_added_vocab().get(END)
    if index is None:
        raise RecipeError(f"the reward model's tokenizer has no token {END}: it was trained without end tokens")
    return int(index)


def with_end_tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, ends: Sequence[int], end_token: int
) -> tuple[list[int], list[int]]:
    """Returns ids of a text with `<END>` (`end_token`) behind each sentence, and the places of these tokens.

    Sentences are given by their increasing character ends, the last one the text's length; an empty response, without
    any, is one empty sentence.
    """
    if END in text:
        raise DataError(
            f"the text already holds the end token {END}: ...{text[max(0, text.index(END) - 20) :]!r:.60}",
            remedy="Remove it from the data, or train the reward model without end tokens (end_token: false)",
        )
    ids: list[int] = []
    places: list[int] = []
    for start, end in zip([0, *ends], ends or [len(text)], strict=False):
        sentence = text[start:end]
        ids += [*(encode_text(tokenizer, sentence) if sentence else []), end_token]
        places.append(len(ids) - 1)
    return ids, places
