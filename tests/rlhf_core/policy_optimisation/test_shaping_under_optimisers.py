"""Effect of a shaping under each optimiser: what GRPO cancels, online DPO never sees and PPO's critic is given.

The same batches go through the whole reward and the optimiser's own experience. Source: PAR, §5, §11 and Theorem 13.1.
"""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import pytest
import torch
from tiny_models import ToyTokenizer, random_rows, tiny_critic, tiny_policy
from torch import Tensor

from rlhf_core.credit import CREDITS
from rlhf_core.models.policy import Policy
from rlhf_core.models.sampling import Sampling
from rlhf_core.policy_optimisation.config import optimiser_config
from rlhf_core.policy_optimisation.experience import EncodedPrompt, Experience
from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
from rlhf_core.policy_optimisation.sources import OnPolicy
from rlhf_core.rewards.composition import Component, Reward
from rlhf_core.rollout import RolloutBatch
from rlhf_core.shaping.choices import build_shaping, shaping_class
from rlhf_core.signals import Sequence

PROMPTS = random_rows(1, [3, 5, 1, 4, 2, 2, 6, 3], ended=False)
SIZES: dict[str, Any] = {
    "iterations": 5, "rollout_batch": 8, "minibatch": 4, "microbatch": 4, "epochs": 1, "actor_lr": 1e-3,
}  # fmt: skip
OPTIMISERS: dict[str, dict[str, Any]] = {
    "grpo": {"group_size": 4},
    "online_dpo": {},
    "ppo": {"critic_lr": 1e-3, "kl_coef": 0.0, "value_target": "monte_carlo"},
}


class Proxy:
    """One value per response, of the size of `scale`."""

    gives = Sequence

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def score(self, batch: RolloutBatch) -> Sequence:
        ids = batch.responses.ids.float() * batch.responses.mask
        return Sequence(self.scale * (ids.sum(dim=1) / batch.responses.lengths.clamp(min=1) / 12 - 2))


@cache
def policy() -> Policy:
    return tiny_policy(1)


def run_of(optimiser: str, shaping: str | None, scale: float = 1.0, seed: int = 0, **settings: Any) -> PolicyOptimiser:
    config = optimiser_config(optimiser, **{**SIZES, **OPTIMISERS[optimiser], **settings})
    learner = copy.deepcopy(policy())
    prompts = [EncodedPrompt(row, str(row), {"id": str(i)}) for i, row in enumerate(PROMPTS)]
    tokenizer: Any = ToyTokenizer()
    source = OnPolicy(
        learner, policy(), tokenizer, prompts, Sampling(5),
        rollout_batch=config.rollout_batch, microbatch=4, group_size=config.group_size, seed=seed,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    references = {str(i): torch.randn(3, generator=generator) for i in range(len(PROMPTS))}
    spec = {"kind": shaping} | ({"references": 3} if shaping and shaping_class(shaping).centred else {})
    shaped = None if shaping is None else build_shaping(spec)
    component = Component("proxy", Proxy(scale), CREDITS["last_token"], shaping=shaped, references=references)
    critic = tiny_critic("decoder", 2) if config.has_critic else None
    return PolicyOptimiser(learner, Reward((component,)), source, config, seed, critic=critic)


def experiences(run: PolicyOptimiser, count: int = 4) -> list[Experience]:
    """Batches of the untrained policy, the same for every run."""
    return [run.experience(run.source.next(run.generator)) for _ in range(count)]


def advantages(shaping: str | None) -> list[Tensor]:
    return [made.advantages for made in experiences(run_of("grpo", shaping))]


@pytest.mark.parametrize("shaping", ["meanstd", "minmax", "centered"])
def test_grpo_cancels_an_affine_shaping(shaping: str) -> None:
    for shaped, plain in zip(advantages(shaping), advantages(None), strict=True):
        torch.testing.assert_close(shaped, plain, atol=1e-5, rtol=0)
        assert float(plain.abs().max()) > 0.5


@pytest.mark.parametrize("shaping", ["par", "clip", "poly", "length_penalty"])
def test_online_dpo_trains_the_same_policy_with_any_shaping_and_without(shaping: str) -> None:
    trained = []
    for kind in (shaping, None):
        run = run_of("online_dpo", kind)
        run.train(lambda *_: None)
        trained.append(run.policy.model.state_dict())
    assert all(torch.equal(trained[0][name], value) for name, value in trained[1].items())
    assert any(not torch.equal(trained[0][name], value) for name, value in policy().model.state_dict().items())


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.5])
def test_the_returns_of_a_terminal_par_reward_are_bounded_whatever_the_proxy(gamma: float) -> None:
    """Var[G] <= 1/4 for a terminal reward without KL, at every token; without shaping it is far above."""
    spread = {}
    for shaping in ("par", None):
        made = experiences(run_of("ppo", shaping, scale=100.0, gamma=gamma))
        returns = torch.cat([m.returns[m.batch.responses.mask] for m in made]).double()
        spread[shaping] = float(returns.var(correction=0))
        if shaping == "par":
            assert float(returns.min()) >= 0.0
            assert float(returns.max()) <= 1.0
    assert spread["par"] <= 0.25
    assert spread[None] > 10.0


@pytest.mark.parametrize("shaping", ["minmax", "meanstd", "clip"])
def test_a_run_with_running_statistics_and_a_buffer_resumes_bitwise(shaping: str) -> None:
    """Interrupted after the buffer is full and has been drawn from; the new objects know nothing of the old."""
    settings: dict[str, Any] = {"replay": 2, "iterations": 6}
    straight, history = run_of("ppo", shaping, **settings), []
    straight.train(lambda step, metrics, _: history.append((step, metrics)))
    first = run_of("ppo", shaping, **settings)
    for _ in range(4):
        first.iterate()
    state = first.state_dict()
    assert len(state["replay"]["pool"]) == 2
    statistics = json.loads(json.dumps(state["reward"]))
    resumed, after = run_of("ppo", shaping, seed=9, **settings), []
    resumed.load_state_dict({**state, "reward": statistics})
    resumed.train(lambda step, metrics, _: after.append((step, metrics)))
    assert after == history[4:]
    for name, value in straight.policy.model.state_dict().items():
        assert torch.equal(resumed.policy.model.state_dict()[name], value), name
    assert resumed.state_dict()["reward"] == straight.state_dict()["reward"]
    (counted,) = straight.state_dict()["reward"]["proxy"]["shaping"].values()
    assert counted["count"] == 6 * 8
