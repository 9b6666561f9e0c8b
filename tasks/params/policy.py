"""Settings of one policy optimiser, or supervised recipe, at one scale, and what a row's recipe makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any

from rlhf_core.data.solutions import ALL_SOLUTIONS, LearntSolutions
from rlhf_core.errors import RecipeError, hint, nearest
from rlhf_core.evaluation.hacking_alarm import AlarmSettings
from rlhf_core.models.sampling import Sampling
from rlhf_core.policy_optimisation.config import OptimiserConfig, composed
from rlhf_core.recipe import Recipe, reward_models
from rlhf_core.supervised.config import DURATIONS, ImitationSettings, TrainingConfig
from rlhf_core.supervised.recipes import GENERATED, SAMPLES, SupervisedRecipe
from rlhf_core.supervised.recipes import RECIPES as SUPERVISED
from rlhf_core.typed import Checked, Count, Size, check_given, init_fields, one_of, typed
from tasks.params.pages import overrides
from tasks.params.parts import Need, benchmark_part

#: Benchmarks on whose prompts a policy can be evaluated while it trains.
CHECKPOINT_BENCHMARKS = ("alpaca", "held_out")


@dataclass(frozen=True)
class PolicyScale(Checked):
    """Settings of one optimiser at one scale.

    Args:
        optimiser: `OptimiserConfig`, or `TrainingConfig` and a supervised recipe's own settings; a row's `optimiser`
            overrides single values, by numbers or as `{times: 2}` of the scale's.
        prompts: training prompts that are used, from the first on, None for all.
        checkpoints: parts into which evaluation while training divides the run.
        checkpoint_every: iterations between evaluations instead, so that a longer run has more of them.
        checkpoint_prompts: prompts of each such evaluation, 0 for none.
        checkpoint_benchmark: whose prompts they are.
        checkpoint_proxy: whether evaluations read the proxy reward and the preference score, too.
        peak: whether the weights of the evaluation with the highest win rate are kept and evaluated at the end.
        rollout_samples: rollouts kept of the first and the last iteration.
        prompt_limit: most tokens of a rollout's prompt, None for the data's own limit.
        alarm: `AlarmSettings` of the hacking alarm; a row's `alarm` overrides single values.
        generation_batch: responses sampled at a time, None for a whole rollout batch; what the cache has room for.
        measure_hacking: write hacking.jsonl and the metrics of `rlhf_core.evaluation.overoptimisation`.
        imitation: `ImitationSettings` of rows that imitate beside their reward.
        solutions: which sampled solutions rows with fixed samples learn from.
    """

    optimiser: Mapping[str, Any]
    sampling: Sampling | None = None
    prompts: Count | None = None
    checkpoints: Count = 1
    checkpoint_every: Count | None = None
    checkpoint_prompts: Size = 0
    checkpoint_benchmark: Annotated[str, one_of(CHECKPOINT_BENCHMARKS)] = "alpaca"
    checkpoint_proxy: bool = False
    peak: bool = False
    rollout_samples: Size = 0
    prompt_limit: Count | None = None
    alarm: Mapping[str, Any] = field(default_factory=dict)
    generation_batch: Count | None = None
    measure_hacking: bool = False
    imitation: Mapping[str, Any] = field(default_factory=dict)
    solutions: LearntSolutions = ALL_SOLUTIONS

    def _check_together(self) -> None:
        if self.measure_hacking and not self.checkpoint_prompts:
            raise RecipeError("measure_hacking compares evaluations while training: set checkpoint_prompts")
        if (self.peak or self.checkpoint_proxy) and not self.checkpoint_prompts:
            raise RecipeError("peak and checkpoint_proxy read evaluations while training: set checkpoint_prompts")
        check_given(AlarmSettings, self.alarm, "alarm.")
        check_given(ImitationSettings, self.imitation, "imitation.")
        self._check_optimiser()

    def _check_optimiser(self) -> None:
        """Refuses misspelt settings; a supervised recipe of the user's own may have others."""
        takers = [OptimiserConfig, TrainingConfig, *(cls for cls in SUPERVISED.values() if is_dataclass(cls))]
        known = {name: cls for cls in reversed(takers) for name in init_fields(cls)}
        for name in self.optimiser:
            if name not in known and nearest(name, known, cutoff=0.8):
                raise RecipeError(f"unknown setting 'optimiser.{name}'{hint(name, known)}")

    @property
    def needs(self) -> tuple[Need, ...]:
        name = self.checkpoint_benchmark
        return () if name == "alpaca" else (Need(benchmark_part(name), "checkpoint_benchmark", name),)

    def evaluated(self, step: int, iterations: int, *, last: bool) -> bool:
        """Returns whether the policy is evaluated after a step; after the `last` one the stage does so anyway."""
        every = self.checkpoint_every or max(1, iterations // self.checkpoints)
        return self.checkpoint_prompts > 0 and (step % every == 0 if step < iterations else last)

    def optimiser_config(self, optimiser: Mapping[str, Any], where: str) -> OptimiserConfig:
        """Returns the settings of an optimiser that learns from a reward, a row's own over the scale's."""
        kind = str(optimiser["kind"])
        try:
            made = composed(kind, {**self.optimiser, **overrides(optimiser, self.optimiser)})
        except RecipeError as error:
            raise RecipeError(f"{where}: {kind}: {error}") from None
        return typed(OptimiserConfig, made, f"{where}: {kind}")

    def sampling_config(self, where: str) -> Sampling:
        """Returns the sampling settings of rollouts.

        Raises:
            RecipeError: the settings do not say.
        """
        if self.sampling is None:
            raise RecipeError(f"{where}: 'sampling' is missing; state it, as in {{max_new_tokens: 64}}")
        return self.sampling

    def supervised_config(self, optimiser: Mapping[str, Any], where: str) -> tuple[TrainingConfig, SupervisedRecipe]:
        """Returns the training settings of a supervised recipe, and what is learned.

        A row's `updates` replace the scale's `epochs`, and the other way round.
        """
        kind, own_values = str(optimiser["kind"]), overrides(optimiser, self.optimiser)
        replaced = DURATIONS if own_values.keys() & {*DURATIONS} else ()
        options = {name: value for name, value in self.optimiser.items() if name not in replaced} | own_values
        own = {f.name for f in fields(SUPERVISED[kind])} & set(options)
        recipe: SupervisedRecipe = typed(
            SUPERVISED[kind], {name: options.pop(name) for name in own}, f"{where}: {kind}"
        )
        return typed(TrainingConfig, options, f"{where}: {kind}"), recipe


@dataclass(frozen=True)
class RewardTraining:
    """Settings of a policy that learns from a reward; where samples are fixed, its sampling is of one token."""

    optimiser: OptimiserConfig
    sampling: Sampling
    alarm: AlarmSettings
    imitation: ImitationSettings | None


def reward_training(recipe: Recipe, scale: PolicyScale, where: str) -> RewardTraining:
    """Returns a reward recipe's settings at a scale.

    Raises:
        RecipeError: a value or a combination of values that training would refuse.
    """
    config = scale.optimiser_config(recipe.optimiser, where)
    sampling = Sampling(1) if config.fixed_samples else scale.sampling_config(where)
    try:
        sampling.refuse_copies(config.group_size, "optimiser.group_size")
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from None
    if config.critic == "reward_model" and not reward_models(recipe):
        raise RecipeError(f"{where}: critic is '{config.critic}', but no component reads a reward model")
    if scale.solutions != ALL_SOLUTIONS and not config.fixed_samples:
        raise RecipeError(
            f"{where}: solutions chooses among fixed samples, but source is '{config.source}'; leave it out"
        )
    if not scale.solutions.failed and GENERATED not in needed_solutions(recipe):
        raise RecipeError(
            f"{where}: solutions.failed is false, but the row reads no generative reward model, which would say whose "
            "rewrite failed; set it to true"
        )
    alarm = typed(AlarmSettings, {**scale.alarm, **recipe.alarm}, f"{where}: alarm")
    return RewardTraining(config, sampling, alarm, imitation_settings(scale.imitation, recipe.imitation, where))


def imitation_settings(scale: Mapping[str, Any], row: Mapping[str, Any] | None, where: str) -> ImitationSettings | None:
    """Returns a scale's settings, overridden by the row's; None where the row does not imitate."""
    return None if row is None else typed(ImitationSettings, {**scale, **row}, f"{where}: imitation")


def needed_solutions(recipe: Recipe) -> tuple[str, ...]:
    """Returns the sources that a reward recipe learns from, named like those of supervised recipes."""
    paid = any(part.generative_reward_model for part in recipe.components)
    needed = [SAMPLES] if recipe.fixed_samples or paid else []
    return tuple(needed + ([GENERATED] if paid or recipe.imitation is not None else []))
