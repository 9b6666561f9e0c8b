"""Engines whose log-probabilities are not the policy's: training computes its own, and notes the gap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import EOS, PAD, VOCABULARY, ToyTokenizer, random_rows
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_core.models.generation import Generated
from rlhf_core.models.policy import Policy, pad_rows
from rlhf_core.models.sampling import Sampling, generate, used_engines
from rlhf_core.policy_optimisation.config import optimiser_config
from rlhf_core.policy_optimisation.diagnostics import describe
from rlhf_core.policy_optimisation.experience import EncodedPrompt, Experience, collect
from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
from rlhf_core.policy_optimisation.sources import OnPolicy
from rlhf_core.rewards.composition import RewardOutput
from rlhf_core.rollout import RolloutBatch
from tests.shifted_engine import ENGINE, GAP

PROMPTS = random_rows(5, [4, 2, 6, 1, 3, 5, 2, 2], ended=False)
#: Tokens after which the windows of the sliding attention below are full.
WINDOW, TOKENS = 8, 12
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128, "initializer_range": 0.3,
    "pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": 1,
}  # fmt: skip
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen2": {}, "phi3": {"sliding_window": WINDOW},
    "qwen3": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1, "head_dim": 8},
}  # fmt: skip


def policy_of(model_type: str = "llama", seed: int = 0, attention: str = "sdpa") -> Policy:
    """Returns a random policy that likes EOS, so that rows end at different steps."""
    config = AutoConfig.for_model(model_type, **SIZES, **ARCHITECTURES[model_type])
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight[EOS] *= 2.0
    return Policy(model, pad_id=PAD, eos_id=EOS)


def sample(
    policy: Policy, engine: str, prompts: list[list[int]] = PROMPTS, seed: int = 0, wider: int = 0, **settings: Any
) -> tuple[Generated, torch.Tensor]:
    """Returns the responses, and what the generator draws after them."""
    ids, mask = pad_rows(prompts, PAD, "left")
    ids, mask = (torch.nn.functional.pad(values, (wider, 0)) for values in (ids, mask))
    generator = torch.Generator().manual_seed(seed)
    made = generate(policy, ids, mask, Sampling(TOKENS, **settings, engine=engine), generator)
    return made, torch.rand(4, generator=generator)


def assert_near(found: Generated, expected: Generated) -> None:
    """Asserts equal tokens, and log-probabilities and entropies within 1e-5."""
    for name in ("ids", "mask", "ended"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    for name in ("logprobs", "entropies"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=1e-5, rtol=0)


def test_training_reads_log_probabilities_of_its_own_and_notes_the_gap() -> None:
    policy, reference = policy_of(), policy_of(seed=4)
    prompts = [EncodedPrompt(row, str(row), {"id": str(i)}) for i, row in enumerate(PROMPTS)]

    def rollouts(engine: str) -> RolloutBatch:
        generator = torch.Generator().manual_seed(0)
        sampling = Sampling(TOKENS, engine=engine)
        return collect(policy, reference, ToyTokenizer(), prompts, sampling, generator, microbatch=3)  # type: ignore[arg-type]

    used_engines.clear()
    found, expected = rollouts(ENGINE), rollouts("loop")
    assert used_engines == {"loop", ENGINE}
    assert expected.engine_logprobs is None
    assert found.engine_logprobs is not None
    assert found.logprobs is not None
    for name in ("logprobs", "entropies", "reference_logprobs"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=1e-5, rtol=0)
    zeros = torch.zeros_like(found.logprobs)
    metrics = describe(
        Experience(found, RewardOutput(zeros, {}, {}), zeros, zeros, zeros, zeros[:, 0]), with_critic=False
    )
    assert metrics["engine_gap"] == pytest.approx(GAP, abs=1e-5)


def trained(engine: str) -> tuple[Policy, list[dict[str, float]]]:
    """Returns a policy after three iterations of GRPO that pays long responses, and its metrics."""
    policy, history = policy_of(), list[dict[str, float]]()
    config = optimiser_config(
        "grpo", iterations=3, rollout_batch=8, minibatch=4, microbatch=3, epochs=1, actor_lr=1e-2, group_size=4
    )
    prompts = [EncodedPrompt(row, str(row), {"id": str(i)}) for i, row in enumerate(PROMPTS)]
    source = OnPolicy(
        policy, policy_of(), ToyTokenizer(), prompts, Sampling(TOKENS, engine=engine),  # type: ignore[arg-type]
        rollout_batch=8, group_size=4, microbatch=3, generation_batch=5,
    )  # fmt: skip

    def reward(batch: RolloutBatch) -> RewardOutput:
        total = batch.responses.mask.float()
        return RewardOutput(total, {"length": total}, {})

    optimiser = PolicyOptimiser(policy, reward, source, config, 0)
    optimiser.train(lambda step, metrics, experience: history.append(metrics))
    return policy, history
