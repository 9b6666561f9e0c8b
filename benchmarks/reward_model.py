"""Reward-model training, pairs per second, against TRL 1.16 `RewardTrainer`.

Both sides: one epoch over the same token ids, batches of 16 pairs, AdamW, float32, one forward pass for chosen and
rejected together. Ours batches pairs of similar length and reads the head at response tokens.
"""

from __future__ import annotations

from benchmarks.alternating import Work
from benchmarks.workload import encoded_pairs, load_model, peer_options, read

BATCH = 16
RATE = 1e-3


def ours(folder: str) -> Work:

    from rlhf_core.data.batching import LengthBucketedBatches
    from rlhf_core.models.reward_model import ScalarModel
    from rlhf_core.rewards.preference_training import pair_loss
    from rlhf_core.segmentation.segments import SegmentedSequence
    from rlhf_core.supervised.config import TrainingConfig
    from rlhf_core.supervised.training import train

    chosen, rejected = (
        [SegmentedSequence(row, [len(row.response) - 1]) for row in rows] for rows in encoded_pairs(folder)
    )
    model = ScalarModel(load_model(folder).base_model)
    pad_id = read(folder, "facts")["pad_id"]
    lengths = [max(len(a.sequence), len(b.sequence)) for a, b in zip(chosen, rejected, strict=True)]
    config = TrainingConfig(epochs=1, batch=BATCH, microbatch=BATCH, learning_rate=RATE, schedule="constant")

    def work() -> float:
        batches = LengthBucketedBatches(lengths, seed=0, rows_per_batch=BATCH)
        train(
            model,
            lambda rows: pair_loss(model, [chosen[i] for i in rows], [rejected[i] for i in rows], pad_id),
            batches,
            len(chosen) // BATCH,
            config,
            lambda step, metrics: None,
            weight=lambda rows: float(len(rows)),
        )
        return float(len(chosen) // BATCH * BATCH)

    return work


def peer(folder: str) -> Work:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from trl import RewardConfig, RewardTrainer

    pairs = read(folder, "pairs")
    rows = [{f"{side}_ids": p["prompt"] + p[side] for side in ("chosen", "rejected")} for p in pairs]
    model = AutoModelForSequenceClassification.from_pretrained(f"{folder}/model", num_labels=1, dtype=torch.float32)
    config = RewardConfig(
        **peer_options(
            per_device_train_batch_size=BATCH, max_steps=len(pairs) // BATCH, learning_rate=RATE, max_length=None
        )
    )
    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/model")
    trainer = RewardTrainer(model, config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)

    def work() -> float:
        trainer.train()
        return float(config.max_steps * BATCH)

    return work
