"""Settings of one policy optimiser, or supervised recipe, at one scale: params/scales/<scale>/policy/<it>.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rlhf_core.errors import RecipeError
from rlhf_core.models.sampling import Sampling
from rlhf_core.policy_optimisation.config import OptimiserConfig, composed
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.supervised.recipes import RECIPES as SUPERVISED
from rlhf_core.supervised.recipes import SupervisedRecipe
from tasks.settings import overrides, typed


@dataclass(frozen=True)
class PolicyScale:
    """Settings of one optimiser at one scale.

    Args:
        optimiser: `OptimiserConfig`, or `TrainingConfig` and a supervised recipe's own settings; a row's `optimiser`
            overrides single values, by numbers or as `{times: 2}` of the scale's.
        sampling: `Sampling` of rollouts; supervised recipes and fixed samples have none.
        prompts: training prompts that are used, from the first on, None for all.
        checkpoints: parts into which evaluation while training divides the run.
        checkpoint_every: iterations between evaluations instead, so that a longer run has more of them.
        checkpoint_prompts: prompts of each such evaluation, 0 for none.
        checkpoint_proxy: whether evaluations read the proxy reward and the preference score, too.
        peak: whether the weights of the evaluation with the highest win rate are kept and evaluated at the end.
        rollout_samples: rollouts kept of the first and the last iteration.
        prompt_limit: most tokens of a rollout's prompt, None for the data's own limit.
        alarm: `AlarmSettings` of the hacking alarm; a row's `alarm` overrides single values.
        generation_batch: responses sampled at a time, None for a whole rollout batch; what the cache has room for.
        measure_hacking: write hacking.jsonl and the metrics of `rlhf_core.evaluation.overoptimisation`.
        imitation: `ImitationSettings` of rows that imitate beside their reward.
    """

    optimiser: Mapping[str, Any]
    sampling: Mapping[str, Any] | None = None
    prompts: int | None = None
    checkpoints: int = 1
    checkpoint_every: int | None = None
    checkpoint_prompts: int = 0
    checkpoint_proxy: bool = False
    peak: bool = False
    rollout_samples: int = 0
    prompt_limit: int | None = None
    alarm: Mapping[str, Any] = field(default_factory=dict)
    generation_batch: int | None = None
    measure_hacking: bool = False
    imitation: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.measure_hacking and self.checkpoint_prompts < 1:
            raise RecipeError("measure_hacking compares evaluations while training: set checkpoint_prompts")
        if self.generation_batch is not None and self.generation_batch < 1:
            raise RecipeError(f"generation_batch is {self.generation_batch}; it must be at least 1, or null")
        for name, least in {"checkpoints": 1, "checkpoint_prompts": 0, "rollout_samples": 0}.items():
            if getattr(self, name) < least:
                raise RecipeError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name in ("prompts", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RecipeError(f"{name} is {value}; it must be at least 1, or null")
        if (self.peak or self.checkpoint_proxy) and not self.checkpoint_prompts:
            raise RecipeError("peak and checkpoint_proxy read evaluations while training: set checkpoint_prompts")

    def evaluated(self, step: int, iterations: int, *, last: bool) -> bool:
        """Whether the policy is evaluated after a step; after the `last` one the stage does so anyway."""
        every = self.checkpoint_every or max(1, iterations // self.checkpoints)
        return self.checkpoint_prompts > 0 and (step % every == 0 if step < iterations else last)

    def optimiser_config(self, optimiser: Mapping[str, Any], where: str) -> OptimiserConfig:
        kind = str(optimiser["kind"])
        try:
            made = composed(kind, {**self.optimiser, **overrides(optimiser, self.optimiser)})
        except RecipeError as error:
            raise RecipeError(f"{where}: {kind}: {error}") from None
        return typed(OptimiserConfig, made, f"{where}: {kind}")

    def sampling_config(self, where: str) -> Sampling:
        return typed(Sampling, self.sampling or {}, f"{where}: sampling")

    def supervised_config(self, optimiser: Mapping[str, Any], where: str) -> tuple[TrainingConfig, SupervisedRecipe]:
        """Training settings and what is learned."""
        kind = str(optimiser["kind"])
        options = {**self.optimiser, **overrides(optimiser, self.optimiser)}
        own = {f.name for f in fields(SUPERVISED[kind])} & set(options)
        recipe: SupervisedRecipe = typed(
            SUPERVISED[kind], {name: options.pop(name) for name in own}, f"{where}: {kind}"
        )
        return typed(TrainingConfig, options, f"{where}: {kind}"), recipe
