"""Every stage's core on the model families in use, loaded from a folder with each family's own tokenizer class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, trainers
from transformers import AutoTokenizer, GemmaTokenizer, LlamaTokenizer, Qwen2Tokenizer, T5Tokenizer

from rlhf_core.data.encoding import EncodedSequence, Encoder
from rlhf_core.data.templates import TokenizerTemplate, chat_template
from rlhf_core.data.tokenizers import add_pad_token, check_padding
from rlhf_core.data.truncation import Limits
from rlhf_core.models.generation import Sampling
from rlhf_core.models.loading import build_language_model, load_language_model
from rlhf_core.models.policy import policy_of
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.policy_optimisation.config import optimiser_config
from rlhf_core.policy_optimisation.experience import EncodedPrompt
from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
from rlhf_core.policy_optimisation.sources import OnPolicy
from rlhf_core.rewards.composition import RewardOutput
from rlhf_core.rewards.preference_training import SegmentedSequence, pair_loss
from rlhf_core.supervised.sft import sequence_statistics, sft_loss

TEXTS = ["the cat sat on the mat", "a dog ran in the park", "cats and dogs ran", "sat on a dog"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SMALL: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8,
}  # fmt: skip
T5_SIZE: dict[str, Any] = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def vocabulary(special: list[str], alphabet: list[str]) -> dict[str, int]:
    return {token: i for i, token in enumerate(dict.fromkeys([*special, *alphabet]))}


def letters() -> list[str]:
    return ["▁", *sorted({letter for text in TEXTS for letter in text if letter != " "})]


def phi3() -> Any:
    tokenizer = LlamaTokenizer(vocab=vocabulary(["<unk>", "<s>", "</s>", *BYTES], letters()), merges=[])
    tokenizer.add_special_tokens(
        {
            "pad_token": "<|endoftext|>",
            "additional_special_tokens": ["<|user|>", "<|assistant|>", "<|end|>", "<|system|>"],
        }
    )
    return tokenizer


def llama() -> Any:
    """Llama 3's markers; like the released ones, it has no pad token."""
    tokenizer = LlamaTokenizer(
        vocab=vocabulary(["<unk>", "<|begin_of_text|>", "<|end_of_text|>", *BYTES], letters()), merges=[],
        bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>",
    )  # fmt: skip
    markers = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": markers})
    return tokenizer


def gemma2() -> Any:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer = GemmaTokenizer(vocab=vocabulary([*special, *BYTES], ["\n", *letters()]), merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"]})
    tokenizer.chat_template = GEMMA
    return tokenizer


def qwen2() -> Any:
    from rlhf_core.data.tokenizers import _letters

    tokenizer = Qwen2Tokenizer(vocab=vocabulary(list(_letters().values()), ["<|endoftext|>"]), merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    return tokenizer


def t5() -> Any:
    backend = Tokenizer(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(["▁" + text.replace(" ", "▁") for text in TEXTS], trainer)
    scores = [
        (token, 0.0 if i < 3 else -float(i)) for token, i in sorted(backend.get_vocab().items(), key=lambda x: x[1])
    ]
    return T5Tokenizer(vocab=scores, extra_ids=4)


FAMILIES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "phi3": (phi3, "phi3", {k: v for k, v in SMALL.items() if k != "head_dim"}),
    "llama": (llama, "llama3", SMALL),
    "gemma2": (gemma2, "tokenizer", {**SMALL, "query_pre_attn_scalar": 8, "sliding_window": 8}),
    "qwen2": (qwen2, "tokenizer", {k: v for k, v in SMALL.items() if k != "head_dim"}),
    "t5": (t5, "seq2seq", T5_SIZE),
    "mt5": (t5, "seq2seq", T5_SIZE),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_core_runs_on_a_family_from_a_folder(family: str, tmp_path: Path) -> None:
    make, template_name, sizes = FAMILIES[family]
    template, tokenizer = chat_template(template_name), make()
    grew = add_pad_token(tokenizer, template)
    assert grew == (family == "llama")
    options = {"decoder_start_token_id": tokenizer.pad_token_id} if "t5" in family else {}
    built = build_language_model({"model_type": family, **sizes, **options}, tokenizer, seed=0)
    built.save_pretrained(tmp_path, safe_serialization=True)
    tokenizer.save_pretrained(tmp_path)

    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    check_padding(tokenizer, template)
    encoder = Encoder(tokenizer, template, Limits(prompt=40, total=80))
    policy, reference = (
        policy_of(load_language_model(tmp_path).eval(), pad_id=encoder.pad_id, eos_id=encoder.eos_id) for _ in range(2)
    )
    rows = [{"prompt": text} for text in TEXTS]
    sequences = [encoder.sequence(row, text) for row, text in zip(rows, reversed(TEXTS), strict=True)]
    for sequence, text in zip(sequences, reversed(TEXTS), strict=True):
        assert tokenizer.decode(sequence.response[:-1], skip_special_tokens=True).strip() == text
        assert sequence.response[-1] == encoder.eos_id != encoder.pad_id
    statistics_are_those_of_the_models_forward_pass(policy, sequences)
    loss, tokens = sft_loss(policy, sequences)
    (loss / tokens).backward()
    assert all(torch.isfinite(p.grad).all() for p in policy.model.parameters() if p.grad is not None)

    reward_model = ScalarModel.from_language_model(load_language_model(tmp_path).eval())
    segmented = [SegmentedSequence(sequence, [len(sequence.response) - 1]) for sequence in sequences]
    pairs, _, _ = pair_loss(reward_model, segmented[:2], segmented[2:], encoder.pad_id)
    pairs.backward()
    reward_model.save(tmp_path / "reward", {})
    critic = ScalarModel.load(tmp_path / "reward")[0].as_critic()

    config = optimiser_config(
        "ppo", iterations=1, rollout_batch=4, minibatch=4, microbatch=2, epochs=1, actor_lr=1e-3, critic_lr=1e-3
    )
    prompts = [EncodedPrompt(encoder.prompt(row), row["prompt"], row) for row in rows]
    source = OnPolicy(policy, reference, tokenizer, prompts, Sampling(6), rollout_batch=4, microbatch=2)

    def reward(batch: Any) -> RewardOutput:
        total = batch.responses.mask.float()
        return RewardOutput(total, {"length": total}, {})

    metrics, experience = PolicyOptimiser(policy, reward, source, config, 0, critic=critic).iterate()
    assert metrics["grad_norm"] > 0
    assert abs(metrics["kl"]) < 1e-3
    assert experience.batch.responses.lengths.min() >= 1


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


def test_the_tokenizers_own_template_ends_where_its_family_ends_a_turn() -> None:
    assert TokenizerTemplate().eos_token(gemma2()) == "<end_of_turn>"
    assert TokenizerTemplate().eos_token(qwen2()) == "<|im_end|>"
