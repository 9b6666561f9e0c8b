"""Optimisers as compositions: one settings class, and each algorithm as the few settings that make it.

Advantage estimator x objective x value loss x KL placement x rollout source. `OPTIMISERS` holds what each named
algorithm is made of; a scale says how big, a recipe overrides single values. What contradicts is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from rlhf_core.errors import RecipeError
from rlhf_core.schedule import SCHEDULES

ADVANTAGES = ("gae", "reward_to_go", "group_relative", "leave_one_out", "token_reward")
OBJECTIVES = ("clipped_surrogate", "policy_gradient", "rlmec", "online_dpo")
#: Each word setting's known values.
CHOICES: dict[str, tuple[str, ...]] = {
    "advantage": ADVANTAGES,
    "objective": OBJECTIVES,
    "whitening": ("rollout", "minibatch", "none"),
    "critic": ("sft", "reward_model", "none"),
    "value_target": ("advantage_plus_value", "monte_carlo"),
    "kl_placement": ("reward", "loss", "none"),
    "kl_estimator": ("k1", "k2", "k3"),
    "group_std": ("population", "sample", "none"),
    "loss_average": ("tokens", "responses"),
    "source": ("on_policy", "fixed"),
    "lr_schedule": SCHEDULES,
}


@dataclass(frozen=True)
class OptimiserConfig:
    """Settings of a policy optimisation; the defaults are PPO's as Segment has it.

    Args:
        iterations: policy iterations (rollout batches).
        rollout_batch: responses per iteration.
        minibatch: responses per optimiser step.
        microbatch: responses per forward pass.
        epochs: passes over each rollout batch.
        actor_lr, critic_lr: Adam learning rates; the second with a critic only.
        lr_warmup: share of the iterations in which the rates rise from 0.
        lr_schedule: constant, linear or cosine decay to 0 after that.
        max_grad_norm: gradient clipping norm, actor and critic each.
        adam_betas: Adam's betas.
        source: on_policy samples from the policy; fixed goes through samples of the reference.
        group_size: responses per prompt.
        advantage: gae, reward_to_go, group_relative, leave_one_out, or token_reward (the token's own reward).
        gamma, lam: discount and GAE's lambda.
        group_std: of group_relative: population, sample or none.
        whitening: of advantages over the rollout batch, over each minibatch, or none.
        objective: clipped_surrogate, policy_gradient (REINFORCE; A2C with a critic), rlmec or online_dpo.
        clip: epsilon of the policy ratio.
        dpo_beta: temperature of online_dpo.
        dpo_min_margin: online_dpo skips pairs whose raw proxies differ by less; 0 skips none.
        loss_average: over all tokens of a minibatch, or over tokens of a response and then over responses.
        critic: starts from sft or reward_model, or none.
        critic_warmup: iterations in which only the critic learns.
        value_target: advantage_plus_value (before whitening), or the monte_carlo return.
        value_clip: clip of the value change, None for none.
        value_coef: factor on the squared error.
        kl_placement: the penalty is in the reward, in the loss, or none.
        kl_estimator: k1, k2 or k3.
        kl_coef: beta of the penalty, where an adaptive one starts.
        kl_target: nats per response that an adaptive beta steers to, None for a fixed one.
        kl_horizon: responses over which it does.
        replay: rollout batches that a buffer holds, 0 for none.
    """

    iterations: int
    rollout_batch: int
    minibatch: int
    microbatch: int
    epochs: int
    actor_lr: float
    critic_lr: float | None = None
    critic_warmup: int = 0
    gamma: float = 1.0
    lam: float = 0.95
    clip: float = 0.2
    value_clip: float | None = 0.25
    kl_coef: float = 0.01
    max_grad_norm: float = 1.0
    adam_betas: tuple[float, float] = (0.9, 0.95)
    lr_warmup: float = 0.0
    lr_schedule: str = "constant"
    source: str = "on_policy"
    group_size: int = 1
    advantage: str = "gae"
    group_std: str = "population"
    whitening: str = "rollout"
    objective: str = "clipped_surrogate"
    dpo_beta: float = 0.1
    dpo_min_margin: float = 0.0
    loss_average: str = "tokens"
    critic: str = "sft"
    value_target: str = "advantage_plus_value"
    value_coef: float = 0.5
    kl_placement: str = "reward"
    kl_estimator: str = "k1"
    kl_target: float | None = None
    kl_horizon: int = 10_000
    replay: int = 0

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise RecipeError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}")
        self._check_sizes()
        self._check_numbers()
        self._check_composition()

    def _check_sizes(self) -> None:
        for name in ("iterations", "rollout_batch", "minibatch", "microbatch", "epochs", "group_size", "kl_horizon"):
            if getattr(self, name) < 1:
                raise RecipeError(f"setting '{name}' is {getattr(self, name)}, it must be at least 1")
        if self.rollout_batch % self.minibatch:
            raise RecipeError(
                f"rollout_batch {self.rollout_batch} is not a multiple of minibatch {self.minibatch}; "
                "every response must be trained on equally often"
            )
        if self.rollout_batch % self.group_size:
            raise RecipeError(
                f"rollout_batch {self.rollout_batch} is not a multiple of group_size {self.group_size}; it counts "
                "responses, and every prompt of it is answered group_size times"
            )
        if self.replay and self.replay >= self.iterations:
            raise RecipeError(
                f"replay {self.replay} with {self.iterations} iterations: the first {self.replay} batches only fill "
                "the buffer, so nothing would ever be trained; lower replay or raise iterations"
            )
        if self.replay < 0 or self.critic_warmup < 0:
            raise RecipeError(f"replay is {self.replay} and critic_warmup {self.critic_warmup}; neither is below 0")

    def _check_numbers(self) -> None:
        positive = {"actor_lr": self.actor_lr, "dpo_beta": self.dpo_beta, "max_grad_norm": self.max_grad_norm}
        positive |= {"clip": self.clip, "value_coef": self.value_coef}
        positive |= {} if self.critic_lr is None else {"critic_lr": self.critic_lr}
        positive |= {} if self.value_clip is None else {"value_clip": self.value_clip}
        positive |= {} if self.kl_target is None else {"kl_target": self.kl_target}
        for name, value in positive.items():
            if not (math.isfinite(value) and value > 0):
                raise RecipeError(f"setting '{name}' is {value}; it must be a finite number above 0")
        for name in ("gamma", "lam", "lr_warmup"):
            if not 0 <= getattr(self, name) <= 1:
                raise RecipeError(f"setting '{name}' is {getattr(self, name)}; it must lie in [0, 1]")
        for name in ("kl_coef", "dpo_min_margin"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise RecipeError(f"setting '{name}' is {value}; it must be a finite number, at least 0")

    def _check_composition(self) -> None:
        if self.has_critic != (self.advantage == "gae"):
            raise RecipeError(
                f"advantage '{self.advantage}' with critic '{self.critic}': 'gae' needs a critic ('sft' or "
                "'reward_model') and nothing else reads one (critic: none)"
            )
        if self.has_critic != (self.critic_lr is not None):
            remedy = "state critic_lr" if self.has_critic else "leave critic_lr out"
            raise RecipeError(f"critic is '{self.critic}' and critic_lr {self.critic_lr}: {remedy}")
        if self.critic_warmup and not self.has_critic:
            raise RecipeError(f"critic_warmup is {self.critic_warmup}, but critic is 'none'")
        if self.advantage in ("group_relative", "leave_one_out") and self.group_size < 2:
            raise RecipeError(
                f"advantage '{self.advantage}' compares responses to the same prompt, but group_size is "
                f"{self.group_size}; it must be at least 2"
            )
        if self.objective == "online_dpo":
            self._check_online_dpo()
        if self.objective == "rlmec" and (self.advantage, self.whitening) != ("token_reward", "none"):
            raise RecipeError(
                "objective 'rlmec' weighs tokens by their own rewards: it needs advantage 'token_reward' and whitening "
                f"'none', not '{self.advantage}' and '{self.whitening}'"
            )
        if self.kl_placement == "loss" and self.kl_estimator == "k1":
            raise RecipeError(
                "kl_placement 'loss' with kl_estimator 'k1': the expected gradient of k1 is 0, it would penalise "
                "nothing; use k2 or k3, or kl_placement 'reward'"
            )
        if self.kl_target is not None and (self.kl_placement == "none" or self.kl_coef == 0):
            raise RecipeError(
                f"kl_target {self.kl_target} adapts a penalty, but kl_placement is '{self.kl_placement}' and kl_coef "
                f"{self.kl_coef}"
            )

    def _check_online_dpo(self) -> None:
        if self.group_size != 2 or self.minibatch % 2:
            raise RecipeError(
                f"objective 'online_dpo' learns from pairs: group_size must be 2 and minibatch even, not "
                f"{self.group_size} and {self.minibatch}"
            )
        if self.kl_placement != "none" or self.whitening != "none" or self.advantage != "token_reward":
            raise RecipeError(
                "objective 'online_dpo' holds the policy to the reference by dpo_beta and reads no advantage: "
                "kl_placement and whitening must be 'none' and advantage 'token_reward', not "
                f"'{self.kl_placement}', '{self.whitening}' and '{self.advantage}'"
            )

    @property
    def has_critic(self) -> bool:
        return self.critic != "none"

    @property
    def kl_in_reward(self) -> bool:
        return self.kl_placement == "reward"

    @property
    def kl_in_loss(self) -> bool:
        return self.kl_placement == "loss"


_NO_CRITIC = {"critic": "none"}
_PLAIN = {**_NO_CRITIC, "advantage": "token_reward", "whitening": "none", "kl_placement": "none"}

#: Settings that say how big a run is, whatever the algorithm.
SIZES = ("iterations", "rollout_batch", "minibatch", "microbatch", "epochs", "actor_lr")

#: What each algorithm is made of, where it differs from PPO.
OPTIMISERS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "ppo_a2c": {"objective": "policy_gradient", "value_clip": None},
    "vanilla_ppo": _PLAIN,
    "reinforce_plus_plus": {**_NO_CRITIC, "advantage": "reward_to_go"},
    "grpo": {
        **_NO_CRITIC,
        "advantage": "group_relative",
        "group_size": 5,
        "whitening": "none",
        "kl_placement": "loss",
        "kl_estimator": "k3",
        "loss_average": "responses",
    },
    "rloo": {
        **_NO_CRITIC,
        "advantage": "leave_one_out",
        "group_size": 4,
        "whitening": "none",
        "objective": "policy_gradient",
    },
    "online_dpo": {**_PLAIN, "objective": "online_dpo", "group_size": 2},
    "rlmec": {**_PLAIN, "objective": "rlmec", "source": "fixed", "clip": 0.3},
}

#: Settings that only some compositions read: when, and what to say otherwise.
_READ: dict[str, tuple[Callable[[dict[str, Any]], bool], str]] = {
    **{
        name: (lambda made: made["critic"] != "none", "critic is 'none'")
        for name in ("critic_lr", "critic_warmup", "value_clip", "value_coef", "value_target", "lam")
    },
    **{
        name: (lambda made: made["kl_placement"] != "none", "kl_placement is 'none'")
        for name in ("kl_coef", "kl_estimator", "kl_target", "kl_horizon")
    },
    "clip": (lambda made: made["objective"] in ("clipped_surrogate", "rlmec"), "the objective has no ratio to clip"),
    **{
        name: (lambda made: made["objective"] == "online_dpo", "the objective is not 'online_dpo'")
        for name in ("dpo_beta", "dpo_min_margin")
    },
    "group_std": (lambda made: made["advantage"] == "group_relative", "the advantage is not 'group_relative'"),
    "gamma": (lambda made: made["advantage"] in ("gae", "reward_to_go"), "the advantage discounts nothing"),
    "kl_horizon": (lambda made: made.get("kl_target") is not None, "kl_target is not set, so kl_coef is fixed"),
}


def composed(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of an algorithm: what it is made of, overridden by those given.

    Args:
        kind: a name in `OPTIMISERS`.
        settings: sizes, rates and what differs from the algorithm's own composition.

    Raises:
        RecipeError: an unknown kind or setting, or a setting that the composition never reads.
    """
    if kind not in OPTIMISERS:
        near = get_close_matches(kind, OPTIMISERS, n=1)
        raise RecipeError(
            f"unknown optimiser '{kind}'; "
            + (f"did you mean '{near[0]}'?" if near else f"known: {', '.join(OPTIMISERS)}")
        )
    defaults = {field.name: field.default for field in fields(OptimiserConfig)}
    for name in settings:
        if name not in defaults:
            near = get_close_matches(name, defaults, n=1)
            raise RecipeError(
                f"unknown setting '{name}'" + (f"; did you mean '{near[0]}'?" if near else f" of optimiser '{kind}'")
            )
    result = {**OPTIMISERS[kind], **settings}
    whole = {**defaults, **result}
    for name in settings:
        read, reason = _READ.get(name, (None, ""))
        if read is not None and not read(whole):
            raise RecipeError(f"optimiser '{kind}' does not read '{name}': {reason}; leave it out")
    return result


def optimiser_config(kind: str, **settings: Any) -> OptimiserConfig:
    """The settings of a named algorithm, checked; see `composed` and `OptimiserConfig`."""
    made = composed(kind, settings)
    missing = [name for name in SIZES if name not in made]
    if missing:
        raise RecipeError(f"optimiser '{kind}' needs {', '.join(missing)}")
    return OptimiserConfig(**made)
