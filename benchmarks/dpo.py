"""DPO, pairs per second, against TRL 1.16 `DPOTrainer`.

Both sides: one epoch over the same token ids, beta .1, float32, pairs of similar length batched together (the peer by
`group_by_length`). Ours computes the reference's log-probabilities first, and that pass is part of its time; the peer
computes them batch by batch. The peer projects response tokens alone, in tiles; its `padding_free` is switched off in
this version, and Liger's layers are Triton kernels, which need a GPU.
"""

from __future__ import annotations

from benchmarks.alternating import Done, Work
from benchmarks.training import encoded_pairs, train_on
from benchmarks.workload import load_model, peer_options, read, tokens_of_pairs

RATE = 1e-4
BETA = 0.1


def ours(folder: str, batch: int) -> Work:
    from rlhf_core.models.policy import Policy
    from rlhf_core.supervised.objectives import PreferenceObjective
    from rlhf_core.supervised.recipes import Preferences

    policy, reference = (Policy(load_model(folder), **read(folder, "facts")) for _ in range(2))
    pairs = Preferences(*encoded_pairs(folder), BETA)

    def work() -> Done:
        target = PreferenceObjective(policy, reference, pairs)
        return Done(train_on(policy.model, target, batch=batch, rate=RATE) * batch, 2 * tokens_of_pairs(folder))

    return work


def peer(folder: str, batch: int) -> Work:
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    names = ("prompt", "chosen", "rejected")
    rows = [{f"{name}_ids": pair[name] for name in names} for pair in read(folder, "pairs")]
    rows = [
        row | {"length": len(row["prompt_ids"]) + max(len(row[f"{name}_ids"]) for name in names[1:])} for row in rows
    ]
    policy, reference = (load_model(folder) for _ in range(2))
    config = DPOConfig(
        **peer_options(
            per_device_train_batch_size=batch, max_steps=len(rows) // batch, learning_rate=RATE, beta=BETA,
            max_length=None, train_sampling_strategy="group_by_length", remove_unused_columns=False,
        )
    )  # fmt: skip
    text = Dataset.from_list([{"prompt": "a", "chosen": " b", "rejected": " c"}] * batch)
    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/model")
    trainer = DPOTrainer(policy, reference, args=config, train_dataset=text, processing_class=tokenizer)
    trainer.train_dataset = Dataset.from_list(rows)

    def work() -> Done:
        trainer.train()
        return Done(config.max_steps * batch, 2 * tokens_of_pairs(folder))

    return work
