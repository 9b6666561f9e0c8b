from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.data.dialogue import check_messages, parse_dialogue, prompt_messages, render_dialogue
from rlhf_core.errors import DataError


def test_a_dialogue_prompt_becomes_messages() -> None:
    prompt = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHow are you?\n\nHuman: Fine\n\nAssistant:"
    assert parse_dialogue(prompt) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello.\n\nHow are you?"},
        {"role": "user", "content": "Fine"},
    ]


@pytest.mark.parametrize(
    "prompt",
    [
        "What is 2 + 2?",
        "Explain this:\n\nHuman: Hi\n\nAssistant:",
        "Human: no answer asked",
        "Human: Hi\n\nAssistant: the answer is given",
        "Human resources: what are they?\n\nAssistant:",
    ],
)
def test_any_other_text_is_one_user_message(prompt: str) -> None:
    assert parse_dialogue(prompt) == [{"role": "user", "content": prompt}]


CONTENT = (
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
    .map(str.strip)
    .filter(lambda text: text and "Human:" not in text and "Assistant:" not in text and "System:" not in text)
)


@given(st.lists(CONTENT, min_size=1, max_size=5).filter(lambda contents: len(contents) % 2 == 1))
def test_parsing_undoes_rendering(contents: list[str]) -> None:
    messages = [
        {"role": "assistant" if turn % 2 else "user", "content": content} for turn, content in enumerate(contents)
    ]
    assert parse_dialogue(render_dialogue(messages)) == messages


def test_kept_messages_and_history_come_before_the_parsed_prompt() -> None:
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    last = {"role": "user", "content": "c"}
    assert prompt_messages({"prompt": "c", "history": history}) == [*history, last]
    assert prompt_messages({"prompt": "x", "messages": [last]}) == [last]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "without messages"),
        ([{"role": "tool", "content": "x"}], "role 'tool'"),
        ([{"role": "user"}], "no text"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "nothing to answer"),
    ],
)
def test_messages_that_no_answer_can_follow_are_refused(messages: list[dict[str, str]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_messages(messages)
