"""This project's side of a comparison: training as its stages train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.alternating import Done, Work
from benchmarks.workload import load_model, read

if TYPE_CHECKING:
    from rlhf_core.supervised.objectives import Objective


def encoded_pairs(folder: str) -> tuple[list[Any], list[Any]]:
    """Returns chosen and rejected sequences as this project encodes them."""
    from rlhf_core.data.encoding import EncodedSequence

    pairs = read(folder, "pairs")
    chosen, rejected = (
        [EncodedSequence(pair["prompt"], pair[side]) for pair in pairs] for side in ("chosen", "rejected")
    )
    return chosen, rejected


def train_on(model: Any, target: Objective, *, batch: int, rate: float, steps: int | None = None) -> int:
    """Trains a model as a stage does, for an epoch unless `steps` are given; returns the steps."""
    from rlhf_core.data.batching import LengthBucketedBatches
    from rlhf_core.supervised.config import TrainingConfig
    from rlhf_core.supervised.training import train

    config = TrainingConfig(epochs=1, batch=batch, microbatch=batch, learning_rate=rate, schedule="constant")
    batches = LengthBucketedBatches(target.lengths, seed=0, rows_per_batch=batch)
    steps = steps or len(target.lengths) // batch
    train(model, target.loss, batches, steps, config, lambda step, metrics: None, target.weight)
    return steps


def optimising(
    folder: str, kind: str, reward: Any, sampling: Any, passes: int, critic: Any = None, **settings: Any
) -> Work:
    """Returns this project's side of a policy optimiser; models take `passes` over every sequence.

    Args:
        kind, settings: of the optimiser, sizes of its batches included; one epoch.
        reward, sampling, critic: what the optimiser takes.
    """
    from transformers import AutoTokenizer

    from rlhf_core.models.policy import Policy
    from rlhf_core.policy_optimisation.config import optimiser_config
    from rlhf_core.policy_optimisation.experience import EncodedPrompt
    from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
    from rlhf_core.policy_optimisation.sources import OnPolicy

    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/model")
    policy, reference = (Policy(load_model(folder).eval(), **read(folder, "facts")) for _ in range(2))
    reference.model.requires_grad_(False)
    prompts = [EncodedPrompt(ids, "", {"id": str(i)}) for i, ids in enumerate(read(folder, "prompts"))]
    config = optimiser_config(kind, epochs=1, **settings)
    sizes = {name: settings.get(name, 1) for name in ("rollout_batch", "group_size", "microbatch")}

    def work() -> Done:
        source = OnPolicy(policy, reference, tokenizer, prompts, sampling, **sizes)
        tokens = 0

        def on_step(step: int, metrics: Any, experience: Any) -> None:
            nonlocal tokens
            batch = experience.batch
            tokens += passes * int(batch.prompt_mask[:: sizes["group_size"]].sum() + batch.responses.mask.sum())

        PolicyOptimiser(policy, reward, source, config, 0, critic=critic).train(on_step)
        return Done(settings["iterations"] * settings["rollout_batch"], tokens)

    return work
