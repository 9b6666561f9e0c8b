"""Boundary tokens: which token closes a sentence, for every kind of tokenizer and any text."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rlhf_core.credit import even_split, segment_end
from rlhf_core.data.tokenizers import response_offsets, train_byte_level_bpe
from rlhf_core.errors import DataError
from rlhf_core.rollout import Responses
from rlhf_core.segmentation.end_tokens import with_end_tokens
from rlhf_core.segmentation.segments import boundary_tokens, closing_positions, from_ends
from rlhf_core.signals import Segments

TEXTS = [
    "Hello there.  It weighs 1.25 kg, approx. 3 m tall!\n\nAsk me more? Yes — naïve café.",
    "The fox eats grapes. The cow gives a moo",
]
KINDS = ("byte-level", "sentencepiece", "wordpiece")


@cache
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    if kind == "byte-level":
        return train_byte_level_bpe(TEXTS, 300)
    if kind == "sentencepiece":
        backend = Tokenizer(models.Unigram())
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=80, special_tokens=["<unk>"], unk_token="<unk>")
    else:
        backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
        backend.normalizer = normalizers.BertNormalizer()
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=["<unk>"])
    trainer.show_progress = False
    backend.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def naive(starts: list[int], boundary: int) -> int:
    """The definition, token by token."""
    return max([i for i, start in enumerate(starts) if start < boundary], default=0)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(min_size=1, max_size=40) | st.text(alphabet=" .é日\n🙂ab1", min_size=1), cuts=st.data())
@settings(max_examples=60, deadline=None)
def test_the_boundary_token_is_the_last_that_starts_before_the_boundary(
    kind: str, text: str, cuts: st.DataObject
) -> None:
    spans = response_offsets(tokenizer(kind), text)
    ends = sorted(cuts.draw(st.sets(st.integers(1, len(text)), max_size=5)) | {len(text)})
    starts = [start for start, _ in spans]
    if not starts:
        return
    assert starts == sorted(starts)
    found = boundary_tokens(starts, ends)
    assert found == [naive(starts, end) for end in ends]
    assert found == sorted(found)
    assert found[-1] == max(i for i, start in enumerate(starts) if start < len(text) or i == 0)


@given(st.text(min_size=1), st.data())
def test_closing_positions_drop_the_white_space_behind_a_sentence(text: str, data: st.DataObject) -> None:
    ends = sorted(data.draw(st.sets(st.integers(1, len(text)), max_size=4)) | {len(text)})
    closed = closing_positions(text, ends)
    assert closed[-1] == len(text)
    for position, end in zip(closed[:-1], ends, strict=False):
        assert position <= end
        assert not text[position:end].strip()
        assert position == 0 or not text[position - 1].isspace()


def test_sentences_that_one_token_closes_accumulate() -> None:
    segmentation = from_ends([[1, 1, 1, 3]], 4)
    assert segmentation.spans(0) == [(0, 2), (2, 2), (2, 2), (2, 4)]
    assert segmentation.lengths.tolist() == [[2, 0, 0, 2]]
    assert segmentation.index.tolist() == [[0, 0, 3, 3]]
    signal = Segments(torch.tensor([[1.0, 2.0, 4.0, 8.0]]), segmentation)
    responses = Responses(torch.ones(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.bool), torch.tensor([False]))
    assert segment_end(signal, responses).tolist() == [[0.0, 7.0, 0.0, 8.0]]
    assert even_split(signal, responses).tolist() == [[0.5, 6.5, 4.0, 4.0]]


def test_an_end_token_in_the_text_is_refused() -> None:
    with pytest.raises(DataError, match="already holds the end token <END>"):
        with_end_tokens(tokenizer("byte-level"), "a <END> b", [9], 7)


def test_end_tokens_stand_behind_every_sentence() -> None:
    text, own = TEXTS[1], tokenizer("byte-level")
    first = text.index(". ") + 2
    ids, places = with_end_tokens(own, text, [first, len(text)], 999)
    assert [ids[place] for place in places] == [999, 999]
    assert places[-1] == len(ids) - 1
    assert own.decode([i for i in ids if i != 999]) == text
    assert with_end_tokens(own, "", [], 999) == ([999], [0])
