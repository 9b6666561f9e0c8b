"""Reward-model training, pairs per second, against TRL 1.16 `RewardTrainer`.

Both sides: one epoch over the same token ids, AdamW, float32, one forward pass for chosen and rejected together, pairs
of similar length batched together (the peer by `group_by_length`). `RewardTrainer` has no padding-free batches and no
loss of Liger's.
"""

from __future__ import annotations

from benchmarks.alternating import Done, Work
from benchmarks.training import encoded_pairs, train_on
from benchmarks.workload import load_model, peer_options, read, tokens_of_pairs

RATE = 1e-3


def ours(folder: str, batch: int) -> Work:
    from rlhf_core.models.reward_model import ScalarModel
    from rlhf_core.segmentation.segments import SegmentedSequence
    from tasks.running.supervised import PairComparison

    chosen, rejected = (
        [SegmentedSequence(row, [len(row.response) - 1]) for row in rows] for rows in encoded_pairs(folder)
    )
    model = ScalarModel(load_model(folder).base_model)
    target = PairComparison(model, chosen, rejected, read(folder, "facts")["pad_id"])

    def work() -> Done:
        return Done(train_on(model, target, batch=batch, rate=RATE) * batch, tokens_of_pairs(folder))

    return work


def peer(folder: str, batch: int) -> Work:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from trl import RewardConfig, RewardTrainer

    rows = [{f"{side}_ids": p["prompt"] + p[side] for side in ("chosen", "rejected")} for p in read(folder, "pairs")]
    rows = [row | {"length": max(map(len, row.values()))} for row in rows]
    model = AutoModelForSequenceClassification.from_pretrained(f"{folder}/model", num_labels=1, dtype=torch.float32)
    config = RewardConfig(
        **peer_options(
            per_device_train_batch_size=batch, max_steps=len(rows) // batch, learning_rate=RATE, max_length=None,
            train_sampling_strategy="group_by_length", remove_unused_columns=False,
        )
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/model")
    trainer = RewardTrainer(model, config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)

    def work() -> Done:
        trainer.train()
        return Done(config.max_steps * batch, tokens_of_pairs(folder))

    return work
