"""PPO (rollout, scoring, update), episodes per second, against TRL 1.12 `experimental.ppo.PPOTrainer`.

Both sides: the same prompts, 64 responses of at most 64 tokens per iteration, one epoch of one minibatch in forward
passes of 16, a reward model and a critic of the policy's shape, KL in the reward, float32. Ours drops a row at its
EOS and computes rows of similar length together; the peer pads all to the longest. The peer samples and scores 64 rows
at a time, which suits it better.
"""

from __future__ import annotations

from benchmarks.alternating import Done, Work
from benchmarks.training import optimising
from benchmarks.workload import load_model, peer_options, read

ROLLOUT, MICROBATCH, TOKENS, ITERATIONS = 64, 16, 64, 3
RATE = 1e-4
KL = 0.05
#: Passes of models over every sequence.
PASSES = ("sampling", "reference", "reward", "values", "update of the policy", "update of the critic")


def ours(folder: str) -> Work:
    from rlhf_core.credit import CREDITS
    from rlhf_core.models.reward_model import ScalarModel
    from rlhf_core.models.sampling import Sampling
    from rlhf_core.rewards.composition import Component, Reward
    from rlhf_core.rewards.readout import RewardModelScorer
    from rlhf_core.segmentation.segmenters import Bandit

    critic = ScalarModel(load_model(folder).base_model, heads=("value",), bias=True)
    scorer = RewardModelScorer(ScalarModel(load_model(folder).base_model), Bandit(), "aggregate", microbatch=MICROBATCH)
    reward = Reward((Component("reward", scorer, CREDITS["last_token"]),))
    return optimising(
        folder, "ppo", reward, Sampling(TOKENS), len(PASSES), critic, iterations=ITERATIONS, rollout_batch=ROLLOUT,
        minibatch=ROLLOUT, microbatch=MICROBATCH, actor_lr=RATE, critic_lr=RATE, kl_coef=KL,
    )  # fmt: skip


def peer(folder: str) -> Work:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    model = f"{folder}/model"
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    policy, reference = (load_model(folder) for _ in range(2))
    reward, value = (
        AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32) for _ in range(2)
    )
    config = PPOConfig(
        **peer_options(
            per_device_train_batch_size=MICROBATCH, gradient_accumulation_steps=ROLLOUT // MICROBATCH,
            num_mini_batches=1, num_ppo_epochs=1, total_episodes=ITERATIONS * ROLLOUT, response_length=TOKENS,
            local_rollout_forward_batch_size=ROLLOUT, num_sample_generations=0, stop_token="eos", temperature=1.0,
            kl_coef=KL, learning_rate=RATE,
        )
    )  # fmt: skip
    prompts = Dataset.from_list([{"input_ids": ids} for ids in read(folder, "prompts")])
    trainer = PPOTrainer(
        args=config, processing_class=tokenizer, model=policy, ref_model=reference, reward_model=reward,
        value_model=value, train_dataset=prompts,
    )  # fmt: skip

    def work() -> Done:
        trainer.train()
        return Done(ITERATIONS * ROLLOUT)

    return work
