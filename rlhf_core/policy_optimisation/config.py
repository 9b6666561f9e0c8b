"""Optimisers as compositions: one settings class, and each algorithm as the few settings that make it.

Advantage estimator x objective x value loss x KL placement x rollout source. `OPTIMISERS` holds what each named
algorithm is made of; a scale says how big, a recipe overrides single values. What contradicts is refused by name, as
the entries of the tables declare it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from itertools import takewhile
from typing import Annotated, Any

from rlhf_core.choices import Choices
from rlhf_core.errors import RecipeError, hint
from rlhf_core.policy_optimisation.advantages import ADVANTAGES, GROUP_STDS, VALUE_TARGETS
from rlhf_core.policy_optimisation.kl import KL_ESTIMATORS
from rlhf_core.policy_optimisation.objectives import LOSS_AVERAGES, OBJECTIVES
from rlhf_core.schedule import SCHEDULES, check_final_share
from rlhf_core.shaping.choices import Chain
from rlhf_core.shaping.steps import Elementwise
from rlhf_core.typed import Checked, above, at_least, between, check_given, one_of, typed

#: Rollouts are sampled from the policy, or are samples of the reference that were drawn once.
SOURCES = ("on_policy", "fixed")
#: A critic starts as the SFT model with a new value head, or as the reward model.
CRITICS = ("sft", "reward_model", "none")
#: The KL penalty is subtracted from each token's reward, or added to the policy's loss.
KL_PLACEMENTS = ("reward", "loss", "none")
#: Advantages are whitened over the whole rollout batch before updates, or over each minibatch.
WHITENINGS = ("rollout", "minibatch", "none")
#: Settings that nothing reads where a field is 'none'.
READ_UNLESS_NONE = {
    "critic": ("critic_lr", "critic_warmup", "value_clip", "value_coef", "value_target"),
    "kl_placement": ("kl_coef", "kl_estimator", "kl_target", "kl_horizon"),
}

Count = Annotated[int, at_least(1)]
Positive = Annotated[float, above(0)]
NotNegative = Annotated[float, at_least(0)]
Share = Annotated[float, between(0, 1)]
Beta = Annotated[float, between(0, 1, open_high=True)]


@dataclass(frozen=True)
class OptimiserConfig(Checked):
    """Settings of a policy optimisation; the defaults are PPO's as Segment has it.

    Args:
        iterations: policy iterations (rollout batches).
        rollout_batch: responses per iteration.
        minibatch: responses per optimiser step.
        microbatch: longest responses that fit into a forward pass; of shorter ones it takes as many tokens.
        epochs: passes over each rollout batch.
        actor_lr, critic_lr: Adam learning rates; the second with a critic only.
        lr_warmup: share of the iterations in which the rates rise from 0.
        lr_schedule: constant, linear or cosine decay to `lr_final_share` of the peak after that.
        lr_final_share: share of the peak rate where the decay ends.
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
        importance_cap: largest weight of a token's loss that corrects the engine's log-probabilities by the policy's;
            None weighs no token.
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
        gradient_checkpointing: whether layers are computed again in the backward pass; None where they do not fit else.
    """

    iterations: Count
    rollout_batch: Count
    minibatch: Count
    microbatch: Count
    epochs: Count
    actor_lr: Positive
    critic_lr: Positive | None = None
    critic_warmup: Annotated[int, at_least(0)] = 0
    gamma: Share = 1.0
    lam: Share = 0.95
    clip: Positive = 0.2
    value_clip: Positive | None = 0.25
    kl_coef: NotNegative = 0.01
    max_grad_norm: Positive = 1.0
    adam_betas: tuple[Beta, Beta] = (0.9, 0.95)
    lr_warmup: Share = 0.0
    lr_schedule: Annotated[str, one_of(SCHEDULES)] = "constant"
    lr_final_share: Share = 0.0
    source: Annotated[str, one_of(SOURCES)] = "on_policy"
    group_size: Count = 1
    advantage: Annotated[str, one_of(ADVANTAGES)] = "gae"
    group_std: Annotated[str, one_of(GROUP_STDS)] = "population"
    whitening: Annotated[str, one_of(WHITENINGS)] = "rollout"
    objective: Annotated[str, one_of(OBJECTIVES)] = "clipped_surrogate"
    importance_cap: Positive | None = None
    dpo_beta: Positive = 0.1
    dpo_min_margin: NotNegative = 0.0
    loss_average: Annotated[str, one_of(LOSS_AVERAGES)] = "tokens"
    critic: Annotated[str, one_of(CRITICS)] = "sft"
    value_target: Annotated[str, one_of(VALUE_TARGETS)] = "advantage_plus_value"
    value_coef: Positive = 0.5
    kl_placement: Annotated[str, one_of(KL_PLACEMENTS)] = "reward"
    kl_estimator: Annotated[str, one_of(KL_ESTIMATORS)] = "k1"
    kl_target: Positive | None = None
    kl_horizon: Count = 10_000
    replay: Annotated[int, at_least(0)] = 0
    gradient_checkpointing: bool | None = None

    def _check_together(self) -> None:
        check_final_share(self.lr_schedule, self.lr_final_share, "lr_schedule", "lr_final_share")
        self._check_sizes()
        self._check_composition()

    def _check_sizes(self) -> None:
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

    def _check_composition(self) -> None:
        estimator = ADVANTAGES[self.advantage]
        if self.has_critic != estimator.needs_critic:
            raise RecipeError(
                f"advantage '{self.advantage}' with critic '{self.critic}': "
                + ("it needs a critic" if estimator.needs_critic else "only an advantage that needs a critic reads one")
                + "; 'gae' needs a critic (sft, reward_model), the others have critic: none"
            )
        if self.has_critic != (self.critic_lr is not None):
            remedy = "state critic_lr" if self.has_critic else "leave critic_lr out"
            raise RecipeError(f"critic is '{self.critic}' and critic_lr {self.critic_lr}: {remedy}")
        if self.critic_warmup >= self.iterations:
            raise RecipeError(
                f"critic_warmup is {self.critic_warmup} with {self.iterations} iterations: the policy would never be "
                "trained; lower critic_warmup or raise iterations"
            )
        if self.critic_warmup and not self.has_critic:
            raise RecipeError(f"critic_warmup is {self.critic_warmup}, but critic is 'none'")
        if estimator.compares and self.group_size < 2:
            raise RecipeError(
                f"advantage '{self.advantage}' compares responses to the same prompt, but group_size is "
                f"{self.group_size}; it must be at least 2"
            )
        OBJECTIVES[self.objective].check(self)
        if self.importance_cap is not None and self.fixed_samples:
            raise RecipeError(
                f"importance_cap is {self.importance_cap:g}, but source is '{self.source}': these samples are the "
                "reference's, and no engine's log-probabilities are known; leave it out"
            )
        if self.kl_placement == "loss" and not KL_ESTIMATORS[self.kl_estimator].has_gradient:
            usable = " or ".join(name for name in KL_ESTIMATORS if KL_ESTIMATORS[name].has_gradient)
            raise RecipeError(
                f"kl_placement '{self.kl_placement}' with kl_estimator '{self.kl_estimator}': its expected gradient is "
                f"0, it would penalise nothing; use {usable}, or kl_placement 'reward'"
            )
        if self.kl_target is not None and (self.kl_placement == "none" or self.kl_coef == 0):
            raise RecipeError(
                f"kl_target {self.kl_target} adapts a penalty, but kl_placement is '{self.kl_placement}' and kl_coef "
                f"{self.kl_coef}"
            )

    @property
    def has_critic(self) -> bool:
        return self.critic != "none"

    @property
    def fixed_samples(self) -> bool:
        return self.source == "fixed"


_NO_CRITIC = {"critic": "none"}
_PLAIN = {**_NO_CRITIC, "advantage": "token_reward", "whitening": "none", "kl_placement": "none"}

#: Settings of each algorithm that differ from PPO's.
OPTIMISERS: Choices[Mapping[str, Any]] = Choices(
    "optimiser",
    {
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
    },
)


def _reads(field: str, choice: str) -> tuple[str, ...]:
    """Returns the settings that a field's choice reads, of those that not all of its choices read."""
    if field in READ_UNLESS_NONE:
        return () if choice == "none" else READ_UNLESS_NONE[field]
    return ADVANTAGES[choice].reads if field == "advantage" else OBJECTIVES[choice].reads


def _unread(setting: str, made: Mapping[str, Any]) -> str | None:
    """Returns the reason why a composition never reads a setting, as its choices declare; None if it does."""
    choices = {
        "advantage": (*ADVANTAGES,),
        "objective": (*OBJECTIVES,),
        "critic": CRITICS,
        "kl_placement": KL_PLACEMENTS,
    }
    readers = [field for field, names in choices.items() if any(setting in _reads(field, name) for name in names)]
    if readers and not any(setting in _reads(field, made[field]) for field in readers):
        return " and ".join(f"{field} is '{made[field]}'" for field in readers)
    if setting == "kl_horizon" and made.get("kl_target") is None:
        return "kl_target is not set, so kl_coef is fixed"
    return None


def composed(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all settings of an algorithm of `OPTIMISERS`: what it is made of, overridden by those given.

    Raises:
        RecipeError: an unknown kind or setting, or a setting that the composition never reads.
    """
    own = OPTIMISERS[kind]
    defaults = {field.name: field.default for field in fields(OptimiserConfig)}
    for name in settings:
        if name not in defaults:
            raise RecipeError(f"unknown setting '{name}' of optimiser '{kind}'{hint(name, defaults)}")
    result: dict[str, Any] = {**own, **settings}
    whole = {**defaults, **result}
    check_given(OptimiserConfig, {name: whole[name] for name in ("advantage", "objective", *READ_UNLESS_NONE)})
    for name in settings:
        reason = _unread(name, whole)
        if reason is not None and settings[name] is None:
            del result[name]  # a row takes back what its scale states for all rows
            result |= {name: own[name]} if name in own else {}
        elif reason is not None:
            raise RecipeError(
                f"optimiser '{kind}' does not read '{name}': {reason}; leave it out, or set it to null in the row"
            )
    return result


def optimiser_config(kind: str, **settings: Any) -> OptimiserConfig:
    """Returns the settings of a named algorithm, checked; see `composed` and `OptimiserConfig`."""
    return typed(OptimiserConfig, composed(kind, settings), f"optimiser '{kind}'")


def useless_combination(shaping: Chain | None, optimiser: str | Mapping[str, Any]) -> str | None:
    """Returns the reason why a shaping, or its last steps, change nothing for an optimiser; None if they matter.

    GRPO normalises a reward of one value per response within its group; online DPO orders its pairs by the raw proxy,
    so that no step of any shaping reaches it. The shaping is that of the only component; the optimiser a recipe's, or
    its kind. Source: PAR, §5 and §11.
    """
    given = {"kind": optimiser} if isinstance(optimiser, str) else optimiser
    made = {**OPTIMISERS.get(str(given["kind"]), {}), **given}
    objective = OBJECTIVES[made.get("objective", OptimiserConfig.objective)]
    estimator = ADVANTAGES[made.get("advantage", OptimiserConfig.advantage)]
    if shaping is None or str(given["kind"]) not in OPTIMISERS:
        return None
    unseen: Callable[[Elementwise], bool]
    if objective.ignores_size is not None:
        why, unseen = objective.ignores_size, lambda step: True
    elif estimator.cancels is not None and made.get("group_std") != "none":
        why, unseen = estimator.cancels, lambda step: step.affine
    else:
        return None
    last = list(takewhile(lambda step: unseen(step[1]), reversed(shaping.steps)))
    if not last:
        return None
    names = ", ".join(kind for kind, _ in reversed(last))
    return f"shaping '{names}' {why}: training is the same without it"
