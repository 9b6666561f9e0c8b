"""Encoding, log-probabilities and reward models of the families in use, each with its own tokenizer class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from rlhf_core.data.encoding import EncodedSequence, Encoder, Limits
from rlhf_core.data.templates import TokenizerTemplate, chat_template
from rlhf_core.data.tokenizers import add_pad_token, check_padding
from rlhf_core.errors import DataError
from rlhf_core.models.generation import Generated
from rlhf_core.models.loading import load_language_model
from rlhf_core.models.policy import policy_of
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.policy_optimisation.experience import response_texts, token_pieces
from rlhf_core.rewards.preference_training import pair_loss
from rlhf_core.segmentation.segments import SegmentedSequence
from rlhf_core.supervised.objectives import sequence_statistics, sft_loss
from tests.model_families import FAMILIES, published

TEXTS = ["the cat sat on the mat", "a dog ran in the park", "cats and dogs ran", "sat on a dog"]


@pytest.mark.parametrize("family", FAMILIES)
def test_statistics_and_reward_models_of_a_family_from_a_folder(family: str, tmp_path: Path) -> None:
    template = chat_template(FAMILIES[family].template)
    tokenizer = AutoTokenizer.from_pretrained(published(family, TEXTS, tmp_path))
    before = len(tokenizer)
    add_pad_token(tokenizer, template)
    assert (len(tokenizer) > before) == (family in ("llama", "llama2"))
    if len(tokenizer) > before:
        grown = load(tmp_path)
        grown.resize_token_embeddings(len(tokenizer))
        grown.save_pretrained(tmp_path)
    check_padding(tokenizer, template)
    encoder = Encoder(tokenizer, template, Limits(prompt=80, total=160))
    policy = policy_of(load(tmp_path).eval(), pad_id=encoder.pad_id, eos_id=encoder.eos_id)
    rows = [{"prompt": text} for text in TEXTS]
    sequences = [encoder.sequence(row, text) for row, text in zip(rows, reversed(TEXTS), strict=True)]
    for sequence, text in zip(sequences, reversed(TEXTS), strict=True):
        assert tokenizer.decode(sequence.response[:-1], skip_special_tokens=True).strip() == text
        assert sequence.response[-1] == encoder.eos_id != encoder.pad_id
    statistics_are_those_of_the_models_forward_pass(policy, sequences)
    loss, tokens = sft_loss(policy, sequences)
    (loss / tokens).backward()
    assert all(torch.isfinite(p.grad).all() for p in policy.model.parameters() if p.grad is not None)

    reward_model = ScalarModel.from_language_model(load(tmp_path).eval())
    segmented = [SegmentedSequence(sequence, [len(sequence.response) - 1]) for sequence in sequences]
    pairs, _, _ = pair_loss(reward_model, segmented[:2], segmented[2:], encoder.pad_id)
    pairs.backward()
    reward_model.save(tmp_path / "reward", {})
    critic = ScalarModel.load(tmp_path / "reward")[0].as_critic()
    assert critic.heads["value"].bias is not None


def load(folder: Path) -> Any:
    return load_language_model(folder, dtype=torch.float32)


def statistics_are_those_of_the_models_forward_pass(policy: Any, sequences: list[EncodedSequence]) -> None:
    """Padded and batched, against one unpadded sequence at a time."""
    with torch.no_grad():
        statistics, _ = sequence_statistics(policy, sequences, with_entropy=True)
        for i, sequence in enumerate(sequences):
            n = len(sequence.response)
            if policy.model.config.is_encoder_decoder:
                inputs = torch.tensor([[policy.start_id, *sequence.response[:-1]]])
                logits = policy.model(input_ids=torch.tensor([sequence.prompt]), decoder_input_ids=inputs).logits[0]
            else:
                logits = policy.model(torch.tensor([[*sequence.prompt, *sequence.response]])).logits[0]
                logits = logits[len(sequence.prompt) - 1 : -1]
            log_p = logits.float().log_softmax(-1)
            expected = log_p.gather(1, torch.tensor(sequence.response)[:, None]).squeeze(1)
            torch.testing.assert_close(statistics.logprobs[i, :n], expected, atol=1e-4, rtol=1e-4)
            entropy = -(log_p.exp() * log_p).sum(-1)
            torch.testing.assert_close(statistics.entropies[i, :n], entropy, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "end"),
    [("phi3", "<|end|>"), ("llama", "<|eot_id|>"), ("gemma2", "<end_of_turn>"), ("qwen2", "<|im_end|>")],
)
def test_the_tokenizers_own_template_ends_where_its_family_ends_a_turn(family: str, end: str) -> None:
    tokenizer, template = FAMILIES[family].tokenizer(TEXTS), TokenizerTemplate()
    assert template.eos_token(tokenizer) == end
    turns = [("user", "a cat"), ("assistant", "ran"), ("user", "sat")]
    dialogue = [{"role": role, "content": content} for role, content in turns]
    whole = tokenizer.apply_chat_template(dialogue, add_generation_prompt=True, return_dict=False)
    assert template.prompt_ids(tokenizer, dialogue) == whole


def test_a_family_without_system_turns_says_so() -> None:
    dialogue = [{"role": "system", "content": "a cat"}, {"role": "user", "content": "ran"}]
    with pytest.raises(DataError, match=r"refuses the dialogue \(no system turn\)"):
        TokenizerTemplate().prompt_ids(FAMILIES["gemma2"].tokenizer(TEXTS), dialogue)


def test_tokens_beyond_the_tokenizers_vocabulary_have_no_text(tmp_path: Path) -> None:
    """A policy whose embeddings are padded may sample one, however long the batch is."""
    tokenizer = AutoTokenizer.from_pretrained(published("qwen2", TEXTS, tmp_path))
    ids = torch.tensor([[len(tokenizer) + 3, *tokenizer.encode("cat")] * 2])
    for rows in (1, 5000 // ids.shape[1]):
        wide, none = ids.repeat(rows, 1), torch.zeros(rows, ids.shape[1])
        made = Generated(wide, torch.ones_like(wide).bool(), torch.zeros(rows).bool(), none, none)
        pieces = token_pieces(tokenizer, made)
        assert pieces[-1][0] == ""
        assert "".join(pieces[-1]) == response_texts(tokenizer, made)[-1] == "catcat"
