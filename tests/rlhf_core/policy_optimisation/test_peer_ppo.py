"""PPO beside TRL 1.12's trainer on the same rollouts: losses over two epochs, and the weights after them.

TRL writes the score behind an EOS, on padding, so the responses here have none; docs/engine.md lists the differences.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import EOS, PAD, batch_of, configuration, random_rows, tiny_policy
from transformers import AutoModelForSequenceClassification, LlamaForCausalLM, LlamaForSequenceClassification

from rlhf_core.credit import CREDITS
from rlhf_core.models.policy import Policy
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.policy_optimisation.config import optimiser_config
from rlhf_core.policy_optimisation.experience import score
from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
from rlhf_core.rewards.composition import Component, Reward
from rlhf_core.rewards.function import FunctionScorer
from rlhf_core.rollout import RolloutBatch
from rlhf_core.signals import Sequence

peer = pytest.importorskip("trl.experimental.ppo", reason="TRL 1.12 has the last PPO trainer")

ROWS, LENGTH, RATE, KL, EPOCHS, VALUE = 8, 6, 1e-3, 0.05, 2, 0.1


class Fixed:
    """A source of one batch."""

    def __init__(self, batch: RolloutBatch) -> None:
        self.batch = batch

    def next(self, generator: torch.Generator) -> RolloutBatch:
        return self.batch


def folders(folder: Path) -> dict[str, Path]:
    """Saved models: policy, another reference (so that KL is not 0), reward model, critic; and a tokenizer."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({str(i): i for i in range(50)}, unk_token="3"))
    made = {name: folder / name for name in ("policy", "reference", "reward", "value", "tokenizer")}
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token=str(PAD), eos_token=str(EOS), padding_side="left"
    ).save_pretrained(made["tokenizer"])
    for seed, name in enumerate(("policy", "reference")):
        tiny_policy(seed).model.save_pretrained(made[name])
    for seed, name in enumerate(("reward", "value"), start=2):
        torch.manual_seed(seed)
        config = configuration()
        config.num_labels = 1
        LlamaForSequenceClassification(config).save_pretrained(made[name])
    return made


def theirs(saved: dict[str, Path], out: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, float], Any]:
    """One batch of TRL's PPO on given responses: (policy, logged metrics, (queries, responses))."""
    from datasets import Dataset
    from transformers import AutoTokenizer

    responses = torch.tensor(random_rows(7, [LENGTH] * ROWS, ended=False))
    seen: list[torch.Tensor] = []

    def given(model: Any, queries: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(queries)
        whole = torch.cat([queries, responses], dim=1)
        mask = whole != PAD
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        logits = model(input_ids=whole, attention_mask=mask, position_ids=positions).logits
        return whole, logits[:, queries.shape[1] - 1 : -1]

    monkeypatch.setattr("trl.experimental.ppo.ppo_trainer.batch_generation", given)
    scalar = {
        name: AutoModelForSequenceClassification.from_pretrained(saved[name], num_labels=1, dtype=torch.float32)
        for name in ("reward", "value")
    }
    policy, reference = (
        LlamaForCausalLM.from_pretrained(saved[name], dtype=torch.float32) for name in ("policy", "reference")
    )
    config = peer.PPOConfig(
        output_dir=str(out), bf16=False, use_cpu=True, report_to=[], gradient_checkpointing=False, save_strategy="no",
        per_device_train_batch_size=ROWS, gradient_accumulation_steps=1, num_mini_batches=1, num_ppo_epochs=EPOCHS,
        total_episodes=ROWS, response_length=LENGTH, num_sample_generations=0, temperature=1.0, kl_coef=KL,
        learning_rate=RATE, vf_coef=VALUE, whiten_rewards=False,
    )  # fmt: skip
    prompts = Dataset.from_list([{"input_ids": row} for row in random_rows(3, [4, 2, 3, 5] * 2, ended=False)])
    trainer = peer.PPOTrainer(
        args=config, processing_class=AutoTokenizer.from_pretrained(saved["tokenizer"]), model=policy,
        ref_model=reference, reward_model=scalar["reward"], value_model=scalar["value"], train_dataset=prompts,
    )  # fmt: skip
    logged: dict[str, float] = {}
    monkeypatch.setattr(trainer, "log", lambda metrics, *_: logged.update(metrics))
    trainer.train()
    return trainer.policy_model, logged, (seen[0], responses)


def scalar_model(folder: Path, head: str) -> ScalarModel:
    whole = LlamaForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    model = ScalarModel(whole.model, heads=(head,)).eval()
    with torch.no_grad():
        model.heads[head].weight.copy_(whole.score.weight)  # type: ignore[arg-type]
    return model


def test_two_epochs_of_ppo_are_trls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = folders(tmp_path)
    trained, logged, (queries, responses) = theirs(saved, tmp_path / "out", monkeypatch)
    batch = batch_of([row[row != PAD].tolist() for row in queries], responses.tolist())
    policy, reference = (
        Policy(LlamaForCausalLM.from_pretrained(saved[name], dtype=torch.float32).eval(), pad_id=PAD, eos_id=EOS)
        for name in ("policy", "reference")
    )
    inputs = (batch.prompt_ids, batch.prompt_mask, batch.responses.ids, batch.responses.mask)
    batch = replace(
        batch,
        logprobs=score(policy, *inputs, ROWS)[0],
        reference_logprobs=score(reference, *inputs, ROWS)[0],
    )
    scorer = scalar_model(saved["reward"], "reward")

    @torch.no_grad()
    def last_value(rollouts: RolloutBatch) -> torch.Tensor:
        return scorer(*inputs, head="reward")[:, -1]

    config = optimiser_config(
        "ppo", iterations=1, rollout_batch=ROWS, minibatch=ROWS, microbatch=3, epochs=EPOCHS, actor_lr=RATE,
        critic_lr=RATE, kl_coef=KL, clip=0.2, value_clip=0.2, value_coef=0.5 * VALUE, max_grad_norm=1e9,
        adam_betas=(0.9, 0.999),
    )  # fmt: skip
    component = Component("reward", FunctionScorer(last_value, Sequence), CREDITS["last_token"])
    ours = PolicyOptimiser(
        policy, Reward((component,)), Fixed(batch), config, 0,  # type: ignore[arg-type]
        critic=scalar_model(saved["value"], "value"),
    )  # fmt: skip
    experience = ours.experience(batch)
    tokens = ROWS * LENGTH
    sample_deviation = (1 - 1 / tokens) ** 0.5  # theirs whitens by the sample's variance
    experience = replace(experience, advantages=experience.advantages * sample_deviation)
    metrics = ours.update(experience)
    assert float(experience.reward.sequence_totals().mean()) == pytest.approx(logged["objective/scores"], abs=1e-5)
    assert metrics["policy_loss"] == pytest.approx(logged["loss/policy_avg"], abs=1e-5)
    assert metrics["value_loss"] == pytest.approx(VALUE * logged["loss/value_avg"], rel=1e-4)
    assert metrics["clip_fraction"] == pytest.approx(logged["policy/clipfrac_avg"], abs=1e-6)
    before = tiny_policy(0).model.state_dict()
    for name, value in trained.state_dict().items():
        found = policy.model.state_dict()[name]
        torch.testing.assert_close(found, value, atol=2e-5, rtol=1e-3, msg=name)
        assert (found - before[name]).abs().max() > RATE / 2, f"{name} has not moved"
