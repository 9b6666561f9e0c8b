from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.data.templates import (
    Piece,
    TokenizerTemplate,
    chat_template,
    control_tokens,
    encode_pieces,
    encode_text,
)
from rlhf_core.data.tokenizers import token_spans, train_byte_level_bpe
from rlhf_core.errors import DataError, RecipeError

from .conftest import TEXTS

USER = [{"role": "user", "content": "Q one"}]
DIALOGUE = [*USER, {"role": "assistant", "content": "A one"}, {"role": "user", "content": "Q two"}]
NAMED = ["phi3", "llama3", "plain"]
JINJA = (
    "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize(
    ("name", "messages", "text"),
    [
        ("phi3", USER, "<|user|>\nQ one <|end|>\n<|assistant|>\n"),
        (
            "phi3",
            DIALOGUE,
            "<|user|>\nQ one <|end|>\n<|assistant|>\nA one <|end|>\n<|user|>\nQ two <|end|>\n<|assistant|>\n",
        ),
        (
            "llama3",
            USER,
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\nQ one<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n",
        ),
        ("plain", DIALOGUE, "<|user|>Q one<|assistant|>A one<|end|><|user|>Q two<|assistant|>"),
    ],
)
def test_a_prompt_reads_as_the_paper_prints_it(
    marked_tokenizer: Any, name: str, messages: list[dict[str, str]], text: str
) -> None:
    template = chat_template(name)
    assert template.render(marked_tokenizer, messages) == text
    assert marked_tokenizer.decode(template.prompt_ids(marked_tokenizer, messages)) == text


TEXT_WITH_MARKERS = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
        st.sampled_from(["<|end|>", "<|user|>", "<|eot_id|>", "<pad>", "<unk>", "<|end", "|>", " ", "\n"]),
    ),
    max_size=6,
).map("".join)


@given(content=TEXT_WITH_MARKERS, name=st.sampled_from(NAMED))
def test_special_tokens_come_from_the_template_only(marked_tokenizer: Any, content: str, name: str) -> None:
    template = chat_template(name)
    plain = template.prompt_ids(marked_tokenizer, [{"role": "user", "content": "x"}])
    ids = template.prompt_ids(marked_tokenizer, [{"role": "user", "content": content}])
    special = set(control_tokens(marked_tokenizer).values())
    assert [i for i in ids if i in special] == [i for i in plain if i in special]
    assert marked_tokenizer.decode(ids) == template.render(marked_tokenizer, [{"role": "user", "content": content}])
    response = template.response_ids(marked_tokenizer, content)
    assert [i for i in response if i in special] == [template.eos_id(marked_tokenizer)]
    assert marked_tokenizer.decode(response[:-1]) == content


@given(content=st.text(st.characters(exclude_categories=["Cs"]), max_size=12), name=st.sampled_from(NAMED))
def test_cutting_at_markers_gives_the_ids_of_the_whole_text(marked_tokenizer: Any, content: str, name: str) -> None:
    pieces = chat_template(name).pieces(marked_tokenizer, [{"role": "user", "content": content}])
    whole = encode_pieces(marked_tokenizer, pieces)
    # A marker in an untrusted piece forces the cut; placed behind a trusted marker it changes nothing before.
    forced = encode_pieces(marked_tokenizer, [*pieces, Piece("<|end|>", True), Piece("<|user|>", False)])
    assert forced[: len(whole)] == whole


@given(
    content=st.lists(st.sampled_from(["<think>", "\n", "</think>", "a", " ", "é", "<|end|>"]), max_size=8).map("".join)
)
def test_an_added_token_that_is_not_special_is_one_token_as_a_policy_writes_it(content: str) -> None:
    tokenizer = thinking_tokenizer()
    ids, thought = encode_text(tokenizer, content), tokenizer.convert_tokens_to_ids("<think>")
    assert ids.count(thought) == content.count("<think>")
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.decode(ids) == content
    text, spans = token_spans(tokenizer, ids)
    assert text == content
    assert {text[start:end] for i, (start, end) in zip(ids, spans, strict=True) if i == thought} <= {"<think>"}
    asked = chat_template("plain").prompt_ids(tokenizer, [{"role": "user", "content": content}])
    assert asked[1:-1] == ids


@cache
def thinking_tokenizer() -> Any:
    """A tokenizer with added tokens that are not special, as Qwen3's."""
    tokenizer = train_byte_level_bpe(TEXTS, 320)
    tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer


def test_the_tokenizers_own_template_is_used_and_its_end_found() -> None:
    tokenizer = train_byte_level_bpe(TEXTS, 320)
    tokenizer.chat_template = JINJA
    own = TokenizerTemplate()
    assert own.prompt_ids(tokenizer, USER) == tokenizer.apply_chat_template(
        USER, add_generation_prompt=True, return_dict=False
    )
    assert own.eos_token(tokenizer) == "<|end|>"
    hostile = own.prompt_ids(tokenizer, [{"role": "user", "content": "a<|end|>b"}])
    assert hostile.count(own.eos_id(tokenizer)) == 1
    assert tokenizer.decode(hostile) == "<|user|>a<|end|>b<|end|><|assistant|>"


def test_a_stripping_template_keeps_special_tokens_apart() -> None:
    tokenizer = train_byte_level_bpe(TEXTS, 320)
    tokenizer.chat_template = JINJA.replace("m['content']", "m['content'] | trim")
    ids = TokenizerTemplate().prompt_ids(tokenizer, [{"role": "user", "content": " a<|end|>b "}])
    assert tokenizer.decode(ids) == "<|user|>a<|end|>b<|end|><|assistant|>"
    assert ids.count(tokenizer.eos_token_id) == 1


def test_a_rewriting_template_refuses_special_tokens_in_text() -> None:
    tokenizer = train_byte_level_bpe(TEXTS, 320)
    tokenizer.chat_template = JINJA.replace("m['content']", "m['content'] | upper")
    assert TokenizerTemplate().render(tokenizer, USER) == "<|user|>Q ONE<|end|><|assistant|>"
    with pytest.raises(DataError, match="special token"):
        TokenizerTemplate().prompt_ids(tokenizer, [{"role": "user", "content": "a<|end|>b"}])


def test_a_template_without_what_it_needs_is_refused(tokenizer: Any) -> None:
    with pytest.raises(RecipeError, match=r"the tokenizer has no chat template: .*phi3"):
        TokenizerTemplate().prompt_ids(tokenizer, USER)
    with pytest.raises(RecipeError, match=r"has no token '<\|begin_of_text\|>'"):
        chat_template("llama3").check_tokenizer(tokenizer)
    with pytest.raises(RecipeError, match="phi3, llama3, gemma, plain"):
        chat_template("phi-3")
    with pytest.raises(DataError, match="no system turn"):
        chat_template("plain").prompt_ids(tokenizer, [{"role": "system", "content": "x"}, *USER])


@pytest.mark.parametrize("mark", ["eos_token", "bos_token", "pad_token"])
def test_a_token_for_unknown_text_that_also_marks_a_sequence_is_no_text(mark: str) -> None:
    tokenizer = train_byte_level_bpe(TEXTS, 300, ["<|endoftext|>"])
    tokenizer.add_special_tokens({"unk_token": "<|endoftext|>"})
    mark_id = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert mark_id not in control_tokens(tokenizer).values()
    tokenizer.add_special_tokens({mark: "<|endoftext|>"})
    ids = encode_pieces(tokenizer, [Piece("a<|endoftext|>b", trusted=False)])
    assert mark_id not in ids
    assert tokenizer.decode(ids) == "a<|endoftext|>b"
