"""DPO, pairs per second, against TRL 1.16 `DPOTrainer`.

Both sides: one epoch over the same token ids, batches of 16 pairs, beta .1, float32. Ours computes the reference's
log-probabilities first, in batches of similar length, and that pass is part of its time; the peer computes them
batch by batch.
"""

from __future__ import annotations

from typing import Any

from benchmarks.alternating import Work
from benchmarks.workload import encoded_pairs, load_model, peer_options, read

BATCH = 16
RATE = 1e-4
BETA = 0.1


def ours(folder: str) -> Work:
    import torch

    from rlhf_core.data.batching import LengthBucketedBatches
    from rlhf_core.models.policy import Policy
    from rlhf_core.policy_optimisation.objectives import preference_loss
    from rlhf_core.supervised.config import TrainingConfig
    from rlhf_core.supervised.objectives import reference_logprobs, sequence_logprobs
    from rlhf_core.supervised.training import train

    chosen, rejected = encoded_pairs(folder)
    policy, reference = (Policy(load_model(folder), **read(folder, "facts")) for _ in range(2))
    lengths = [max(len(a), len(b)) for a, b in zip(chosen, rejected, strict=True)]
    config = TrainingConfig(epochs=1, batch=BATCH, microbatch=BATCH, learning_rate=RATE, schedule="constant")

    def work() -> float:
        before = [reference_logprobs(reference, rows) for rows in (chosen, rejected)]

        def loss(indices: Any) -> Any:
            picked = list(indices)
            logprobs = sequence_logprobs(policy, [*(chosen[i] for i in picked), *(rejected[i] for i in picked)])
            n = len(picked)
            ratios = logprobs[:n] - before[0][picked], logprobs[n:] - before[1][picked]
            losses, _ = preference_loss(torch.stack(ratios, dim=1), BETA)
            return losses.sum(), float(n), {}

        batches = LengthBucketedBatches(lengths, seed=0, rows_per_batch=BATCH)
        steps = len(chosen) // BATCH
        train(
            policy.model, loss, batches, steps, config, lambda step, metrics: None, weight=lambda rows: float(len(rows))
        )
        return float(steps * BATCH)

    return work


def peer(folder: str) -> Work:
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    pairs = read(folder, "pairs")
    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/model")
    policy, reference = (load_model(folder) for _ in range(2))
    config = DPOConfig(
        **peer_options(
            per_device_train_batch_size=BATCH, max_steps=len(pairs) // BATCH, learning_rate=RATE, beta=BETA,
            max_length=None,
        )
    )  # fmt: skip
    text = Dataset.from_list([{"prompt": "a", "chosen": " b", "rejected": " c"}] * BATCH)
    trainer = DPOTrainer(policy, reference, args=config, train_dataset=text, processing_class=tokenizer)
    names = ("prompt", "chosen", "rejected")
    trainer.train_dataset = Dataset.from_list([{f"{name}_ids": pair[name] for name in names} for pair in pairs])

    def work() -> float:
        trainer.train()
        return float(config.max_steps * BATCH)

    return work
