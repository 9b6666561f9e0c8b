"""Engines: each gives the responses of the loop, repeats bit for bit, reads the weights as they are, and says no."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import EOS, PAD, VOCABULARY, ToyTokenizer, random_rows, tiny_encoder_decoder, tiny_policy
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_core.errors import NumericsError, RecipeError, RewardsmithError
from rlhf_core.models.engines import ENGINES
from rlhf_core.models.generation import Generated, generate
from rlhf_core.models.lora import Adapter, AdapterOff
from rlhf_core.models.lora_settings import LoraSettings
from rlhf_core.models.policy import DecoderPolicy, Policy, pad_rows
from rlhf_core.models.sampling import Sampling
from rlhf_core.policy_optimisation.config import optimiser_config
from rlhf_core.policy_optimisation.diagnostics import describe
from rlhf_core.policy_optimisation.experience import EncodedPrompt, Experience, collect
from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
from rlhf_core.policy_optimisation.sources import OnPolicy
from rlhf_core.rewards.composition import RewardOutput
from rlhf_core.rollout import RolloutBatch

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


def policy_of(model_type: str = "llama", seed: int = 0, attention: str = "sdpa") -> DecoderPolicy:
    """Returns a random policy that likes EOS, so that rows end at different steps."""
    config = AutoConfig.for_model(model_type, **SIZES, **ARCHITECTURES[model_type])
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight[EOS] *= 2.0
    return DecoderPolicy(model, pad_id=PAD, eos_id=EOS)


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


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_greedy_answers_are_those_of_the_loop(model_type: str, attention: str) -> None:
    policy = policy_of(model_type, attention=attention)
    found, _ = sample(policy, "batch", temperature=0.0)
    assert_near(found, sample(policy, "loop", temperature=0.0)[0])
    assert policy.model.config._attn_implementation == attention


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 5}, {"temperature": 1.3, "top_p": 0.6}])
def test_sampled_answers_are_those_of_the_loop_and_leave_its_generator(settings: dict[str, Any]) -> None:
    policy = policy_of(seed=1)
    for seed in range(3):
        found, after = sample(policy, "batch", seed=seed, **settings)
        expected, after_loop = sample(policy, "loop", seed=seed, **settings)
        assert_near(found, expected)
        assert torch.equal(after, after_loop)


def test_a_seeded_run_repeats_bit_for_bit_and_leaves_everything_else_as_it_was() -> None:
    policy = policy_of()
    policy.model.train()
    state = torch.get_rng_state()
    first, second = (sample(policy, "batch", PROMPTS * 4)[0] for _ in range(2))
    for name in ("ids", "mask", "ended", "logprobs", "entropies"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert torch.equal(torch.get_rng_state(), state)
    assert policy.model.training


def test_a_response_depends_neither_on_padding_nor_on_other_rows() -> None:
    policy = policy_of()
    alone, _ = sample(policy, "batch")
    wider, _ = sample(policy, "batch", wider=7)
    assert torch.equal(alone.ids, wider.ids)
    assert torch.equal(alone.logprobs, wider.logprobs)
    others = [PROMPTS[0], *random_rows(9, [9, 1, 7, 7, 2, 8, 30], ended=False)]
    mixed, _ = sample(policy, "batch", others)
    assert mixed.ids[0, mixed.mask[0]].tolist() == alone.ids[0, alone.mask[0]].tolist()
    again, _ = sample(policy, "batch", [PROMPTS[0]] * len(PROMPTS), temperature=0.0)
    assert len({tuple(row) for row in again.ids.tolist()}) == 1


def test_an_answer_ends_with_its_first_stop_token_or_at_the_limit() -> None:
    found, _ = sample(policy_of(), "batch", PROMPTS * 4)
    assert found.ended.any()
    assert not found.ended.all()
    for ids, mask, ended in zip(found.ids, found.mask, found.ended, strict=True):
        row = ids[mask].tolist()
        assert EOS not in row[:-1]
        assert (row[-1] == EOS) == bool(ended)
        assert ended or len(row) == TOKENS
        assert (ids[~mask] == PAD).all()


def test_weights_after_an_update_are_those_that_sample() -> None:
    policy = policy_of()
    before, _ = sample(policy, "batch", temperature=0.0)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    after, _ = sample(policy, "batch", temperature=0.0)
    assert before.ids.tolist() != after.ids.tolist()
    assert_near(after, sample(policy, "loop", temperature=0.0)[0])


def test_a_reference_samples_without_the_adapters() -> None:
    pytest.importorskip("peft")
    policy, base = tiny_policy(1), tiny_policy(1)
    adapter = Adapter(policy.model, LoraSettings(rank=4, alpha=8))
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter += 1.0
    reference = AdapterOff(policy, adapter)
    expected, _ = sample(base, "loop", temperature=0.0)
    assert sample(policy, "batch", temperature=0.0)[0].ids.tolist() != expected.ids.tolist()
    assert_near(sample(reference, "batch", temperature=0.0)[0], expected)


def test_training_reads_log_probabilities_of_its_own_and_notes_the_gap() -> None:
    policy, reference = policy_of(), policy_of(seed=4)
    prompts = [EncodedPrompt(row, str(row), {"id": str(i)}) for i, row in enumerate(PROMPTS)]

    def rollouts(engine: str) -> RolloutBatch:
        generator = torch.Generator().manual_seed(0)
        sampling = Sampling(TOKENS, engine=engine)
        return collect(policy, reference, ToyTokenizer(), prompts, sampling, generator, microbatch=3)  # type: ignore[arg-type]

    found, expected = rollouts("batch"), rollouts("loop")
    assert expected.engine_logprobs is None
    assert found.engine_logprobs is not None
    for name in ("logprobs", "entropies", "reference_logprobs"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=1e-5, rtol=0)
    responses = found.responses
    with torch.no_grad():
        own = policy.statistics(found.prompt_ids, found.prompt_mask, responses.ids, responses.mask)
    torch.testing.assert_close(found.logprobs, own.logprobs, atol=1e-6, rtol=0)
    zeros = torch.zeros_like(own.logprobs)
    metrics = describe(
        Experience(found, RewardOutput(zeros, {}, {}), zeros, zeros, zeros, zeros[:, 0]), with_critic=False
    )
    assert metrics["engine_gap"] <= metrics["engine_gap_max"] < 1e-5
    shifted = Experience(
        RolloutBatch(**{**vars(found), "engine_logprobs": found.engine_logprobs - 0.5}),
        RewardOutput(zeros, {}, {}), zeros, zeros, zeros, zeros[:, 0],
    )  # fmt: skip
    assert describe(shifted, with_critic=False)["engine_gap"] == pytest.approx(0.5, abs=1e-5)


def trained(engine: str) -> tuple[DecoderPolicy, list[dict[str, float]]]:
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


def test_a_policy_ends_the_same_on_each_engine() -> None:
    (ours, history), (loop, expected) = trained("batch"), trained("loop")
    for (name, found), wanted in zip(ours.model.state_dict().items(), loop.model.state_dict().values(), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0, msg=lambda m, n=name: f"{n}: {m}")
    for found_row, row in zip(history, expected, strict=True):
        assert {name: found_row[name] for name in row} == pytest.approx(row, rel=1e-3, abs=1e-4)
        assert found_row["engine_gap_max"] < 1e-5


@pytest.mark.parametrize("model_type", ["gemma2", "mamba", "t5", "qwen3_next"])
def test_a_model_without_paged_attention_is_refused(model_type: str) -> None:
    ENGINES["loop"].check({"model_type": model_type})
    with pytest.raises(RecipeError, match=f"{model_type} "):
        ENGINES["batch"].check({"model_type": model_type})


def test_models_of_the_scales_and_unknown_ones_pass() -> None:
    for architecture in ({}, {"model_type": "unheard-of"}, *({"model_type": name} for name in ARCHITECTURES)):
        ENGINES["batch"].check(architecture)


def test_an_encoder_decoder_is_refused_when_it_samples() -> None:
    with pytest.raises(RecipeError, match="engine is 'batch', but t5 is an encoder-decoder"):
        sample(tiny_encoder_decoder(), "batch")


def _raise(*_: object) -> None:
    raise ValueError("broken layer")


def _not_a_number(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
    return output * torch.nan


@pytest.mark.parametrize(
    ("hook", "error", "message"),
    [
        (_raise, RewardsmithError, "engine 'batch' failed: broken layer. Sample fewer responses"),
        (_not_a_number, NumericsError, "log-probabilities are not finite while sampling"),
    ],
)
def test_a_failure_is_named_and_leaves_the_model_as_it_was(
    hook: Callable[..., Any], error: type[Exception], message: str
) -> None:
    policy = policy_of(attention="eager")
    expected, _ = sample(policy, "batch")
    broken = policy.model.get_output_embeddings().register_forward_hook(hook)
    with pytest.raises(error, match=message):
        sample(policy, "batch")
    broken.remove()
    assert policy.model.config._attn_implementation == "eager"
    assert_near(sample(policy, "batch")[0], expected)
