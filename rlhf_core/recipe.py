"""Recipes: a reward design as a short mapping, validated before anything is trained.

A reward recipe names its components (which reward model, how it is read, normalised and paid), how they combine, and
the optimiser. A row file with one component states its fields at the top level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rlhf_core.choices import UnknownChoice
from rlhf_core.credit import CREDITS
from rlhf_core.errors import RecipeError, hint
from rlhf_core.evaluation.hacking_alarm import AlarmSettings
from rlhf_core.models.lora import LoraSettings
from rlhf_core.normalisers import NORMALISERS, REGRESSIONS
from rlhf_core.policy_optimisation.config import OPTIMISERS, OptimiserConfig, useless_combination
from rlhf_core.policy_optimisation.objectives import OBJECTIVES
from rlhf_core.rewards.aggregation import BASES
from rlhf_core.rewards.combinations import COMBINATIONS, WeightedSum
from rlhf_core.rewards.function import GIVES
from rlhf_core.rewards.reads import READS
from rlhf_core.segmentation.segmenters import check_stated_segmenter
from rlhf_core.shaping.choices import Chain, build_shaping, needs_outcomes, needs_references
from rlhf_core.shaping.steps import SftUnits
from rlhf_core.signals import Sequence, SignalType, Tokens
from rlhf_core.supervised.config import ImitationSettings, TrainingConfig
from rlhf_core.supervised.recipes import RECIPES as SUPERVISED
from rlhf_core.typed import (
    Checked,
    above,
    accepted_by,
    at_least,
    check_given,
    init_fields,
    is_number,
    one_of,
    other_than,
    typed,
)

#: kinds of optimiser: those that learn from a reward, and supervised recipes
OPTIMISER_KINDS = (*OPTIMISERS, *SUPERVISED)
#: an aspect component that means all aspects that the selection stage chose
SELECTED = "selected"
#: what a component may be scored by, and the fields that it does not have then
SOURCE_FIELDS: Mapping[str, tuple[str, ...]] = {
    "reward_model": ("gives",),
    "aspect": ("readout", "normaliser", "gives"),
    "generative_reward_model": ("readout", "normaliser", "gives"),
    "function": ("readout", "normaliser"),
}


def stated_shaping(shaping: Any) -> Chain | None:
    """Returns a shaping as a recipe states it, with constants in units resolved against a scale of 1."""
    return None if shaping is None else build_shaping(shaping, SftUnits(0.0, 1.0, 1.0))


def check_signal(signal: SignalType, credit: str, shaping: Chain | None, source: str) -> None:
    """Refuses a credit or a shaping that does not take the signal of a source.

    Args:
        source: in words.
    """
    takers: list[tuple[str, tuple[SignalType, ...]]] = [(f"credit '{credit}'", (CREDITS[credit].takes,))]
    takers += [] if shaping is None else [("the shaping", tuple(shaping.takes))]
    for taker, takes in takers:
        if signal not in takes:
            expected = " or ".join(kind.__name__ for kind in takes)
            raise RecipeError(f"{taker} takes {expected} but {source} gives {signal.__name__}")


@dataclass(frozen=True)
class ReadOut(Checked):
    """Settings for reading a reward model.

    Args:
        segmenter: the segmentation.
        read: 'value', 'difference' or 'weighted' reward of each segment, or the 'aggregate' of all.
        base: what the first difference starts from, 'prompt' (the head at the prompt's last token) or 'zero'.
        head: which head of the reward model; ODIN's are 'quality' and 'length'.
    """

    segmenter: Annotated[Mapping[str, Any], accepted_by(check_stated_segmenter)]
    read: Annotated[str, one_of(READS)] = "value"
    base: Annotated[str, one_of(BASES)] = "prompt"
    head: str = "reward"


@dataclass(frozen=True)
class ComponentRecipe(Checked):
    """One source of reward: a trained reward model with its read-out, an aspect, a generative reward model's token
    rewards of fixed samples, or a function of the user's own.

    Args:
        credit: how values are paid to tokens; an aspect's goes by its density unless given.
        reward_model: name of a reward-model file; another paper's is `<paper>/<name>`.
        readout: where and how the reward model is read.
        aspect: an aspect of the row's selection instead, or `selected` for those that the selection chose.
        generative_reward_model: name of a generative reward model's file instead, whose token rewards are paid.
        function: a callable as `package.module:name` instead.
        gives: what the function gives, 'sequence' or 'tokens'.
        normaliser: one of none, global, last, sequence, location_aware, pure_samples; only models have one here, an
            aspect's is in its own file.
        name: in the breakdown; the reward model's or function's name unless given.
        estimator: regression of the location-aware normaliser: huber or ols.
        weight: factor on what is paid.
        shaping: of the normalised signal, as in {kind: par}, or a list of such; see `rlhf_core.shaping`.
    """

    credit: Annotated[str, one_of(CREDITS)] | None = None
    reward_model: str | None = None
    readout: ReadOut | None = None
    aspect: str | None = None
    generative_reward_model: str | None = None
    function: str | None = None
    gives: Annotated[str, one_of(GIVES)] | None = None
    normaliser: Annotated[str, one_of(NORMALISERS)] = "none"
    name: str = ""
    estimator: Annotated[str, one_of(REGRESSIONS)] = "huber"
    weight: Annotated[float, other_than(0)] = 1.0
    shaping: Any = None

    def _check_together(self) -> None:
        source = self._source()
        if self.credit is None and self.aspect is None:
            raise RecipeError(f"'credit' is missing; it sets how the rewards of {source} are paid to tokens")
        shaping = stated_shaping(self.shaping)
        if self.needs_references and (self.readout is None or not READS[self.readout.read].has_references):
            raise RecipeError(
                f"the shaping needs reference rewards, which {source} does not have; read a reward model by "
                "'value' or 'aggregate'"
            )
        if self.aspect is not None:
            return
        check_signal(self.signal, str(self.credit), shaping, source)
        self._check_normaliser(source)

    def _check_normaliser(self, source: str) -> None:
        normaliser = NORMALISERS[self.normaliser]
        if normaliser.of_selection and self.signal is not Sequence:
            raise RecipeError(
                f"normaliser '{self.normaliser}' is of one value per response but {source} gives "
                f"{self.signal.__name__}; use read-out 'aggregate'"
            )
        if self.readout is None or not normaliser.of_segments:
            return
        if not READS[self.readout.read].fits_normalisers:
            raise RecipeError(
                f"normaliser '{self.normaliser}' is fitted to what segments are worth to the reward model, not to the "
                "differences of a read-out; use 'none'"
            )
        if self.signal is Sequence:
            raise RecipeError(
                f"normaliser '{self.normaliser}' is fitted to segment rewards, but the read-out aggregates them to one "
                "value per response; use 'sequence'"
            )

    @property
    def needs_references(self) -> bool:
        """Returns whether it reads the reference rewards of its reward model."""
        return self.shaping is not None and needs_references(self.shaping)

    def _source(self) -> str:
        """Returns the source of the score in words, after checking that there is exactly one."""
        given = [name for name in SOURCE_FIELDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise RecipeError(
                "a component needs one of 'reward_model', 'aspect', 'generative_reward_model' and 'function'"
            )
        (kind,) = given
        source = f"{kind} '{getattr(self, kind)}'"
        stated = {"readout": self.readout, "gives": self.gives}
        stated |= {"normaliser": None if self.normaliser == "none" else self.normaliser}
        for name in SOURCE_FIELDS[kind]:
            if stated[name] is not None:
                raise RecipeError(f"{source} has no '{name}'; leave it out")
        if self.reward_model is not None:
            if self.readout is None:
                raise RecipeError("'readout' must say the segmenter, as in {segmenter: {kind: bandit}}")
            return f"read-out '{self.readout.read}'"
        if self.function is not None:
            if self.gives is None:
                raise RecipeError(f"'gives' is missing: it says what {source} gives, {' or '.join(GIVES)}")
            if not all(self.function.partition(":")):
                raise RecipeError(f"function is '{self.function}'; name it as 'package.module:name'")
        return source

    @property
    def signal(self) -> SignalType:
        """Returns the type of its signal; an aspect's density says its own."""
        if self.aspect is not None:
            raise RecipeError(f"aspect '{self.aspect}': its signal is known when it is built")
        if self.generative_reward_model is not None:
            return Tokens
        return GIVES[str(self.gives)] if self.readout is None else READS[self.readout.read].gives


def check_kind(optimiser: Any) -> None:
    """Refuses an optimiser that is unknown."""
    if not isinstance(optimiser, Mapping):
        raise RecipeError("it must be a mapping, as in {kind: ppo}")
    kind = optimiser.get("kind")
    if kind not in OPTIMISERS and kind not in SUPERVISED and not (isinstance(kind, str) and ":" in kind):
        raise UnknownChoice.of("optimiser", kind, OPTIMISER_KINDS)


def _settings(kind: str, *, supervised: bool) -> dict[str, Any]:
    """Returns the dataclass of each setting of an optimiser, by the setting's name."""
    takes: list[Any] = [SUPERVISED[kind], TrainingConfig] if supervised else [OptimiserConfig]
    return {name: cls for cls in takes for name in init_fields(cls)}


def check_settings(optimiser: Mapping[str, Any], *, supervised: bool) -> None:
    """Refuses settings that an optimiser does not have, or that are out of range at any scale.

    Args:
        optimiser: `{kind: ..., setting: value}`; a value may be `{times: 2}` of the scale's.
        supervised: whether it is a supervised recipe.
    """
    kind = optimiser["kind"]
    known = _settings(str(kind), supervised=supervised)
    for name, value in optimiser.items():
        if name == "kind":
            continue
        if name not in known:
            raise RecipeError(f"unknown setting '{name}' of optimiser '{kind}'{hint(name, known)}")
        if value is None and not supervised:  # takes back a setting of the scale; `composed` refuses one that is read
            continue
        if not isinstance(value, Mapping):
            check_given(known[name], {name: value}, "optimiser.")
            continue
        if set(value) != {"times"} or not is_number(times := value["times"]) or times < 0:
            raise RecipeError(f"optimiser.{name} is {dict(value)}; state a number, or {{times: 2}} of the scale's")


@dataclass(frozen=True)
class Recipe(Checked):
    """A row: what is trained and with which reward.

    Args:
        title: for people.
        kind: 'reward' or 'supervised'.
        backbone: which SFT model it starts from.
        optimiser: settings that differ from the scale's, with `kind` one of `OPTIMISER_KINDS`.
        settings: the scale's policy settings, by name; the optimiser's kind unless given.
        evaluation: the scale's evaluation, by name; the backbone's unless given.
        lora: where low-rank adapters are trained instead of the whole model.
        alarm: `AlarmSettings` that differ from the scale's, of the hacking alarm.
        components: of a reward recipe.
        combination: how they combine; the weighted sum unless given.
        selection: names params/<paper>/selections/<it>.yaml, whose stage knows the aspects and the pure samples.
        imitation: `ImitationSettings` that differ from the scale's, where rewrites are imitated beside the reward.
        rewrites: generative reward model whose rewrites are learned; the component's unless given.
        clamp: largest absolute reward of a token, None for no limit.
        seed_offset: added to the run's seed, so that a policy is trained again from the same models.
    """

    title: str
    kind: Literal["reward", "supervised"]
    backbone: str
    optimiser: Annotated[Any, accepted_by(check_kind)]
    components: tuple[ComponentRecipe, ...] = ()
    combination: Any = WeightedSum()  # noqa: RUF009 (frozen and stateless)
    selection: str | None = None
    imitation: Mapping[str, Any] | None = None
    rewrites: str | None = None
    clamp: Annotated[float, above(0)] | None = 10.0
    settings: str | None = None
    evaluation: str | None = None
    lora: LoraSettings | None = None
    alarm: Mapping[str, Any] = field(default_factory=dict)
    seed_offset: Annotated[int, at_least(0)] = 0
    notes: str = field(default="", compare=False)

    def _check_together(self) -> None:
        check_given(AlarmSettings, self.alarm, "alarm.")
        check_given(ImitationSettings, self.imitation or {}, "imitation.")
        name = str(self.optimiser["kind"])
        known: Mapping[str, Any] = SUPERVISED if self.kind == "supervised" else OPTIMISERS
        if name in OPTIMISER_KINDS and name not in known:
            other = "reward" if self.kind == "supervised" else "supervised"
            raise RecipeError(
                f"optimiser '{name}' does not fit a recipe of kind '{self.kind}'; use kind '{other}', or one of "
                f"{', '.join(known)}"
            )
        known[name]
        check_settings(self.optimiser, supervised=self.kind == "supervised")
        if (self.kind == "reward") != bool(self.components):
            raise RecipeError(
                f"a recipe of kind '{self.kind}' has {len(self.components)} reward components; 'reward' needs at least "
                "one, 'supervised' none"
            )
        names = [part.name for part in self.components if part.name != SELECTED]
        twice = [part for part in names if names.count(part) > 1]
        if twice:
            raise RecipeError(f"two components have the name '{twice[0]}'; give one of them another 'name'")
        self.combination.check(self.components, self.clamp)
        needs = [
            part.name
            for part in self.components
            if part.aspect is not None or NORMALISERS[part.normaliser].of_selection
        ]
        if needs and self.selection is None:
            raise RecipeError(f"component '{needs[0]}' needs results of the selection stage: name a 'selection'")
        if self.kind == "supervised" and self.imitation is not None:
            raise RecipeError(
                "imitation regularises training with a reward; without a reward use the optimiser {kind: imitation}"
            )
        if any(part.generative_reward_model for part in self.components) and not self.fixed_samples:
            raise RecipeError(
                f"a generative reward model pays the tokens of fixed samples, but optimiser '{name}' samples from the "
                "policy; use {kind: rlmec}, or source: fixed"
            )
        graded = [part for part in self.components if part.shaping is not None and needs_outcomes(part.shaping)]
        if graded and not self.fixed_samples:
            raise RecipeError(
                f"component '{graded[0].name}': shaping is {graded[0].shaping}, which must know if a response is a "
                f"right solution, but optimiser '{name}' samples from the policy, whose responses are not graded; use "
                "{kind: rlmec}, or source: fixed, on data that has a 'task'"
            )

    @property
    def fixed_samples(self) -> bool:
        """Returns whether the policy learns from solutions sampled once."""
        if self.kind == "supervised":
            return False
        made = {**OPTIMISERS[str(self.optimiser["kind"])], **self.optimiser}
        return bool(made.get("source") == "fixed")


def reward_models(recipe: Recipe) -> list[str]:
    """Returns the names of the reward models that a recipe's components read, each once, in order."""
    return list(dict.fromkeys(part.reward_model for part in recipe.components if part.reward_model is not None))


def referenced_models(recipe: Recipe) -> list[str]:
    """Returns the names of the reward models whose reference rewards a recipe reads, each once, in order."""
    needed = {part.reward_model for part in recipe.components if part.needs_references}
    return [name for name in reward_models(recipe) if name in needed]


def useless_shaping(recipe: Recipe) -> str | None:
    """Returns the reason why a recipe's shaping changes nothing for its optimiser, None if it matters.

    With several components what one of them is shaped to always matters; with several values per response it does, too,
    unless pairs are ordered by the raw proxy, as online DPO's.
    """
    if len(recipe.components) != 1 or recipe.components[0].shaping is None:
        return None
    (part,) = recipe.components
    if part.aspect is not None:
        return None
    kind = str(recipe.optimiser["kind"])
    objective = {**OPTIMISERS.get(kind, {}), **recipe.optimiser}.get("objective", OptimiserConfig.objective)
    if part.signal is not Sequence and OBJECTIVES[objective].ignores_size is None:
        return None
    return useless_combination(build_shaping(part.shaping, SftUnits(0.0, 1.0, 1.0)), recipe.optimiser)


def _component(stated: Any, where: str) -> ComponentRecipe:
    """Returns a component that a row states, named by what scores unless it has a name."""
    if not isinstance(stated, Mapping):
        raise RecipeError(f"{where}: component '{stated}' must be a mapping with a reward_model and a readout")
    name = next((stated[source] for source in SOURCE_FIELDS if isinstance(stated.get(source), str)), "")
    return typed(ComponentRecipe, {"name": name, **stated}, where)


def _place(name: str, optimiser: Any) -> str | None:
    """Returns the mapping of a row that has a setting of some name; None where none has."""
    kind = optimiser.get("kind") if isinstance(optimiser, Mapping) else None
    supervised = isinstance(kind, str) and kind in SUPERVISED
    places: dict[str, Iterable[str]] = {
        "optimiser": _settings(str(kind), supervised=supervised),
        "readout": init_fields(ReadOut),
        "alarm": init_fields(AlarmSettings),
        "imitation": init_fields(ImitationSettings),
        "lora": init_fields(LoraSettings),
    }
    return next((place for place, names in places.items() if name in names), None)


def parse_recipe(values: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """Returns a recipe from a row file's mapping."""
    row = dict(values)
    own = init_fields(ComponentRecipe)
    known = {**init_fields(Recipe), **own}
    for name in row:
        if name not in known:
            place = _place(name, row.get("optimiser"))
            remedy = f"; it belongs under '{place}'" if place else hint(name, known)
            raise RecipeError(f"{where}: unknown setting '{name}'{remedy}")
    flat = {name: row.pop(name) for name in own if name in row}
    if flat and "components" in row:
        names = ", ".join(map(repr, sorted(flat)))
        raise RecipeError(
            f"{where}: give either 'components' or {names} at the top level, not both; beside 'components', set "
            f"those of the page's base to null"
        )
    stated = [flat] if flat else row.pop("components", [])
    if not isinstance(stated, list | tuple):
        raise RecipeError(f"{where}: components is {stated!r}; it must be a list of mappings")
    row["components"] = tuple(_component(part, where) for part in stated)
    if "combination" in row:
        try:
            row["combination"] = COMBINATIONS.build(row["combination"])
        except RecipeError as error:
            raise RecipeError(f"{where}: {error}") from None
    return typed(Recipe, row, where)
