"""Chat templates written in Jinja, as tokenizers of the hub carry them.

The last message, if it is the assistant's, ends with the end-of-turn token and nothing behind it: a classifier reads
its reward there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rlhf_core.data.templates import ChatTemplate, MarkerTemplate
from rlhf_core.errors import RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def hub_template(template: ChatTemplate, tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns a chat template for `tokenizer.chat_template` that gives the tokens of this project's template.

    Raises:
        RecipeError: a template that cannot be written so.
    """
    if isinstance(template, MarkerTemplate):
        return _of_markers(template)
    if template.name == "tokenizer" and isinstance(tokenizer.chat_template, str):
        return _closed(tokenizer.chat_template, template.eos_token(tokenizer))
    raise RecipeError(f"the chat template '{template.name}' cannot be written in Jinja; export a model of another one")


def _of_markers(template: MarkerTemplate) -> str:
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
