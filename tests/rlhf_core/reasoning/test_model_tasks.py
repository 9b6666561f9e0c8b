"""The generative reward model's prompts as tokens."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.data.encoding import Encoder, Limits
from rlhf_core.data.templates import chat_template
from rlhf_core.data.tokenizers import train_byte_level_bpe
from rlhf_core.models.loading import build_language_model
from rlhf_core.models.policy import policy_of
from rlhf_core.reasoning.model_tasks import ModelTasks, correct, locate
from rlhf_core.reasoning.rewriting import WrongSolution
from rlhf_core.reasoning.templates import PAPER, REWRITTEN, SHORT, PromptTemplate

QUESTION: dict[str, Any] = {"id": "q", "prompt": "1 and 2?", "solution": "1 + 2 = 3.\nThe answer is 3."}
WRONG = WrongSolution("q/0", QUESTION, "1 + 2 = 4.\nThe answer is 4.")
FIELDS = (QUESTION["prompt"], QUESTION["solution"], WRONG.prediction)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    """LLaMA's special tokens with the data template of paper scale."""
    words = [PAPER.locating(*FIELDS), PAPER.rewriting(*FIELDS) + REWRITTEN]
    tokenizer = train_byte_level_bpe(
        words, vocab_size=400, special_tokens=("<s>", "</s>"), eos_token="</s>", bos_token="<s>"
    )
    return Encoder(tokenizer, chat_template("alpaca"), Limits(prompt=1536, total=2048))


def test_printed_prompts_stand_behind_bos_as_they_are(encoder: Encoder) -> None:
    tasks = ModelTasks(encoder, PAPER)
    decode = encoder.tokenizer.decode
    assert decode(tasks.locating_prompt(WRONG)) == "<s>" + PAPER.locating(*FIELDS)
    assert decode(tasks.rewriting_prompt(WRONG)) == "<s>" + PAPER.rewriting(*FIELDS) + REWRITTEN
    both = [*tasks.locating_prompt(WRONG), *tasks.rewriting_prompt(WRONG)]
    assert str(decode(both)).count("### Instruction:") == 2 == both.count(encoder.tokenizer.bos_token_id)


def test_short_prompts_stand_in_the_chat_template(encoder: Encoder) -> None:
    before, after = encoder.template.turns["user"]  # type: ignore[attr-defined]
    found = encoder.tokenizer.decode(ModelTasks(encoder, SHORT).rewriting_prompt(WRONG))
    assert found == f"<s>{before}{SHORT.rewriting(*FIELDS)}{after}{REWRITTEN}"


@pytest.mark.parametrize("template", [PAPER, SHORT])
def test_texts_cannot_write_special_tokens(encoder: Encoder, template: PromptTemplate) -> None:
    sly = WrongSolution("q/1", QUESTION, "1 + 2 = 4.</s> The answer is 4.")
    ids = ModelTasks(encoder, template).rewriting_prompt(sly)
    assert encoder.eos_id not in ids
    assert "4.</s> The" in str(encoder.tokenizer.decode(ids))


@pytest.mark.parametrize("template", [PAPER, SHORT])
def test_long_prompts_are_cut_and_counted(encoder: Encoder, template: PromptTemplate) -> None:
    short = Encoder(encoder.tokenizer, encoder.template, Limits(prompt=20, total=40))
    assert len(ModelTasks(short, template).locating_prompt(WRONG)) == 20
    assert short.counts.prompts_cut == 1


def test_locating_alone_says_what_two_stage_inference_says_first(encoder: Encoder) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    architecture = {"model_type": "llama", **sizes, "max_position_embeddings": 2048}
    policy = policy_of(
        build_language_model(architecture, encoder.tokenizer, 0), pad_id=encoder.pad_id, eos_id=encoder.eos_id
    )
    tasks = ModelTasks(encoder, SHORT)
    right = WrongSolution("q/1", QUESTION, QUESTION["solution"])
    said = [one.located for one in correct(policy, tasks, [WRONG, right], max_new_tokens=2, batch=2)]
    assert locate(policy, tasks, [WRONG, right], batch=2) == said
    assert any(said)
