"""GRPO, episodes per second, against TRL 1.16 `GRPOTrainer`.

Both sides: the same prompts, 16 of them with 4 responses of at most 64 tokens per iteration, one optimiser step in
forward passes of 16, KL against a frozen reference in the loss, float32, and one cheap reward of the response's words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.alternating import Work
from benchmarks.workload import load_model, peer_options, read

ROLLOUT, GROUP, MICROBATCH, TOKENS, ITERATIONS = 64, 4, 16, 64, 3
RATE = 1e-4
KL = 0.04


def variety(text: str) -> float:
    """Share of a text's words that are different; 0 without words."""
    words = text.split()
    return len(set(words)) / len(words) if words else 0.0


def ours(folder: str) -> Work:
    import torch
    from transformers import AutoTokenizer

    from rlhf_core.credit import CREDITS
    from rlhf_core.models.policy import Policy
    from rlhf_core.models.sampling import Sampling
    from rlhf_core.policy_optimisation.config import optimiser_config
    from rlhf_core.policy_optimisation.experience import EncodedPrompt
    from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
    from rlhf_core.policy_optimisation.sources import OnPolicy
    from rlhf_core.rewards.composition import Component, Reward
    from rlhf_core.signals import Sequence

    class Variety:
        gives = Sequence

        def score(self, batch: Any) -> Sequence:
            return Sequence(torch.tensor([variety(text) for text in batch.texts]))

    model = Path(folder) / "model"
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    policy, reference = (Policy(load_model(folder).eval(), **read(folder, "facts")) for _ in range(2))
    reference.model.requires_grad_(False)
    reward = Reward((Component("variety", Variety(), CREDITS["last_token"]),))
    prompts = [EncodedPrompt(ids, "", {"id": str(i)}) for i, ids in enumerate(read(folder, "prompts"))]
    config = optimiser_config(
        "grpo", iterations=ITERATIONS, rollout_batch=ROLLOUT, minibatch=ROLLOUT, microbatch=MICROBATCH, epochs=1,
        actor_lr=RATE, group_size=GROUP, kl_coef=KL,
    )  # fmt: skip

    def work() -> float:
        source = OnPolicy(
            policy, reference, tokenizer, prompts, Sampling(TOKENS),
            rollout_batch=ROLLOUT, group_size=GROUP, microbatch=MICROBATCH,
        )  # fmt: skip
        PolicyOptimiser(policy, reward, source, config, 0).train(lambda step, metrics, experience: None)
        return float(ITERATIONS * ROLLOUT)

    return work


def peer(folder: str) -> Work:
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/model", padding_side="left")
    policy = load_model(folder)
    config = GRPOConfig(
        **peer_options(
            per_device_train_batch_size=MICROBATCH, gradient_accumulation_steps=ROLLOUT // MICROBATCH,
            max_steps=ITERATIONS, num_generations=GROUP, max_completion_length=TOKENS, beta=KL, learning_rate=RATE,
            temperature=1.0, loss_type="grpo", model_init_kwargs=None,
        )
    )  # fmt: skip
    prompts = [{"prompt": tokenizer.decode(ids)} for ids in read(folder, "prompts")]

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [variety(text) for text in completions]

    trainer = GRPOTrainer(
        policy, reward, args=config, train_dataset=Dataset.from_list(prompts), processing_class=tokenizer
    )
    # The peer loads its reference by the model's name, in the dtype of that folder's configuration.
    assert next(trainer.ref_model.parameters()).dtype == torch.float32

    def work() -> float:
        trainer.train()
        return float(ITERATIONS * ROLLOUT)

    return work
