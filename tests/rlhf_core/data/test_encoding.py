"""Encoding: rows to ids with the template, cut as the limits say, and responses as tensors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.data.encoding import CutCounts, EncodedSequence, Encoder, Limits, truncate_sequence, whole_pairs
from rlhf_core.data.templates import chat_template
from rlhf_core.errors import DataError, RecipeError

ROW = {"id": "1", "prompt": "Where is the library?", "source": "made up"}


@pytest.fixture
def encoder(marked_tokenizer: Any) -> Encoder:
    return Encoder(marked_tokenizer, chat_template("phi3"), Limits(prompt=60, total=90))


def test_a_sequence_is_the_prompt_with_its_opening_and_the_response_with_eos(encoder: Encoder) -> None:
    sequence = encoder.sequence(ROW, "The cat sat.")
    assert sequence.prompt == encoder.prompt(ROW)
    text = encoder.tokenizer.decode(sequence.prompt)
    assert "Where is the library?" in text
    assert text.rstrip().endswith("<|assistant|>")
    assert sequence.response[-1] == encoder.eos_id
    assert encoder.tokenizer.decode(sequence.response[:-1]).strip() == "The cat sat."
    assert len(sequence) == len(sequence.prompt) + len(sequence.response)


def test_a_cut_response_ends_with_eos_and_a_cut_prompt_keeps_its_end(encoder: Encoder) -> None:
    whole = encoder.sequence(ROW, "The cat sat on the mat. " * 40)
    assert len(whole) == 90
    assert whole.response[-1] == encoder.eos_id
    assert encoder.counts.responses_cut == 1
    long = encoder.prompt({**ROW, "prompt": "How are you today? " * 40})
    assert len(long) == 60
    assert encoder.tokenizer.decode(long).rstrip().endswith("<|assistant|>")
    assert encoder.counts.prompts_cut == 1


def test_a_sampled_answer_has_eos_unless_the_length_limit_cut_it(encoder: Encoder) -> None:
    row = {"prompt": "hi"}
    whole = encoder.sequence(row, "a b c")
    assert encoder.sampled(row, "a b c", 4, 8) == whole
    assert encoder.sampled(row, "a b c", 3, 3) == EncodedSequence(whole.prompt, whole.response[:-1])
    assert encoder.sampled(row, "", 1, 1).response == [encoder.eos_id]


@pytest.mark.parametrize(
    ("chosen", "rejected", "room"),
    [
        ("The cat sat on the mat.", "The cat sat on the bed.", 4),  # equal up to the cut
        ("The cat sat on the mat.", "No.", 1),  # no room for an answer
        ("The cat sat on the mat.", "The cat sat on the bed.", 60),
    ],
)
def test_a_pair_of_which_the_limits_leave_nothing_to_prefer_is_dropped_and_counted(
    encoder: Encoder, chosen: str, rejected: str, room: int
) -> None:
    other, longest = {**ROW, "prompt": "?"}, len(encoder.prompt(ROW))
    encoder = Encoder(encoder.tokenizer, encoder.template, Limits(longest, longest + room))
    pairs = [(ROW, chosen, rejected), (other, "Yes.", "No."), (ROW, chosen, chosen)]
    sides = [[encoder.sequence(row, texts[side]) for row, *texts in pairs] for side in (0, 1)]
    whole = whole_pairs(*sides, encoder.eos_id)
    assert whole.kept == ([0, 1] if room == 60 else [1])
    assert whole.dropped == 3 - len(whole.kept)
    assert [whole.chosen, whole.rejected] == [[side[i] for i in whole.kept] for side in sides]
    with pytest.raises(DataError, match=r"file x: none of 1 pairs has two answers that differ .*Raise the total limit"):
        whole_pairs(sides[0][2:], sides[1][2:], encoder.eos_id, file="x")


ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}<|user|>{{ m.content }}{% endfor %}"
)
TWO_ANSWERS = "Human: Why?\n\nAssistant: So.\n\nAssistant: That is why.\n\nHuman: Who?\n\nAssistant:"


@pytest.mark.parametrize("encode", ["prompt", "sequence", "dialogue"])
def test_a_row_that_the_tokenizers_template_refuses_is_named(marked_tokenizer: Any, encode: str) -> None:
    tokenizer = copy.deepcopy(marked_tokenizer)
    tokenizer.chat_template = ALTERNATE
    encoder = Encoder(tokenizer, chat_template("tokenizer"), Limits(prompt=60, total=90))
    answer = () if encode == "prompt" else ("So.",)
    assert getattr(encoder, encode)(ROW, *answer)
    with pytest.raises(DataError) as refused:
        getattr(encoder, encode)({**ROW, "id": "hh-7", "prompt": TWO_ANSWERS}, *answer)
    assert str(refused.value).startswith(
        "row hh-7: the tokenizer's chat template refuses the dialogue (Conversation roles must alternate)"
    )


def test_a_long_prompt_that_is_not_cut_is_named(marked_tokenizer: Any) -> None:
    encoder = Encoder(marked_tokenizer, chat_template("phi3"), Limits(4, 8, on_long_prompt="error"))
    with pytest.raises(DataError, match=r"row 1, field 'prompt': the prompt has \d+ tokens, the cap is 4"):
        encoder.prompt(ROW)


def test_responses_are_padded_on_the_right_with_pieces_and_entropies(encoder: Encoder) -> None:
    a, b = EncodedSequence([5], [60, 61, encoder.eos_id]), EncodedSequence([5], [62])
    responses = encoder.responses([a, b, EncodedSequence([5], [])], [[0.5, 1.5, 2.5], [3.5], []])
    assert responses.ids.tolist()[1] == [62, encoder.pad_id, encoder.pad_id]
    assert responses.mask.tolist() == [[True] * 3, [True, False, False], [False] * 3]
    assert responses.ended.tolist() == [True, False, False]
    assert responses.lengths.tolist() == [3, 1, 0]
    assert responses.dense_lengths.tolist() == [2, 1, 0]
    assert responses.entropies is not None
    assert responses.entropies.tolist() == [[0.5, 1.5, 2.5], [3.5, 0, 0], [0, 0, 0]]
    assert responses.entropies.dtype == torch.float32
    assert [len(pieces) for pieces in responses.pieces or []] == [3, 1, 0]
    assert responses.pieces is not None
    assert responses.pieces[0][0] == encoder.tokenizer.decode([60])
    assert encoder.responses([a]).entropies is None


END, IDS = -1, st.lists(st.integers(0, 50), max_size=30)


@given(prompt=IDS, response=IDS, cap=st.integers(1, 20), room=st.integers(1, 20))
def test_prompts_keep_their_right_end_and_responses_their_left(
    prompt: list[int], response: list[int], cap: int, room: int
) -> None:
    counts = CutCounts()
    limits = Limits(cap, cap + room)
    response = [*response, END]
    kept_prompt, kept = truncate_sequence(prompt, response, limits, END, counts)
    assert kept_prompt == prompt[-cap:]
    assert len(kept_prompt) + len(kept) <= limits.total
    if len(response) <= limits.total - len(kept_prompt):
        assert kept == response
        assert counts.responses_cut == 0
    else:
        assert len(kept_prompt) + len(kept) == limits.total
        assert kept[-1] == END
        assert kept[:-1] == response[: len(kept) - 1]
        assert counts.responses_cut == 1
    assert counts.prompts_cut == (len(prompt) > cap)


@pytest.mark.parametrize(("prompt", "total"), [(8, 8), (0, 8), (9, 8)])
def test_limits_that_contradict_each_other_are_refused(prompt: int, total: int) -> None:
    with pytest.raises(RecipeError, match=f"prompt limit {prompt} and total limit {total}"):
        Limits(prompt, total)
