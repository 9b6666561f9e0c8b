"""Training runs that the distributed tests start in one and in two processes, on two gloo processes by torchrun.

python ranks.py <runs> <file for the results> <JSON: DeepSpeed's configurations by name, null without DeepSpeed>
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tiny_models import POLICIES, ToyTokenizer, random_rows, tiny_critic, tiny_policy, tiny_scalar_model

from rlhf_core import distributed
from rlhf_core.credit import CREDITS
from rlhf_core.data.batching import LengthBucketedBatches
from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.models.sampling import Sampling
from rlhf_core.normalisers import NoNormaliser
from rlhf_core.policy_optimisation.config import optimiser_config
from rlhf_core.policy_optimisation.experience import EncodedPrompt
from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
from rlhf_core.policy_optimisation.sources import OnPolicy
from rlhf_core.rewards.composition import Component, Reward
from rlhf_core.rewards.preference_training import pair_loss, score_all
from rlhf_core.rewards.readout import RewardModelScorer
from rlhf_core.segmentation.segmenters import build_segmenter
from rlhf_core.segmentation.segments import SegmentedSequence
from rlhf_core.shaping.choices import build_shaping
from rlhf_core.stepper import use_deepspeed
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.supervised.objectives import mean_nll, sft_loss
from rlhf_core.supervised.training import train
from rlhf_core.training_state import trainable_state

PROMPTS = random_rows(1, [3, 5, 1, 4, 2, 2, 6, 3, 4, 1, 5], ended=False)
CHOSEN = random_rows(2, [6, 1, 3, 7, 2, 5, 4, 4, 9, 3, 2])
REJECTED = random_rows(3, [2, 5, 4, 1, 8, 3, 3, 6, 1, 7, 4])
#: Kinds of policies; the heads of a wide one have a size that vLLM computes on CPUs.
KINDS: dict[str, Callable[[int], Any]] = {**POLICIES, "wide": lambda seed: tiny_policy(seed, hidden=64)}
Result = tuple[dict[str, torch.Tensor], list[dict[str, float]]]


def supervised(model: torch.nn.Module, loss: Any, weight: Callable[[Sequence[int]], float]) -> list[dict[str, float]]:
    """Four steps over 11 rows in batches of 5, of which the last of an epoch has 1: ranks without rows of their own."""
    history: list[dict[str, float]] = []
    config = TrainingConfig(epochs=1, batch=5, microbatch=2, learning_rate=1e-2, max_grad_norm=0.5, weight_decay=0.1)
    batches = LengthBucketedBatches([len(row) for row in CHOSEN], seed=0, rows_per_batch=5)
    train(model, loss, batches, 4, config, lambda step, metrics: history.append(metrics), weight)
    return history


def sft() -> Result:
    policy = tiny_policy(1)
    rows = [EncodedSequence(prompt, response) for prompt, response in zip(PROMPTS, CHOSEN, strict=True)]

    def loss(indices: Sequence[int]) -> Any:
        return *sft_loss(policy, [rows[i] for i in indices]), {}

    history = supervised(policy.model, loss, lambda indices: float(sum(len(CHOSEN[i]) for i in indices)))
    return trainable_state(policy.model), [*history, {"nll": mean_nll(policy, rows, batch=2)}]


def reward_model() -> Result:
    model = tiny_scalar_model(1)
    sides = [
        [SegmentedSequence(EncodedSequence(p, r), [len(r) - 1]) for p, r in zip(PROMPTS, rows, strict=True)]
        for rows in (CHOSEN, REJECTED)
    ]

    def loss(indices: Sequence[int]) -> Any:
        return pair_loss(model, *([side[i] for i in indices] for side in sides), 0)

    history = supervised(model, loss, lambda indices: float(len(indices)))
    scores, segments = score_all(model, sides[0], 0, batch=2)
    assert all(len(row) == 1 for row in segments)
    return trainable_state(model), [*history, {str(i): value for i, value in enumerate(scores.tolist())}]


def policy_run(
    kind: str, iterations: int = 2, policy_kind: str = "decoder", engine: str = "loop", **settings: Any
) -> PolicyOptimiser:
    policy, reference = KINDS[policy_kind](1), KINDS[policy_kind](3)
    reference.model.requires_grad_(False)
    config = optimiser_config(
        kind, iterations=iterations, actor_lr=1e-3, max_grad_norm=0.5, rollout_batch=8, microbatch=2,
        **{"minibatch": 4, "epochs": 2, **settings},
    )  # fmt: skip
    prompts = [EncodedPrompt(row, str(row), {"id": str(row)}) for row in PROMPTS]
    source = OnPolicy(
        policy, reference, ToyTokenizer(), prompts, Sampling(6, engine=engine),  # type: ignore[arg-type]
        rollout_batch=8, group_size=config.group_size, microbatch=3, generation_batch=5,
    )  # fmt: skip
    scorer = RewardModelScorer(tiny_scalar_model(5), build_segmenter({"kind": "ngram", "n": 2}), microbatch=3)
    shaping = build_shaping({"kind": "meanstd"})
    component = Component("model", scorer, CREDITS["segment_end"], NoNormaliser(), shaping)
    critic: ScalarModel | None = tiny_critic(policy_kind, 2) if config.has_critic else None
    return PolicyOptimiser(policy, Reward((component,)), source, config, 0, critic=critic)


def trained(run: PolicyOptimiser, history: list[dict[str, float]]) -> Result:
    run.train(lambda step, metrics, experience: history.append(metrics))
    state = trainable_state(run.policy.model)
    if run.critic is not None:
        state |= {f"critic.{name}": value for name, value in trainable_state(run.critic).items()}
    state["generator"] = run.generator.get_state()[:64]
    return state, history


def ppo() -> Result:
    return trained(policy_run("ppo", critic_lr=1e-3, kl_coef=0.1, kl_target=0.5), [])


def ppo_encoder_decoder() -> Result:
    return trained(policy_run("ppo", 1, policy_kind="encoder_decoder", critic_lr=1e-3, epochs=1, minibatch=8), [])


def grpo() -> Result:
    return trained(policy_run("grpo", group_size=4, replay=1), [])


def grpo_wide(engine: str = "loop") -> Result:
    return trained(policy_run("grpo", group_size=4, policy_kind="wide", engine=engine), [])


def grpo_by_vllm() -> Result:
    """As `grpo_wide`, sampled by a vLLM process of each rank; the second iteration samples by updated weights."""
    return grpo_wide("vllm")


def online_dpo() -> Result:
    return trained(policy_run("online_dpo"), [])


def ppo_resumed() -> Result:
    """As `ppo`, interrupted after the first iteration and gone on with in new objects."""
    settings: dict[str, Any] = {"critic_lr": 1e-3, "kl_coef": 0.1, "kl_target": 0.5}
    first = policy_run("ppo", **settings)
    history = [first.iterate()[0]]
    box = [first.state_dict()]
    if distributed.world_size() > 1:  # what rank 0 would write and every rank read
        torch.distributed.broadcast_object_list(box, src=0)
    second = policy_run("ppo", **settings)
    second.load_state_dict(box[0])
    return trained(second, history)


RUNS: dict[str, Callable[[], Result]] = {
    run.__name__: run
    for run in (
        sft,
        reward_model,
        ppo,
        ppo_encoder_decoder,
        grpo,
        grpo_wide,
        grpo_by_vllm,
        online_dpo,
        ppo_resumed,
    )
}


def main() -> None:
    """Runs what is named under each configuration; rank 0 writes weights and metrics, and the ranks must agree."""
    torch.set_num_threads(1)
    distributed.join(60)
    results: dict[str, dict[str, Any]] = {}
    for config, settings in json.loads(sys.argv[3]).items():
        use_deepspeed(settings)
        found = results[config] = {}
        for name in sys.argv[1].split(","):
            state, history = RUNS[name]()
            found[name] = {"weights": {key: value.cpu().clone() for key, value in state.items()}, "history": history}
            sums = distributed.gathered([float(value.double().sum()) for value in state.values()])
            assert all(row == sums[0] for row in sums), f"{name}: the ranks have different weights"
            assert all(row == history for row in distributed.gathered(history)), f"{name}: the ranks' metrics differ"
    if not distributed.rank():
        torch.save(results, Path(sys.argv[2]))
    distributed.leave()


if __name__ == "__main__":
    main()
