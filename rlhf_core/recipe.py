"""Recipes: a reward design as a short mapping, validated before anything is trained.

A reward recipe names its components (which reward model, how it is read, normalised and paid), how they combine, and
the optimiser. A row file with one component states its fields at the top level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from rlhf_core.credit import build_credit
from rlhf_core.errors import RecipeError
from rlhf_core.normalisers import NORMALISERS
from rlhf_core.policy_optimisation.config import OPTIMISERS
from rlhf_core.policy_optimisation.unseen import useless_combination
from rlhf_core.rewards.aggregation import BASES
from rlhf_core.rewards.function import signal_type
from rlhf_core.rewards.hierarchical import HierarchicalGate
from rlhf_core.shaping.registry import build_shaping, needs_references
from rlhf_core.shaping.specification import Scale
from rlhf_core.signals import READS, Sequence, SignalType, Tokens
from rlhf_core.supervised.recipes import RECIPES as SUPERVISED

#: kinds of optimiser: those that learn from a reward, and supervised recipes
KINDS = (*OPTIMISERS, *SUPERVISED)


#: a normaliser whose statistics the selection stage takes over the initial policy's pure samples
PURE_SAMPLES = "pure_samples"
#: an aspect component that stands for what the selection stage chose
SELECTED = "selected"
#: how components combine
COMBINATIONS = ("sum", "gate")


@dataclass(frozen=True)
class ReadOut:
    """How a reward model is read.

    Args:
        segmenter: the segmentation.
        read: 'value', 'difference' or 'weighted' reward of each segment, or the 'aggregate' of all.
        base: what the first difference starts from, 'prompt' (the head at the prompt's last token) or 'zero'.
        head: which head of the reward model; ODIN's are 'quality' and 'length'.
    """

    segmenter: Mapping[str, Any]
    read: str = "value"
    base: str = "prompt"
    head: str = "reward"

    def __post_init__(self) -> None:
        if self.base not in BASES:
            raise RecipeError(f"base is '{self.base}'; known: {', '.join(BASES)}")


@dataclass(frozen=True)
class ComponentRecipe:
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
            aspect's stands in its own file.
        name: in the breakdown; the reward model's or function's name unless given.
        estimator: regression of the location-aware normaliser: huber or ols.
        weight: factor on what is paid.
        shaping: of the normalised signal, as in {kind: par}, or a list of such; see `rlhf_core.shaping`.
    """

    credit: str | None = None
    reward_model: str | None = None
    readout: ReadOut | None = None
    aspect: str | None = None
    generative_reward_model: str | None = None
    function: str | None = None
    gives: str | None = None
    normaliser: str = "none"
    name: str = ""
    estimator: str = "huber"
    weight: float = 1.0
    shaping: Any = None

    def __post_init__(self) -> None:
        normalisers = (*NORMALISERS, PURE_SAMPLES)
        if self.normaliser not in normalisers:
            raise RecipeError(f"unknown normaliser '{self.normaliser}'{_hint(self.normaliser, normalisers)}")
        if self.estimator not in ("huber", "ols"):
            raise RecipeError(f"unknown regression '{self.estimator}'; known: huber, ols")
        source = self._source()
        if self.credit is None and self.aspect is None:
            raise RecipeError(f"'credit' is missing: it says how the rewards of {source} are paid to tokens")
        credit = None if self.credit is None else build_credit(self.credit)
        if credit is None or self.aspect is not None:
            if self.needs_references:
                raise RecipeError(f"the shaping needs reference rewards, which {source} has none of: only models have")
            return
        if credit.takes is not self.signal:
            raise RecipeError(
                f"credit '{self.credit}' takes {credit.takes.__name__} but {source} gives {self.signal.__name__}"
            )
        fitted = self.normaliser in ("global", "last", "location_aware")
        if self.normaliser == PURE_SAMPLES and self.signal is not Sequence:
            raise RecipeError(
                f"normaliser '{PURE_SAMPLES}' is of one value per response but {source} gives {self.signal.__name__}; "
                "use read-out 'aggregate'"
            )
        if self.readout and self.readout.read == "difference" and fitted:
            raise RecipeError(
                f"normaliser '{self.normaliser}' is fitted to what segments are worth to the reward model, not to the "
                "differences of a read-out; use 'none'"
            )
        if self.readout and self.readout.read == "aggregate" and fitted:
            raise RecipeError(
                f"normaliser '{self.normaliser}' is fitted to segment rewards, but the read-out aggregates them to one "
                "value per response; use 'sequence'"
            )
        if self.shaping is not None:
            self._check_shaping(source)

    def _check_shaping(self, source: str) -> None:
        takes = build_shaping(self.shaping, Scale(0.0, 1.0, 1.0)).takes
        if self.signal not in takes:
            expected = " or ".join(kind.__name__ for kind in takes)
            raise RecipeError(f"the shaping takes {expected} but {source} gives {self.signal.__name__}")
        if self.function is not None and self.needs_references:
            raise RecipeError(f"the shaping needs reference rewards, which {source} has none of: only models have")
        if self.needs_references and self.readout and self.readout.read in ("difference", "weighted"):
            raise RecipeError(f"the shaping needs reference rewards, which are not known of {source}; use 'value'")

    @property
    def needs_references(self) -> bool:
        """Whether it reads the reference rewards of its reward model."""
        return self.shaping is not None and needs_references(self.shaping)

    def _source(self) -> str:
        """What scores, in words, after checking that exactly one thing does."""
        sources = (self.reward_model, self.aspect, self.generative_reward_model, self.function)
        if sources.count(None) != len(sources) - 1:
            raise RecipeError(
                "a component needs one of 'reward_model', 'aspect', 'generative_reward_model' and 'function'"
            )
        if self.aspect is not None:
            if self.readout is not None or self.normaliser != "none" or self.gives is not None:
                raise RecipeError(
                    f"aspect '{self.aspect}' declares its density and its normaliser in its own file: leave 'readout', "
                    "'normaliser' and 'gives' out"
                )
            return f"aspect '{self.aspect}'"
        if self.generative_reward_model is not None:
            if self.readout is not None or self.normaliser != "none" or self.gives is not None:
                raise RecipeError(
                    f"generative_reward_model '{self.generative_reward_model}' gives tokens, clipped and to be paid as "
                    "they are: leave 'readout', 'normaliser' and 'gives' out"
                )
            return f"generative_reward_model '{self.generative_reward_model}'"
        if self.function is not None:
            if self.readout is not None or self.normaliser != "none":
                raise RecipeError(f"function '{self.function}' has no read-out and no normaliser: only models have")
            return f"function '{self.function}'"
        if self.readout is None:
            raise RecipeError("'readout' must say the segmenter, as in {segmenter: {kind: bandit}}")
        if self.gives is not None:
            raise RecipeError("'gives' belongs to a function; a reward model's read-out says what it gives")
        if self.readout.read not in READS:
            raise RecipeError(f"unknown read-out '{self.readout.read}'{_hint(str(self.readout.read), list(READS))}")
        return f"read-out '{self.readout.read}'"

    @property
    def signal(self) -> SignalType:
        """The type of its signal; an aspect's density says its own."""
        if self.aspect is not None:
            raise RecipeError(f"aspect '{self.aspect}': its signal is known when it is built")
        if self.generative_reward_model is not None:
            return Tokens
        return signal_type(str(self.gives)) if self.readout is None else READS[self.readout.read]


@dataclass(frozen=True)
class CombinationRecipe:
    """How components combine.

    Args:
        kind: 'sum' pays every component what it says (the weighted sum), 'gate' pays the others only where the
            holistic one reaches a threshold (ALARM). The gate shapes aspects by a sigmoid unless they are positive.
        by: name of the holistic component, for the gate.
        threshold: of its normalised value: a number, or {quantile: q} of the initial policy's pure samples.
    """

    kind: str = "sum"
    by: str | None = None
    threshold: Any = None

    def __post_init__(self) -> None:
        if self.kind not in COMBINATIONS:
            raise RecipeError(f"combination is '{self.kind}'{_hint(self.kind, COMBINATIONS)}")
        if (self.kind == "gate") != (self.by is not None) or (self.kind == "gate") != (self.threshold is not None):
            raise RecipeError(
                f"combination '{self.kind}' with by '{self.by}' and threshold {self.threshold}: a gate needs both, a "
                "sum neither"
            )
        number = isinstance(self.threshold, int | float) and not isinstance(self.threshold, bool)
        if self.kind == "gate" and not number and not isinstance(self.threshold, Mapping):
            raise RecipeError(f"threshold is '{self.threshold}'; state a number, or {{quantile: q}}")

    def check(self, components: tuple[ComponentRecipe, ...], clamp: float | None) -> None:
        """Refuses components that a gate cannot order.

        Raises:
            RecipeError: no such component, one that is not paid once per response, nothing to gate, or a clamp.
        """
        if self.kind != "gate":
            return
        named = {part.name: part for part in components}
        if self.by not in named:
            raise RecipeError(f"the gate is by '{self.by}'{_hint(str(self.by), tuple(named))}")
        holistic = named[self.by]
        if holistic.aspect is not None or holistic.signal is not Sequence or holistic.credit != "last_token":
            raise RecipeError(
                f"the gate asks '{self.by}' for one value per response: it must be a model or function that gives one, "
                "as read-out 'aggregate' does, with credit 'last_token'"
            )
        HierarchicalGate(str(self.by), 0.0, holistic.weight)
        if len(named) < 2 or any(part.weight <= 0 for part in components):
            raise RecipeError("a gate needs at least one component beside the holistic one, all of positive weight")
        if clamp is not None:
            raise RecipeError(f"a clamp of {clamp} per token can turn the gate's order around: give clamp: null")


@dataclass(frozen=True)
class Recipe:
    """A row: what is trained and with which reward.

    Args:
        title: for people.
        kind: 'reward' or 'supervised'.
        backbone: which SFT model it starts from.
        optimiser: settings that differ from the scale's, with `kind` one of `KINDS`.
        settings: the scale's policy settings, by name; those of the optimiser's kind unless given.
        evaluation: the scale's evaluation, by name; the backbone's unless given.
        lora: `LoraSettings` where low-rank adapters are trained instead of the whole model.
        alarm: `AlarmSettings` that differ from the scale's, of the hacking alarm.
        components: of a reward recipe.
        combination: how they combine; the weighted sum unless given.
        selection: names params/<paper>/selections/<it>.yaml, whose stage knows the aspects and the pure samples.
        imitation: `ImitationSettings` that differ from the scale's, where rewrites are imitated beside the reward.
        rewrites: generative reward model whose rewrites are learned; the component's unless given.
        clamp: largest absolute reward of a token, None for no limit.
    """

    title: str
    kind: str
    backbone: str
    optimiser: Mapping[str, Any]
    components: tuple[ComponentRecipe, ...] = ()
    combination: CombinationRecipe = CombinationRecipe()
    selection: str | None = None
    imitation: Mapping[str, Any] | None = None
    rewrites: str | None = None
    clamp: float | None = 10.0
    settings: str | None = None
    evaluation: str | None = None
    lora: Mapping[str, Any] | None = None
    alarm: Mapping[str, Any] = field(default_factory=dict)
    notes: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.kind not in ("reward", "supervised"):
            raise RecipeError(f"kind is '{self.kind}'; it must be 'reward' or 'supervised'")
        if not isinstance(self.optimiser, Mapping):
            raise RecipeError(f"optimiser is '{self.optimiser}'; it must be a mapping, as in {{kind: ppo}}")
        settings = (("lora", "rank: 16, alpha: 32"), ("alarm", "on_hacking: stop"), ("imitation", "phi: 0.5"))
        for given, needed in settings:
            value = getattr(self, given)
            if value is not None and not isinstance(value, Mapping):
                raise RecipeError(f"{given} is '{value}'; it must be a mapping, as in {{{needed}}}")
        name = str(self.optimiser.get("kind"))
        if name not in KINDS:
            raise RecipeError(f"unknown optimiser '{name}'{_hint(name, KINDS)}")
        if (name in SUPERVISED) != (self.kind == "supervised"):
            raise RecipeError(f"optimiser '{name}' does not fit a recipe of kind '{self.kind}'")
        if (self.kind == "reward") != bool(self.components):
            raise RecipeError(
                f"a recipe of kind '{self.kind}' has {len(self.components)} reward components; 'reward' needs at least "
                "one, 'supervised' none"
            )
        self.combination.check(self.components, self.clamp)
        needs = [part.name for part in self.components if part.aspect is not None or part.normaliser == PURE_SAMPLES]
        if needs and self.selection is None:
            raise RecipeError(f"component '{needs[0]}' needs what the selection stage knows: name a 'selection'")
        if self.kind == "supervised" and self.imitation is not None:
            raise RecipeError("imitation stands beside a reward; alone it is the optimiser {kind: imitation}")
        if any(part.generative_reward_model for part in self.components) and not self.fixed_samples:
            raise RecipeError(
                f"a generative reward model pays the tokens of fixed samples, but optimiser '{name}' samples from the "
                "policy; use {kind: rlmec}, or source: fixed"
            )

    @property
    def fixed_samples(self) -> bool:
        """Whether the policy learns from solutions sampled once."""
        kind = str(self.optimiser["kind"])
        return self.optimiser.get("source", OPTIMISERS.get(kind, {}).get("source")) == "fixed"


def reward_models(recipe: Recipe) -> list[str]:
    """Names of the reward models that a recipe's components read, each once, in order."""
    return list(dict.fromkeys(part.reward_model for part in recipe.components if part.reward_model is not None))


def referenced_models(recipe: Recipe) -> list[str]:
    """Names of the reward models whose reference rewards a recipe's components read, each once, in order."""
    needed = {part.reward_model for part in recipe.components if part.needs_references}
    return [name for name in reward_models(recipe) if name in needed]


def useless_shaping(recipe: Recipe) -> str | None:
    """Why a recipe's optimiser learns the same without its shaping, None where it does not.

    With several components what one of them is shaped to always matters; with several values per response it does, too,
    unless pairs are ordered by the raw proxy, as online DPO's.
    """
    if len(recipe.components) != 1 or recipe.components[0].shaping is None:
        return None
    (part,) = recipe.components
    if part.aspect is not None:
        return None
    kind = str(recipe.optimiser["kind"])
    if part.signal is not Sequence and kind != "online_dpo":
        return None
    return useless_combination(build_shaping(part.shaping, Scale(0.0, 1.0, 1.0)), recipe.optimiser)


def _hint(word: str, known: tuple[str, ...] | list[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}"


def _refuse_unknown(values: Mapping[str, Any], known: list[str], where: str) -> None:
    for name in values:
        if name not in known:
            raise RecipeError(f"{where}: unknown setting '{name}'{_hint(str(name), known)}")


def _build(cls: type[Any], values: Mapping[str, Any], where: str) -> Any:
    _refuse_unknown(values, [f.name for f in fields(cls)], where)
    try:
        return cls(**values)
    except TypeError as error:
        raise RecipeError(f"{where}: {str(error).replace('__init__() ', '')}") from None
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from None


def parse_recipe(values: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """A recipe from a row file's mapping.

    Raises:
        RecipeError: names the file, the field and what would be right.
    """
    row = dict(values)
    _refuse_unknown(row, [f.name for cls in (Recipe, ComponentRecipe) for f in fields(cls)], where)
    flat = {f.name for f in fields(ComponentRecipe)} & set(row)
    if flat and "components" in row:
        raise RecipeError(f"{where}: give either 'components' or {sorted(flat)} at the top level, not both")
    stated = [{name: row.pop(name) for name in flat}] if flat else list(row.pop("components", []))
    components = []
    for component in stated:
        if not isinstance(component, Mapping):
            raise RecipeError(f"{where}: component '{component}' must be a mapping with a reward_model and a readout")
        built, readout = dict(component), component.get("readout")
        if readout is not None and not isinstance(readout, Mapping):
            raise RecipeError(f"{where}: 'readout' must say the segmenter, as in {{segmenter: {{kind: bandit}}}}")
        if readout is not None:
            built["readout"] = _build(ReadOut, readout, f"{where}: readout")
        sources = ("reward_model", "aspect", "generative_reward_model", "function")
        built.setdefault("name", next((component[name] for name in sources if component.get(name)), ""))
        components.append(_build(ComponentRecipe, built, where))
    if row.get("combination") is not None:
        if not isinstance(row["combination"], Mapping):
            raise RecipeError(
                f"{where}: combination is '{row['combination']}'; it must be a mapping, as in {{kind: sum}}"
            )
        row["combination"] = _build(CombinationRecipe, row["combination"], f"{where}: combination")
    recipe: Recipe = _build(Recipe, {**row, "components": tuple(components)}, where)
    return recipe
