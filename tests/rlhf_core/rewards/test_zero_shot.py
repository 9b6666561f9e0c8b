"""Zero-shot rewards: each answer's own, as a naive loop over its tokens has it, whatever else is padded or asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import LlamaForSequenceClassification

from rlhf_core.errors import JudgeError, NumericsError, RecipeError
from rlhf_core.rewards.zero_shot import (
    FIGURE_5,
    EndpointZeroShot,
    LocalZeroShot,
    ZeroShotSettings,
    load_zero_shot,
)
from tests.tiny_causal import configuration, save_causal, tokenizer

QUESTIONS = st.sampled_from(["who gives milk ?", "x", "a dog ; barks at the cow ."])
ANSWERS = st.sampled_from(["the cow .", "no", "a dog\nbarks at night", "the cow gives milk . the dog barks .", "x"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny causal model with its tokenizer, on disk."""
    return save_causal(tmp_path_factory.mktemp("causal"))


@pytest.fixture(scope="module")
def local(folder: Path) -> LocalZeroShot:
    return of(folder)


def of(folder: Path, **changes: Any) -> LocalZeroShot:
    made = load_zero_shot(ZeroShotSettings(str(folder), **changes))
    assert isinstance(made, LocalZeroShot)
    return made


def naive(made: LocalZeroShot, instruction: str, answer: str) -> float:
    """The mean log-probability of the answer's tokens: one text, one token at a time."""
    opening = f"Human: {instruction}\nAssistant: "
    read = made.tokenizer(opening + answer, return_offsets_mapping=True)
    ids, found = read["input_ids"], []
    for place, (_, end) in enumerate(read["offset_mapping"]):
        if end > len(opening):
            with torch.no_grad():
                logits = made.model(torch.tensor([ids[:place]])).logits[0, -1].double()
            found.append(float(logits.log_softmax(-1)[ids[place]]))
    return sum(found) / len(found)


def test_the_template_is_that_of_figure_5() -> None:
    assert ZeroShotSettings("m").opening("Why?") == "Human: Why?\nAssistant: "
    assert FIGURE_5.format(instruction="Why?", completion="So.") == "Human: Why?\nAssistant: So."
    assert ZeroShotSettings("m").opening("{completion} {x}") == "Human: {completion} {x}\nAssistant: "


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(QUESTIONS, ANSWERS), min_size=1, max_size=7), st.integers(1, 4))
def test_rewards_are_those_of_a_loop_over_the_tokens_whatever_the_batch(
    folder: Path, local: LocalZeroShot, pairs: list[tuple[str, str]], batch: int
) -> None:
    made = LocalZeroShot(ZeroShotSettings(str(folder), batch=batch), local.model, local.tokenizer)
    found = made.rewards([one for one, _ in pairs], [text for _, text in pairs])
    assert found == pytest.approx([naive(local, *pair) for pair in pairs], abs=1e-5)


def test_an_empty_answer_has_a_stated_reward_and_a_long_prompt_is_cut_on_the_left(folder: Path) -> None:
    made = of(folder, empty=-3.0, max_tokens=12)
    assert made.rewards(["x"], [""]) == [-3.0]
    long = "x " * 200
    assert made.rewards([long], ["no"]) == pytest.approx(made.rewards([long[40:]], ["no"]), abs=1e-6)
    assert made.rewards(["y"], ["x " * 300])[0] < 0  # no token of the prompt is left but the first


def test_a_reward_model_with_ultrarms_head_is_read_at_the_answers_last_token(folder: Path, tmp_path: Path) -> None:
    words = tokenizer()
    one = configuration(words)
    one.num_labels = 1
    torch.manual_seed(1)
    model = LlamaForSequenceClassification(one)
    model.save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["regression_head.weight"] = weights.pop("score.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    made = of(tmp_path, read="head")
    questions, answers = ["who gives milk ?", "x"], ["no", "the cow gives milk ."]
    expected = []
    for question, answer in zip(questions, answers, strict=True):
        ids = torch.tensor([words(f"Human: {question}\nAssistant: {answer}")["input_ids"]])
        with torch.no_grad():
            expected.append(float(model.score(model.model(ids)[0][0, -1])))
    assert made.rewards(questions, answers) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(RecipeError, match="has no head; set read: answer_tokens"):
        of(folder, read="head")


def served(local: LocalZeroShot, reply: Any = None) -> EndpointZeroShot:
    """An endpoint that answers in protocol with what the local model says, or with `reply`."""

    def choice(index: int, text: str) -> dict[str, Any]:
        read = local.tokenizer(text, return_offsets_mapping=True)
        ids, spans = read["input_ids"], read["offset_mapping"]
        with torch.no_grad():
            told = local.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        values = [None, *(float(told[i - 1, ids[i]]) for i in range(1, len(ids)))]
        tokens = [text[start:end] for start, end in spans]
        return {"index": index, "logprobs": {"tokens": tokens, "token_logprobs": values}}

    def answer(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)
        assert (asked["echo"], asked["max_tokens"], asked["model"]) == (True, 0, "m")
        choices = [choice(index, text) for index, text in enumerate(asked["prompt"])] if reply is None else []
        said = {"choices": choices[::-1]} if reply is None else reply
        return httpx.Response(200, content=iter([json.dumps(said).encode()]))

    made = ZeroShotSettings("m", base_url="http://served/v1", batch=2)
    return EndpointZeroShot(made, httpx.Client(transport=httpx.MockTransport(answer)))


def test_an_endpoint_gives_the_same_rewards_as_the_model_that_it_serves(local: LocalZeroShot) -> None:
    questions, answers = ["who gives milk ?", "x", "x"], ["no", "the cow gives milk .", ""]
    assert served(local).rewards(questions, answers) == pytest.approx(local.rewards(questions, answers), abs=1e-5)


def scored(local: LocalZeroShot, tokens: Sequence[str], values: Sequence[Any], answer: str = "the cat") -> float:
    """The reward of an answer to "x" by an endpoint that returns these tokens for the whole text."""
    prompt = ["<s>", "Human:", " x\n", "Assistant:", " "]
    listed = {"tokens": [*tokens], "token_logprobs": [*values]}
    opening = {"tokens": prompt, "token_logprobs": [None, *[-9.0] * 4]}
    choices = [{"index": 0, "logprobs": opening}, {"index": 1, "logprobs": listed}]
    return served(local, {"choices": choices}).rewards(["x"], [answer])[0]


@pytest.mark.parametrize(
    ("answer", "tokens", "counted"),
    [
        ("the cat sat", (" the", " cat", " sat"), 3),
        ("the cat sat", ("the", "cat", "sat"), 3),  # blanks left out, as of single tokens of Llama 2
        ("\U0001f600!", (" \ufffd", "\ufffd", "\ufffd", "!"), 4),  # each part of a character decoded alone
        ("so \U0001f600", (" so", " ", r"bytes:\xf0\x9f", r"bytes:\x98\x80"), 4),
        ("\u65e5\u672c", (" ", "\u65e5", "\u672c"), 2),  # the blank before an answer is the prompt's
    ],
)
def test_the_tokens_behind_those_of_the_prompt_count(
    local: LocalZeroShot, answer: str, tokens: tuple[str, ...], counted: int
) -> None:
    values = [-float(place) for place in range(1, len(tokens) + 1)]
    found = scored(local, ["<s>", "Human:", " x\n", "Assistant:", *tokens], [None, -9.0, -9.0, -9.0, *values], answer)
    assert found == sum(values[-counted:]) / counted


WHOLE = ("<s>", "Human:", " x\n", "Assistant:", " the", " cat")


@pytest.mark.parametrize(
    ("tokens", "values", "message"),
    [
        (WHOLE[:-1], [None, *[-1.0] * 4], "not those of the whole prompt and answer"),
        (WHOLE[4:], [None, -1.0], "not those of the whole prompt and answer"),
        (("<s>", *WHOLE[4:]), [None, -1.0, -1.0], "not those of the whole prompt and answer"),
        (WHOLE, [None, *[-1.0] * 4, None], "a token of an answer has no log-probability"),
        (WHOLE, [None, *[-1.0] * 4, 3.0], "a token of an answer has no log-probability"),
        (WHOLE, [None, *[-1.0] * 4, False], "a token of an answer has no log-probability"),
        (WHOLE, [None], "did not return the log-probabilities of 2 prompts"),
    ],
)
def test_an_endpoint_that_does_not_score_the_whole_answer_is_refused(
    local: LocalZeroShot, tokens: tuple[str, ...], values: list[Any], message: str
) -> None:
    with pytest.raises(JudgeError, match=message):
        scored(local, tokens, values)


@pytest.mark.parametrize("reply", [{"choices": []}, {"error": "no"}, {"choices": [{"index": 0, "logprobs": None}]}])
def test_an_endpoint_that_does_not_answer_in_protocol_is_named(local: LocalZeroShot, reply: Any) -> None:
    with pytest.raises(JudgeError, match="did not return the log-probabilities of 2 prompts"):
        served(local, reply).rewards(["x"], ["no"])


def test_a_reward_that_is_not_finite_is_refused(folder: Path) -> None:
    made = of(folder)
    with torch.no_grad():
        made.model.get_output_embeddings().weight.fill_(float("nan"))
    with pytest.raises(NumericsError, match=r"zero-shot reward of answer 1 .* is nan"):
        made.rewards(["x"], ["no"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"template": "{completion}"}, "needs {instruction} and must end in {completion}"),
        ({"template": "{instruction} {completion}!"}, "must end in {completion}"),
        ({"read": "hed"}, "read is 'hed'; did you mean 'head'"),
        ({"read": "head", "base_url": "http://x"}, "read is 'head', which an endpoint does not have"),
        ({"batch": 0}, "batch is 0; it must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        ZeroShotSettings("m", **change)


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"cannot be loaded .*download it to a folder"):
        load_zero_shot(ZeroShotSettings(str(tmp_path / "none")))
