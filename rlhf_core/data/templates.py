"""Chat templates: from messages to token ids, with special tokens that only the template can write.

`prompt_ids + response_ids` is a training sequence. The response is encoded apart from the prompt, so its
tokens do not depend on the prompt, and it ends with the template's end-of-turn token, which is EOS for
segmentation, rewards and generation alike.

Source: Segment, Appendix E, for `phi3` and `llama3`. One deviation: a response to be scored or trained is its
text directly followed by the end-of-turn token, because that is how a policy writes it; the blank that the
Phi-3 form prints before `<|end|>` appears in the turns of the prompt only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError, TemplateSyntaxError

from rlhf_core.data.dialogue import check_messages
from rlhf_core.errors import DataError, RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = Sequence[Mapping[str, str]]

_MARKER = re.compile(r"<\|[a-z_]+\|>")
# Private-use characters: no tokenizer's template treats them specially, none strips them.
_SLOT = re.compile("\ue000([0-9]+)\ue001")


@dataclass(frozen=True)
class Piece:
    """A stretch of a rendered prompt: `trusted` text of the template may hold special tokens."""

    text: str
    trusted: bool


@dataclass(frozen=True)
class ChatTemplate:
    """Format of prompts made from messages, and of the end of a response: fixed text around each turn.

    Args:
        name: its name in recipes.
        turns: {role: (text before the content, text after it)}.
        eos: the token that ends a response.
        begin: text before the first turn.
    """

    name: str
    turns: Mapping[str, tuple[str, str]] = field(hash=False)
    eos: str
    begin: str = ""

    def pieces(self, tokenizer: PreTrainedTokenizerBase, messages: Messages) -> list[Piece]:
        """Returns the prompt's stretches in order, ending where the assistant's answer begins."""
        pieces = [Piece(self.begin, trusted=True)]
        for message in messages:
            if message["role"] not in self.turns:
                raise DataError(
                    f"the chat template '{self.name}' has no {message['role']} turn",
                    remedy="Put that text into the first user message, or choose another template",
                )
            before, after = self.turns[message["role"]]
            pieces += [
                Piece(before, trusted=True),
                Piece(message["content"], trusted=False),
                Piece(after, trusted=True),
            ]
        return [*pieces, Piece(self.turns["assistant"][0], trusted=True)]

    def eos_token(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """Returns the token that ends a response."""
        return self.eos

    def markers(self) -> tuple[str, ...]:
        """Returns the special tokens that the tokenizer must know."""
        # The system turn is optional in the data, so its markers are checked where they are used.
        texts = [self.begin, *self.turns["user"], *self.turns["assistant"]]
        return tuple(dict.fromkeys(_MARKER.findall("".join(texts))))

    def render(self, tokenizer: PreTrainedTokenizerBase, messages: Messages) -> str:
        """Returns the prompt as text, for people."""
        return "".join(piece.text for piece in self.pieces(tokenizer, messages))

    def prompt_ids(self, tokenizer: PreTrainedTokenizerBase, messages: Messages) -> list[int]:
        """Returns the token ids of the prompt up to and including the assistant's opening.

        Raises:
            DataError: messages that no answer can follow, or that the template refuses.
        """
        check_messages(messages)
        return encode_pieces(tokenizer, self.pieces(tokenizer, messages))

    def response_ids(self, tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
        """Returns the token ids of a response, EOS appended."""
        return [*encode_text(tokenizer, text), self.eos_id(tokenizer)]

    def dialogue_ids(
        self, tokenizer: PreTrainedTokenizerBase, messages: Messages, answer: str, *, ended: bool = True
    ) -> list[int]:
        """Returns the token ids of a dialogue with its answer, as a classifier reads them; an answer that a limit cut
        (`ended` is false) is not closed."""
        ids = [*self.prompt_ids(tokenizer, messages), *encode_text(tokenizer, answer)]
        return [*ids, self.eos_id(tokenizer)] if ended else ids

    def eos_id(self, tokenizer: PreTrainedTokenizerBase) -> int:
        """Returns the id of the token that ends a response.

        Raises:
            RecipeError: the tokenizer does not know it.
        """
        return _token_id(tokenizer, self.eos_token(tokenizer), self.name)

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Checks that every marker and EOS is one token of this tokenizer.

        Raises:
            RecipeError: names the missing token.
        """
        for marker in (*self.markers(), self.eos_token(tokenizer)):
            _token_id(tokenizer, marker, self.name)


@dataclass(frozen=True)
class TokenizerTemplate(ChatTemplate):
    """The chat template that comes with the tokenizer."""

    name: str = "tokenizer"
    turns: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)
    eos: str = ""

    def markers(self) -> tuple[str, ...]:
        return ()

    def dialogue_ids(
        self, tokenizer: PreTrainedTokenizerBase, messages: Messages, answer: str, *, ended: bool = True
    ) -> list[int]:
        """Returns the ids of the whole dialogue as the template writes it, with what it puts behind an answer."""
        check_messages(messages)
        if not ended:
            return encode_pieces(tokenizer, [*self.pieces(tokenizer, messages), Piece(answer, trusted=False)])
        whole = [*messages, {"role": "assistant", "content": answer}]
        return encode_pieces(tokenizer, self.pieces(tokenizer, whole, answer_follows=False))

    def pieces(
        self, tokenizer: PreTrainedTokenizerBase, messages: Messages, *, answer_follows: bool = True
    ) -> list[Piece]:
        text = _apply(tokenizer, messages, answer_follows=answer_follows)
        contents = [message["content"] for message in messages]
        slots = [{**message, "content": f"\ue000{i}\ue001"} for i, message in enumerate(messages)]
        marked = _apply(tokenizer, slots, answer_follows=answer_follows)
        # Some templates strip each content (Llama 3), others do not.
        for variant in (contents, [content.strip() for content in contents]):
            parts = _SLOT.split(marked)
            pieces = [
                Piece(variant[int(part)], trusted=False) if position % 2 else Piece(part, trusted=True)
                for position, part in enumerate(parts)
            ]
            if "".join(piece.text for piece in pieces) == text:
                return pieces
        if any(marker in content for marker in control_tokens(tokenizer) for content in contents):
            raise DataError(
                "a message holds a special token, and this tokenizer's chat template rewrites messages, "
                "so the two cannot be told apart",
                remedy="Remove the special token from the text, or use the template phi3, llama3 or plain",
            )
        return [Piece(text, trusted=True)]

    def eos_token(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """Returns the first token of its own after an answer in the tokenizer's own template, else its EOS."""
        dialogue = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\ue0000\ue001"}]
        after = _apply(tokenizer, dialogue, answer_follows=False).partition("\ue0000\ue001")[2]
        own = {*control_tokens(tokenizer), *filter(str.strip, tokenizer.get_added_vocab())}
        found = [(after.index(token), -len(token), token) for token in own if token in after]
        if found:
            return min(found)[2]
        if not tokenizer.eos_token:
            raise RecipeError("the tokenizer has no end-of-sequence token: choose a chat template that names one")
        return str(tokenizer.eos_token)


_PHI3_END = " <|end|>\n"

TEMPLATES: dict[str, ChatTemplate] = {
    "tokenizer": TokenizerTemplate(),
    "phi3": ChatTemplate(
        "phi3",
        {
            "system": ("<|system|>\n", _PHI3_END),
            "user": ("<|user|>\n", _PHI3_END),
            "assistant": ("<|assistant|>\n", _PHI3_END),
        },
        eos="<|end|>",
    ),
    "llama3": ChatTemplate(
        "llama3",
        {
            role: (f"<|start_header_id|>{role}<|end_header_id|>\n", "<|eot_id|>")
            for role in ("system", "user", "assistant")
        },
        eos="<|eot_id|>",
        begin="<|begin_of_text|>",
    ),
    "gemma": ChatTemplate(
        "gemma",
        {
            "user": ("<start_of_turn>user\n", "<end_of_turn>\n"),
            "assistant": ("<start_of_turn>model\n", "<end_of_turn>\n"),
        },
        eos="<end_of_turn>",
        begin="<bos>",
    ),
    "plain": ChatTemplate(
        "plain", {"user": ("<|user|>", ""), "assistant": ("<|assistant|>", "<|end|>")}, eos="<|end|>"
    ),
    # Stanford Alpaca's words for one instruction; RLMEC, Tables 9 and 10, opens the answer.
    "alpaca": ChatTemplate(
        "alpaca",
        {
            "user": (
                "Below is an instruction that describes a task. Write a response that appropriately completes the "
                "request.\n\n### Instruction:\n",
                "\n\n### Response: Let's think step by step.",
            ),
            "assistant": ("", "</s>"),
        },
        eos="</s>",
        begin="<s>",
    ),
    # An encoder reads the request and its EOS; the decoder writes the answer.
    "seq2seq": ChatTemplate("seq2seq", {"user": ("", "</s>"), "assistant": ("", "</s>")}, eos="</s>"),
}


def chat_template(name: str) -> ChatTemplate:
    """Returns the chat template called `name`; an unknown name raises `RecipeError` with the known ones."""
    if name not in TEMPLATES:
        raise RecipeError(f"unknown chat template '{name}': known are {', '.join(TEMPLATES)}")
    return TEMPLATES[name]


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Returns tokens that no user text may produce: every special token but the one for unknown text, unless that one
    also begins, ends or pads a sequence, as GPT-2's does.

    An added token that is not special, such as Qwen3's <think>, is text, and a text has it as one token.
    """
    special = {str(token): index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    named: dict[str, Any] = {token: tokenizer.convert_tokens_to_ids(token) for token in tokenizer.all_special_tokens}
    marks = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    unknown = None if tokenizer.unk_token in marks else tokenizer.unk_token
    return {token: index for token, index in {**special, **named}.items() if token.strip() and token != unknown}


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Returns ids of plain text; what looks like a special token in it is encoded letter by letter.

    Raises:
        DataError: the tokenizer makes a special token of the text in spite of everything.
    """
    ids = _encode(tokenizer, text, split=True)
    control = control_tokens(tokenizer)
    forbidden = set(control.values())
    if forbidden.isdisjoint(ids):
        return ids
    # a tokenizer may know a special token otherwise, too: break it up by hand
    found = "|".join(re.escape(token) for token in sorted(control, key=len, reverse=True) if len(token) > 1)
    cuts = [0, *(match.start() + 1 for match in re.finditer(found, text)), len(text)]
    parts = (text[start:end] for start, end in pairwise(cuts))
    ids = [index for part in parts for index in _encode(tokenizer, part, split=True)]
    if not forbidden.isdisjoint(ids):
        raise DataError(
            f"the text '{text[:60]}' holds a special token that this tokenizer cannot encode as text",
            remedy="Remove it from the data",
        )
    return ids


def encode_pieces(tokenizer: PreTrainedTokenizerBase, pieces: Sequence[Piece]) -> list[int]:
    """Returns ids of a rendered prompt in which only trusted pieces produce special tokens.

    Without a special token in the untrusted pieces the whole text is encoded at once, so the tokenizer's own
    rules at the seams hold. Otherwise the text is cut at the template's special tokens and the stretches
    between them are encoded as plain text, which gives the same ids.
    """
    control = control_tokens(tokenizer)
    if not any(token in piece.text for piece in pieces if not piece.trusted for token in control):
        return _encode(tokenizer, "".join(piece.text for piece in pieces), split=False)
    marker = re.compile("(" + "|".join(re.escape(t) for t in sorted(control, key=len, reverse=True)) + ")")
    added = {str(token): token for token in tokenizer.added_tokens_decoder.values()}
    ids: list[int] = []
    text, strip_left = "", False

    def flush(strip_right: bool) -> None:
        nonlocal text
        text = text.lstrip() if strip_left else text
        text = text.rstrip() if strip_right else text
        ids.extend(encode_text(tokenizer, text) if text else [])
        text = ""

    for piece in pieces:
        for position, part in enumerate(marker.split(piece.text) if piece.trusted else [piece.text]):
            if position % 2 == 0:
                text += part
                continue
            flush(strip_right=bool(getattr(added.get(part), "lstrip", False)))
            ids.append(control[part])
            strip_left = bool(getattr(added.get(part), "rstrip", False))
    flush(strip_right=False)
    return ids


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, *, split: bool) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=split))


def _apply(tokenizer: PreTrainedTokenizerBase, messages: Messages, *, answer_follows: bool = True) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise RecipeError("the tokenizer has no chat template: set the chat template to phi3, llama3 or plain")
    conversation: Any = [dict(message) for message in messages]
    try:
        return str(tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=answer_follows))
    except TemplateSyntaxError as error:
        raise RecipeError(
            f"the tokenizer's chat template is not valid Jinja ({error}); correct it, or use the template phi3, llama3 "
            "or plain"
        ) from error
    except TemplateError as error:
        raise DataError(
            f"the tokenizer's chat template refuses the dialogue ({error})",
            remedy="Change the order or roles of its messages, leave the row out, or use the template phi3, llama3 or "
            "plain",
        ) from error


def _token_id(tokenizer: PreTrainedTokenizerBase, token: str, template: str) -> int:
    index: Any = tokenizer.convert_tokens_to_ids(token)
    if not isinstance(index, int) or (index == tokenizer.unk_token_id and token != tokenizer.unk_token):
        raise RecipeError(
            f"the tokenizer has no token '{token}', which the chat template '{template}' needs: "
            "add it as a special token, or choose another template"
        )
    return index


def hub_template(template: ChatTemplate, tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns a chat template for `tokenizer.chat_template` that gives the tokens of this project's template.

    The last message, if it is the assistant's, ends with the end-of-turn token and nothing behind it: a classifier
    reads its reward there.

    Raises:
        RecipeError: a template that cannot be written so.
    """
    if template.turns:
        return _of_markers(template)
    if isinstance(tokenizer.chat_template, str):
        return _closed(tokenizer.chat_template, template.eos_token(tokenizer))
    raise RecipeError("the tokenizer has several chat templates, or none; export a model of another template")


def _of_markers(template: ChatTemplate) -> str:
    parts, word = [_shown(json.dumps(template.begin)), "{% for message in messages %}"], "if"
    for role, (before, after) in template.turns.items():
        end = json.dumps(after)
        if role == "assistant":
            end = f"({json.dumps(template.eos)} if loop.last else {end})"
        parts.append(f"{{% {word} message['role'] == '{role}' %}}")
        parts.append(_shown(f"{json.dumps(before)} + message['content'] + {end}"))
        word = "elif"
    refusal = f"the chat template '{template.name}' has no turn of this role: "
    parts.append(f"{{% else %}}{{{{ raise_exception({json.dumps(refusal)} + message['role']) }}}}{{% endif %}}")
    parts.append("{% endfor %}")
    parts.append(f"{{% if add_generation_prompt %}}{_shown(json.dumps(template.turns['assistant'][0]))}{{% endif %}}")
    return "".join(parts)


def _shown(expression: str) -> str:
    return f"{{{{ {expression} }}}}"


def _closed(own: str, eos: str) -> str:
    """Returns a tokenizer's own template, cut behind the end-of-turn token of a last answer, which is added where the
    template has none."""
    end = json.dumps(eos)
    cut = f"dialogue.rpartition({end})[0] if {end} in dialogue.rpartition(messages[-1]['content'])[2] else dialogue"
    closed = f"({cut}) + {end}"
    answered = "messages and messages[-1]['role'] == 'assistant' and not add_generation_prompt"
    return f"{{% set dialogue %}}{own}{{% endset %}}{{{{ ({closed}) if {answered} else dialogue }}}}"
