from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlhf_core.data.templates import chat_template
from rlhf_core.data.tokenizers import (
    add_pad_token,
    check_padding,
    response_offsets,
    token_spans,
    train_byte_level_bpe,
)
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.loading import load_tokenizer

from .conftest import TEXTS

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def test_training_is_deterministic_and_survives_saving(tokenizer: Any, tmp_path: Path) -> None:
    again = train_byte_level_bpe(iter(TEXTS), 300)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    text = "Hello <|end|> cat 1234 日本🙂  x"
    template = chat_template("plain")
    assert template.response_ids(loaded, text) == template.response_ids(tokenizer, text)
    assert (loaded.pad_token, loaded.eos_token, loaded.unk_token) == ("<pad>", "<|end|>", "<unk>")
    assert loaded.bos_token is None


def test_a_small_alphabet_maps_unknown_bytes_to_unk() -> None:
    small = train_byte_level_bpe(TEXTS, 64, full_byte_alphabet=False)
    assert len(small) <= 64
    assert small.unk_token_id not in small.encode(TEXTS[0])
    assert small.unk_token_id in small.encode("日")


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"vocab_size 100 is too small.*full_byte_alphabet"):
        train_byte_level_bpe(TEXTS, 100)
    with pytest.raises(DataError, match="no text"):
        train_byte_level_bpe(["", ""], 320)


def test_pad_that_equals_the_end_of_turn_is_refused_and_repaired() -> None:
    tokenizer = train_byte_level_bpe(TEXTS, 320)
    template = chat_template("plain")
    check_padding(tokenizer, template)
    tokenizer.pad_token = "<|end|>"
    with pytest.raises(RecipeError, match=r"pad token and '<\|end\|>' are the same token.*add_pad_token"):
        check_padding(tokenizer, template)
    add_pad_token(tokenizer, template)
    check_padding(tokenizer, template)


def test_a_missing_pad_token_is_refused_and_added() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<|end|>": 0, "<|user|>": 1, "<|assistant|>": 2, "a": 3}
    bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocabulary, [])), eos_token="<|end|>")
    template = chat_template("plain")
    with pytest.raises(RecipeError, match="no pad token"):
        check_padding(bare, template)
    add_pad_token(bare, template)
    assert bare.pad_token_id == 4


def check_spans(text: str, spans: list[tuple[int, int]]) -> None:
    position = 0
    for start, end in spans:
        assert 0 <= start <= position <= end <= len(text)
        position = end
    assert position == len(text)


@given(ANY_TEXT)
def test_spans_cover_the_text_and_agree_both_ways(tokenizer: Any, text: str) -> None:
    ids = chat_template("plain").response_ids(tokenizer, text)
    spans = response_offsets(tokenizer, text)
    check_spans(text, spans)
    decoded, from_ids = token_spans(tokenizer, ids)
    assert decoded == text
    assert from_ids == [*spans, (len(text), len(text))]


def test_tokens_of_one_character_share_its_span(tokenizer: Any) -> None:
    assert response_offsets(tokenizer, "a日b") == [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]


@given(st.lists(st.integers(0, 319), max_size=12))
@example([174, 99])  # ED A0: no character, which shows at the end only
@example([174, 99, 4, 310])
def test_spans_of_any_generated_ids_cover_their_text(tokenizer: Any, ids: list[int]) -> None:
    text, spans = token_spans(tokenizer, ids)
    assert len(spans) == len(ids)
    check_spans(text, spans)
    known = [index for index in ids if 5 <= index < 300]
    assert text == tokenizer.decode(known)


def test_spans_of_a_tokenizer_that_is_not_byte_level() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<unk>": 0, "▁hello": 1, "▁cat": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<end>")
    euro = [3 + byte for byte in "€".encode()]
    text, spans = token_spans(tokenizer, [1, *euro, 2, tokenizer.eos_token_id])
    assert text == "hello€ cat"
    check_spans(text, spans)
    assert spans[0] == (0, 5)
    assert spans[-2:] == [(6, 10), (10, 10)]
