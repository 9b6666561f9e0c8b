"""Supervised recipes: what each learns from, token by token, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlhf_core.data.encoding import Encoder, Limits
from rlhf_core.data.solutions import Row
from rlhf_core.data.templates import chat_template
from rlhf_core.data.tokenizers import train_byte_level_bpe
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.policy import Policy
from rlhf_core.supervised.objectives import objective
from rlhf_core.supervised.recipes import RECIPES, Preferences, Sources, Weighted, rewritten

TEXTS = ["What is 1 + 1? 0123456789", "1 + 1 = 2.\nThe answer is 2.", "Good:\nBad:\n"] * 5


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(train_byte_level_bpe(TEXTS, 300), chat_template("plain"), Limits(prompt=40, total=100))


def sample(name: str, prediction: str, *, correct: bool) -> Row:
    row = {"id": name, "question_id": name.split("-")[0], "prompt": "What is 1 + 1?", "solution": "1 + 1 = 2."}
    return {**row, "prediction": prediction, "correct": correct}


SAMPLES = [
    sample("q-1", "1 + 1 = 2. So 2.", correct=True),
    sample("q-2", "1 + 1 = 2. So 2.", correct=True),
    sample("q-3", "1 + 1 = 3.", correct=False),
    sample("p-1", "1 + 1 = 4.", correct=False),
]
REWRITES: list[Row] = [
    {"id": "q-3", "prompt": "What is 1 + 1?", "prediction": "1 + 1 = 3.", "rewrite": "1 + 1 = 2.", "accepted": True}
]
SOURCES = Sources(samples=SAMPLES, teacher=REWRITES, generated=REWRITES)


def texts(encoder: Encoder, examples: Weighted) -> list[str]:
    return [str(encoder.tokenizer.decode(s.response, skip_special_tokens=True)) for s in examples.sequences]


def weighted(kind: str, encoder: Encoder, sources: Sources = SOURCES, **options: Any) -> Weighted:
    made = RECIPES[kind](**options).examples(sources, encoder)
    assert isinstance(made, Weighted)
    assert [len(s.response) for s in made.sequences] == [len(row) for row in made.weights]
    return made


def test_sft_learns_each_ground_truth_once(encoder: Encoder) -> None:
    assert texts(encoder, weighted("sft", encoder)) == ["1 + 1 = 2."] * 2


@pytest.mark.parametrize(
    ("additional", "further"),
    [(None, 0), ("ground_truth", 2), ("teacher", 1), ("generated", 1)],
)
def test_rft_learns_distinct_correct_samples_and_what_is_added(
    encoder: Encoder, additional: str | None, further: int
) -> None:
    found = texts(encoder, weighted("rft", encoder, additional=additional))
    assert found == ["1 + 1 = 2. So 2."] + ["1 + 1 = 2."] * further


def test_chain_of_hindsight_learns_solutions_and_not_the_words_before_them(encoder: Encoder) -> None:
    made = weighted("coh", encoder)
    assert texts(encoder, made) == [
        "Good:\n1 + 1 = 2. So 2.",
        "Bad:\n1 + 1 = 3.\nGood:\n1 + 1 = 2. So 2.",
    ]
    learned = [i for i, weight in zip(made.sequences[1].response, made.weights[1], strict=True) if weight]
    assert encoder.tokenizer.decode(learned, skip_special_tokens=True) == "1 + 1 = 3.\n1 + 1 = 2. So 2."
    assert RECIPES["coh"]().opening == "Good:\n"


def test_figa_raises_what_the_edit_made_and_lowers_what_it_took_away(encoder: Encoder) -> None:
    made = weighted("figa", encoder, beta=0.5)
    better, worse = made.weights
    tokens = [encoder.pieces(s.response) for s in made.sequences]
    assert [t.strip() for t, w in zip(tokens[0], better, strict=True) if w] == ["2"]
    assert [(t.strip(), w) for t, w in zip(tokens[1], worse, strict=True) if w] == [("3", -0.5)]


def test_imitation_weighs_edited_tokens_double(encoder: Encoder) -> None:
    made = weighted("imitation", encoder)
    pieces = encoder.pieces(made.sequences[0].response)
    assert [t.strip() for t, w in zip(pieces, made.weights[0], strict=True) if w == 1.0] == ["2"]
    assert set(made.weights[0]) == {1.0, 0.5}


def test_a_rewrite_that_the_limit_would_cut_is_left_out_and_counted(encoder: Encoder) -> None:
    long = {**REWRITES[0], "rewrite": "1 + 1 = 2. " * 60}
    made = rewritten([*REWRITES, long], encoder, gamma=1.0, phi=0.5)
    assert (len(made.sequences), made.too_long) == (1, 1)


def test_dpo_pairs_correct_with_wrong_solutions_of_the_same_pool(encoder: Encoder) -> None:
    made = RECIPES["dpo"](beta=0.1, pairs="samples").examples(SOURCES, encoder)
    assert isinstance(made, Preferences)
    assert [encoder.tokenizer.decode(s.response, skip_special_tokens=True) for s in made.rejected] == ["1 + 1 = 3."]


@pytest.mark.parametrize("correct", [True, False])
def test_a_pool_of_one_sign_is_defined_or_refused_in_words(encoder: Encoder, tiny: Policy, correct: bool) -> None:
    one_sign = Sources(samples=[row for row in SAMPLES if row["correct"] is correct])
    with pytest.raises(DataError, match="no question has both a correct and a wrong solution"):
        RECIPES["dpo"](beta=0.1, pairs="samples").examples(one_sign, encoder)
    found = weighted("rft", encoder, one_sign)
    if correct:
        assert len(found.sequences) == 1
        return
    with pytest.raises(DataError, match="finds nothing to learn from"):
        objective(found, tiny, tiny)


def test_words_that_the_tokenizer_cannot_spell_are_refused() -> None:
    small = train_byte_level_bpe(["1 + 1 = 2."], 40, full_byte_alphabet=False)
    encoder = Encoder(small, chat_template("plain"), Limits(prompt=40, total=100))
    with pytest.raises(RecipeError, match="the tokenizer cannot spell 'Good:"):
        RECIPES["coh"]().examples(SOURCES, encoder)


@pytest.fixture(scope="module")
def tiny(encoder: Encoder) -> Policy:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(encoder.tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    return Policy(LlamaForCausalLM(config).eval(), pad_id=encoder.pad_id, eos_id=encoder.eos_id)


def test_a_weighted_likelihood_is_divided_by_weighted_tokens_and_negative_weights_lower(
    encoder: Encoder, tiny: Policy
) -> None:
    examples = weighted("figa", encoder)
    target = objective(examples, tiny, tiny)
    loss, divisor, _ = target.loss([0, 1])
    assert divisor == target.weight([0, 1]) == 2.0
    naive = 0.0
    for sequence, weights in zip(examples.sequences, examples.weights, strict=True):
        with torch.no_grad():
            logits = tiny.model(torch.tensor([[*sequence.prompt, *sequence.response]])).logits[0].log_softmax(-1)
        for place, (token, weight) in enumerate(zip(sequence.response, weights, strict=True)):
            naive -= weight * float(logits[len(sequence.prompt) - 1 + place, token])
    assert float(loss.detach()) == pytest.approx(naive, rel=1e-4)
