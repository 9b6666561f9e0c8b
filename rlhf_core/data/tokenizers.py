"""Tokenizers trained from scratch for small models, the padding check, and character spans of tokens."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from rlhf_core.data.templates import ChatTemplate, control_tokens
from rlhf_core.errors import DataError, RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

Span = tuple[int, int]

PAD, UNKNOWN = "<pad>", "<unk>"
#: Markers of the chat template of trained tokenizers.
SPECIAL = ("<|user|>", "<|assistant|>", "<|end|>")


def least_vocabulary(*, full_byte_alphabet: bool) -> int:
    """Returns the fewest tokens of a trained tokenizer: special ones and all bytes, or one where few are known."""
    return len((PAD, UNKNOWN, *SPECIAL)) + (256 if full_byte_alphabet else 1)


def train_byte_level_bpe(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: Sequence[str] = SPECIAL,
    *,
    eos_token: str = "<|end|>",
    bos_token: str | None = None,
    full_byte_alphabet: bool = True,
) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE tokenizer; the same texts and settings give the same tokenizer.

    Ids: `<pad>` 0, `<unk>` 1, then `special_tokens` in order, then bytes and merges. Each digit is a token of its own,
    so numbers are spelled alike everywhere.

    Args:
        texts: training texts, without chat markers.
        vocab_size: the most tokens, special ones included; few texts give fewer.
        special_tokens: markers of the chat template; `eos_token` and `bos_token` are added when absent.
        eos_token: end of a turn.
        bos_token: beginning of a text, if the template has one.
        full_byte_alphabet: know all 256 bytes, so any text survives encoding and decoding. Without it only
            the bytes of `texts` are known and others become `<unk>`: fit for a closed world that wants a
            small vocabulary.

    Raises:
        DataError: no text.
        RecipeError: a vocabulary too small for special tokens and bytes.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    corpus = [text for text in texts if text]
    if not corpus:
        raise DataError("no text to train a tokenizer on", remedy="Check that the data set is not empty")
    named = [*special_tokens, eos_token, *([bos_token] if bos_token else [])]
    special = list(dict.fromkeys([PAD, UNKNOWN, *named]))
    letters = _letters()
    known = letters if full_byte_alphabet else {byte for text in corpus for byte in text.encode("utf-8")}
    alphabet = sorted(letters[byte] for byte in known)
    needed = len(special) + len(alphabet)
    if vocab_size < needed:
        raise RecipeError(
            f"vocab_size {vocab_size} is too small: {len(special)} special tokens and {len(alphabet)} bytes "
            f"need {needed}" + ("; or set full_byte_alphabet to false" if full_byte_alphabet else "")
        )
    backend = Tokenizer(models.BPE(unk_token=UNKNOWN))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=eos_token,
        bos_token=bos_token,
        additional_special_tokens=[token for token in special if token not in (PAD, UNKNOWN, eos_token, bos_token)],
        clean_up_tokenization_spaces=False,
    )


def check_padding(tokenizer: PreTrainedTokenizerBase, template: ChatTemplate) -> None:
    """Checks that masking by pad id masks padding only.

    Where pad is also the end-of-turn token (or another marker of the template), a mask made from ids hides
    real tokens: the model never learns to stop, and rewards on EOS vanish.

    Raises:
        RecipeError: no pad token, or one that real sequences contain; names the remedy.
    """
    remedy = "add a pad token of its own with rlhf_core.data.tokenizers.add_pad_token"
    if tokenizer.pad_token_id is None:
        raise RecipeError(f"the tokenizer has no pad token: {remedy}")
    template.check_tokenizer(tokenizer)
    for token in (template.eos_token(tokenizer), *template.markers()):
        if tokenizer.convert_tokens_to_ids(token) == tokenizer.pad_token_id:
            raise RecipeError(
                f"pad token and '{token}' are the same token (id {tokenizer.pad_token_id}), so masking by "
                f"pad id would mask real tokens: {remedy}"
            )


def add_pad_token(tokenizer: PreTrainedTokenizerBase, template: ChatTemplate) -> None:
    """Gives the tokenizer a pad token of its own if `check_padding` would refuse it: `<pad>`, which may be new.

    Where the vocabulary grows, the model's embeddings must be resized to `len(tokenizer)`.
    """
    try:
        check_padding(tokenizer, template)
    except RecipeError:
        tokenizer.add_special_tokens({"pad_token": PAD})
        check_padding(tokenizer, template)


def response_offsets(tokenizer: PreTrainedTokenizerBase, text: str) -> list[Span]:
    """Returns the character spans [start, end) in `text` of the tokens of a response (EOS not included).

    Spans are those of `ChatTemplate.response_ids` without EOS. Tokens that share a character of several bytes
    share its span.

    Raises:
        RecipeError: a tokenizer without offset mapping.
        DataError: a text that holds a special token.
    """
    require_offset_mapping(tokenizer)
    encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
    if not set(control_tokens(tokenizer).values()).isdisjoint(encoded["input_ids"]):
        raise DataError("the text holds a special token", remedy="Remove it from the data")
    return [(int(start), int(end)) for start, end in encoded["offset_mapping"]]


def require_offset_mapping(tokenizer: PreTrainedTokenizerBase) -> None:
    """Checks that a tokenizer knows the characters behind its tokens.

    Raises:
        RecipeError: a tokenizer written in Python, which does not know them.
    """
    if not tokenizer.is_fast:
        raise RecipeError(
            f"the tokenizer {type(tokenizer).__name__} has no offset mapping, so the token that closes a sentence "
            "cannot be found: use its fast version (a folder with tokenizer.json), or segment by tokens (bandit, "
            "token, ngram)"
        )


def token_spans(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> tuple[str, list[Span]]:
    """Returns the text of generated ids and each token's character span in it.

    A policy may write a text with other tokens than the tokenizer would, and stop inside a character; so the
    spans come from the ids. Special tokens, and ids beyond the vocabulary (embeddings may be padded), have no
    text: their span is empty. Bytes that are no UTF-8 become U+FFFD.

    Args:
        ids: token ids of one response.

    Returns:
        The text, and for each id its [start, end) in it, never decreasing and together covering it.
    """
    if not _is_byte_level(tokenizer):
        return _spans_by_prefix(tokenizer, ids)
    bytes_of = {letter: byte for byte, letter in _letters().items()}
    special, added = set(control_tokens(tokenizer)) | {str(tokenizer.unk_token)}, tokenizer.get_added_vocab()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, spans = "", []
    position = written = 0
    for token in tokenizer.convert_ids_to_tokens(list(ids)):
        if token is None or token in special:
            spans.append((position, position))
            continue
        start = len(text)
        spelled = token.encode("utf-8") if token in added else bytes(bytes_of[letter] for letter in token)
        text += decoder.decode(spelled)
        # A character whose last byte is still to come counts from its first byte on.
        position = len(text) + bool(decoder.getstate()[0])
        spans.append((start, position))
        written = len(spans)
    text += decoder.decode(b"", final=True)
    if position < len(text):  # bytes that could begin one character until the end showed that they are two
        spans[written - 1 :] = [(spans[written - 1][0], len(text)), *[(len(text), len(text))] * (len(spans) - written)]
    return text, spans


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    from tokenizers import decoders

    backend = getattr(tokenizer, "backend_tokenizer", None)
    return isinstance(getattr(backend, "decoder", None), decoders.ByteLevel)


def _spans_by_prefix(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> tuple[str, list[Span]]:
    """Returns spans for any other tokenizer (Phi-3's): what each prefix of the ids decodes to; quadratic."""
    prefixes = [str(tokenizer.decode(list(ids[:end]), skip_special_tokens=True)) for end in range(len(ids) + 1)]
    ends = [len(prefix) for prefix in prefixes]
    for position in range(len(ends) - 2, -1, -1):
        # The first bytes of a character count as several unknown ones until the last byte arrives.
        ends[position] = min(ends[position], ends[position + 1])
    return prefixes[-1], list(pairwise(ends))


@lru_cache(maxsize=1)
def _letters() -> dict[int, str]:
    """Returns the printable letter by which byte-level BPE writes each byte."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return dict(bytes_to_unicode())
