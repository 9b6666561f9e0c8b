"""Chat templates in Jinja: the tokens of this project's templates, and nothing behind a last answer."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2.exceptions import TemplateError

from rlhf_core.data.templates import TEMPLATES, TokenizerTemplate, hub_template
from rlhf_core.data.tokenizers import train_byte_level_bpe

DIALOGUES = [
    [{"role": "user", "content": "Who gives milk?"}],
    [
        {"role": "user", "content": 'Say "hi" {{ twice }} \\n, für mich.'},
        {"role": "assistant", "content": "hi  hi"},
        {"role": "user", "content": "  Again.\n"},
    ],
]
ANSWER = "The cow, of course."
#: Templates as the hub has them: they strip contents, and write a line end behind an answer or do not close it.
OWN = {
    "line end": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "open": "{%- for m in messages -%}\n[{{ m['role'] }}] {{ m['content'] }} {% endfor -%}"
    "{% if add_generation_prompt %}[assistant] {% endif %}",
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Knows the markers of every template."""
    texts = [ANSWER, *(message["content"] for messages in DIALOGUES for message in messages)]
    marks = ["<|user|>", "<|assistant|>", "<|end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
    marks += ["<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<s>", "</s>"]
    return train_byte_level_bpe(texts, 400, marks)


def whole(tokenizer: Any, chat: str, messages: list[dict[str, str]], **options: Any) -> list[int]:
    """The ids that anybody gets by a chat template."""
    tokenizer.chat_template = chat
    return list(tokenizer.apply_chat_template(messages, return_dict=False, **options))


@pytest.mark.parametrize("messages", DIALOGUES)
@pytest.mark.parametrize("name", sorted(set(TEMPLATES) - {"tokenizer"}))
def test_a_template_in_jinja_gives_the_same_tokens(tokenizer: Any, name: str, messages: list[dict[str, str]]) -> None:
    template = TEMPLATES[name]
    prompt = template.prompt_ids(tokenizer, messages)
    answered = [*messages, {"role": "assistant", "content": ANSWER}]
    chat = hub_template(template, tokenizer)
    assert whole(tokenizer, chat, messages, add_generation_prompt=True) == prompt
    assert whole(tokenizer, chat, answered) == [*prompt, *template.response_ids(tokenizer, ANSWER)]


def test_a_role_that_a_template_does_not_have_is_refused(tokenizer: Any) -> None:
    chat = hub_template(TEMPLATES["gemma"], tokenizer)
    with pytest.raises(TemplateError, match="'gemma' has no turn of this role: system"):
        whole(tokenizer, chat, [{"role": "system", "content": "Be brief."}])


@pytest.mark.parametrize("own", OWN)
def test_a_tokenizers_own_template_ends_with_the_end_token(own: str) -> None:
    texts = [ANSWER, *(message["content"] for messages in DIALOGUES for message in messages)]
    tokenizer = train_byte_level_bpe(texts, 400, ["<|im_start|>"], eos_token="<|im_end|>")
    tokenizer.chat_template = OWN[own]
    template = TokenizerTemplate()
    chat = hub_template(template, tokenizer)
    for messages in DIALOGUES:
        tokenizer.chat_template = OWN[own]
        prompt = template.prompt_ids(tokenizer, messages)
        expected = [*prompt, *template.response_ids(tokenizer, ANSWER)]
        assert whole(tokenizer, chat, messages, add_generation_prompt=True) == prompt
        found = whole(tokenizer, chat, [*messages, {"role": "assistant", "content": ANSWER}])
        assert found[-1] == expected[-1] == template.eos_id(tokenizer)
        assert str(tokenizer.decode(found)).replace(" <|im_end|>", "<|im_end|>") == tokenizer.decode(expected)
