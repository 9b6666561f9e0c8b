"""GRPO, episodes per second, against TRL 1.16 `GRPOTrainer`.

Both sides: the same prompts, a KL against a frozen reference in the loss, float32, and one cheap reward of the
response's words. The peer projects response tokens alone, in tiles. It has no padding-free batches, shared prompts or
tree attention; Liger's layers are Triton kernels, which need a GPU.

- `ours`, `peer`: 16 prompts with 4 responses of at most 64 tokens per iteration, sampled, and one optimiser step.
- `ours_given`, `peer_given`: scoring and update of responses that are given, as by another engine: log-probabilities
  under the reference and under the policy, then two optimiser steps.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from benchmarks.alternating import Done, Work
from benchmarks.training import optimising
from benchmarks.workload import load_model, peer_options, read

ROLLOUT, GROUP, MICROBATCH, TOKENS, ITERATIONS = 64, 4, 16, 64, 3
GIVEN_GROUP, GIVEN_MICROBATCH, GIVEN_STEPS = 8, 8, 2
RATE = 1e-4
KL = 0.04
#: Passes of models over every sequence: of sampled responses, and of given ones.
PASSES, GIVEN_PASSES = ("sampling", "reference", "update"), ("reference", "policy", "update")


def variety(text: str) -> float:
    """Returns the share of a text's words that are different; 0 without words."""
    words = text.split()
    return len(set(words)) / len(words) if words else 0.0


class Given:
    """A rollout engine whose responses to a prompt are known.

    Attributes:
        answers: to each prompt, in the order in which they are given.
    """

    rescored = True
    answers: ClassVar[dict[tuple[int, ...], list[list[int]]]] = {}

    @staticmethod
    def check(architecture: Any) -> None:
        """Accepts every model."""

    def sample(self, policy: Any, prompt_ids: Any, prompt_mask: Any, *_: Any) -> Any:
        import torch

        from rlhf_core.models.generation import Generated
        from rlhf_core.models.policy import pad_rows

        seen, rows = Counter[tuple[int, ...]](), list[list[int]]()
        for ids, mask in zip(prompt_ids, prompt_mask, strict=True):
            prompt = tuple(ids[mask].tolist())
            rows.append(self.answers[prompt][seen[prompt]])
            seen[prompt] += 1
        ids, mask = (part.to(policy.device) for part in pad_rows(rows, policy.pad_id, "right"))
        zeros = torch.zeros(ids.shape, device=policy.device)
        return Generated(ids, mask, mask[:, 0], zeros, zeros)


def _reward() -> Any:
    import torch

    from rlhf_core.credit import CREDITS
    from rlhf_core.rewards.composition import Component, Reward
    from rlhf_core.signals import Sequence

    class Variety:
        gives = Sequence

        def score(self, batch: Any) -> Sequence:
            return Sequence(torch.tensor([variety(text) for text in batch.texts]))

    return Reward((Component("variety", Variety(), CREDITS["last_token"]),))


def ours(folder: str) -> Work:
    from rlhf_core.models.sampling import Sampling

    return optimising(
        folder, "grpo", _reward(), Sampling(TOKENS), len(PASSES), iterations=ITERATIONS, rollout_batch=ROLLOUT,
        minibatch=ROLLOUT, microbatch=MICROBATCH, group_size=GROUP, actor_lr=RATE, kl_coef=KL,
    )  # fmt: skip


def ours_given(folder: str) -> Work:
    from rlhf_core.models.sampling import Sampling

    prompts, answers = read(folder, "prompts"), read(folder, "answers")
    Given.answers = dict(zip(map(tuple, prompts), answers, strict=True))
    rollout = len(prompts) * GIVEN_GROUP
    return optimising(
        folder, "grpo", _reward(), Sampling(1024, engine="benchmarks.grpo:Given"), len(GIVEN_PASSES), iterations=1,
        rollout_batch=rollout, minibatch=rollout // GIVEN_STEPS, microbatch=GIVEN_MICROBATCH, group_size=GIVEN_GROUP,
        actor_lr=RATE, kl_coef=KL,
    )  # fmt: skip


def _peer(folder: str, prompts: list[str], rollout: Any = None, tokens: int = 0, **options: Any) -> Work:
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        **peer_options(
            beta=KL, learning_rate=RATE, temperature=1.0, loss_type="grpo", model_init_kwargs=None, **options
        )
    )

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [variety(text) for text in completions]

    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/model", padding_side="left")
    rows = Dataset.from_list([{"prompt": text} for text in prompts])
    trainer = GRPOTrainer(
        load_model(folder), reward, args=config, train_dataset=rows, processing_class=tokenizer, rollout_func=rollout
    )
    # The peer loads its reference by the model's name, in the dtype of that folder's configuration.
    assert next(trainer.ref_model.parameters()).dtype == torch.float32

    def work() -> Done:
        trainer.train()
        episodes = config.max_steps * config.per_device_train_batch_size * config.gradient_accumulation_steps
        return Done(episodes, tokens)

    return work


def peer(folder: str) -> Work:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/model")
    return _peer(
        folder, [str(tokenizer.decode(ids)) for ids in read(folder, "prompts")],
        per_device_train_batch_size=MICROBATCH, gradient_accumulation_steps=ROLLOUT // MICROBATCH,
        max_steps=ITERATIONS, num_generations=GROUP, max_completion_length=TOKENS,
    )  # fmt: skip


def peer_given(folder: str) -> Work:
    prompts, answers = read(folder, "prompts"), read(folder, "answers")
    rollout = len(prompts) * GIVEN_GROUP

    def given(names: list[str], trainer: Any) -> dict[str, Any]:
        seen, rows = Counter[str](), list[list[int]]()
        for name in names:
            rows.append(answers[int(name)][seen[name]])
            seen[name] += 1
        return {"prompt_ids": [prompts[int(name)] for name in names], "completion_ids": rows, "logprobs": None}

    tokens = len(GIVEN_PASSES) * sum(map(len, [*prompts, *(answer for own in answers for answer in own)]))
    return _peer(
        folder, [str(i) for i in range(len(prompts))], given, tokens, per_device_train_batch_size=GIVEN_MICROBATCH,
        gradient_accumulation_steps=rollout // GIVEN_STEPS // GIVEN_MICROBATCH,
        steps_per_generation=rollout // GIVEN_MICROBATCH, max_steps=GIVEN_STEPS, num_generations=GIVEN_GROUP,
        max_completion_length=1024,
    )  # fmt: skip
