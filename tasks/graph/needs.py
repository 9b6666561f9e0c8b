"""Needs of stages, held against what their inputs provide: parts, rows, positions, engines.

Data and reward models provide parts, in the words of `tasks.params.parts`; settings declare by an attribute `needs`
what they need of them, choices by attributes of their class. `check_needs` compares the two for any stage.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

from rlhf_core.data.encoding import Limits
from rlhf_core.errors import DataError, RecipeError, hint
from rlhf_core.evaluation.judges.choices import JUDGES
from rlhf_core.models.architecture import POSITIONS, architecture_of, field
from rlhf_core.models.folders import is_hub_classifier
from rlhf_core.models.sampling import DEFAULT_ENGINE, ENGINES
from rlhf_core.rewards.preference_losses import build_loss
from rlhf_core.segmentation.segmenters import cutoff_names
from rlhf_core.typed import typed
from tasks.graph.items import Item
from tasks.graph.typed_settings import StageContext, walk
from tasks.params.backbone import BackboneSpec
from tasks.params.data import benchmarks_of, rows_of
from tasks.params.parts import (
    CLAUSES,
    FITTED,
    PAIRS,
    REFERENCES,
    SEGMENTS,
    TOKENS,
    TRAINED,
    TRUE_REWARDS,
    Need,
    benchmark_part,
)
from tasks.params.reward_model import GivenSpec, MergeSpec, RewardModelSpec, ZeroShotScale

#: Parts that stages of a kind need, whatever their settings say.
OF_STAGES: Mapping[str, tuple[str, ...]] = {
    "references": (TRAINED, REFERENCES),
    "best_of_n": (TRAINED,),
    "reward_bench": (TRAINED,),
}
#: Sets that settings ask rows of, by stage, argument and field, in words: at most as many as generated data has.
ROWS = {
    ("sft", "spec", "examples"): (("sft", "tasks"), "training examples"),
    ("sft", "evaluation", "pair_rows"): (("benchmark",), "prompts in the benchmark 'alpaca'"),
    ("policy", "scale", "prompts"): (("prompts",), "training prompts"),
    ("references", "scale", "prompts"): (("prompts",), "training prompts"),
    ("selection", "scale", "prompts"): (("prompts",), "training prompts"),
    ("pool", "scale", "prompts"): (("benchmark",), "prompts in each benchmark"),
    ("normaliser", "scale", "pairs"): (("preference_train",), "training pairs"),
}
#: Settings that hold the longest answers.
LENGTHS = ("max_new_tokens", "task_tokens")


def check_needs(stage: StageContext) -> None:
    """Refuses a stage whose settings need what none of its inputs provides."""
    benchmarks = map(benchmark_part, benchmarks_of(stage.data))
    at = f"{stage.prepare.where('spec')}, source '{stage.data.source}'"
    inputs = {at: [*stage.data.provides, *benchmarks]}
    if any(one.item.module == "solution_pairs" for one in stage.upstream("data")):
        inputs["pairs of samples"] = [PAIRS]
    for above in stage.upstream("entropies"):
        inputs[above.where("spec")] = [f"entropy cutoff '{name}'" for name in above.own("spec").cutoffs]
    for model in stage.item.several("reward_model"):
        inputs[_place(model, stage)] = model_provides(model, stage)
    provided, of = [part for parts in inputs.values() for part in parts], f"its inputs ({', '.join(inputs)})"
    for where, settings in stage.settings_by_address():
        match(needs_of(settings), provided, where, of)
    needs = [Need(part, "its stage", stage.item.module) for part in OF_STAGES.get(stage.item.module, ())]
    match(needs, provided, f"stage {stage.item.stage}", of)


def match(needs: Iterable[Need], provided: Collection[str], where: str, of: str) -> None:
    """Refuses the first need that is not met.

    Args:
        provided: parts.
        where: address of the settings.
        of: what provides, with its address.
    """
    for need in needs:
        if need.part not in provided:
            kind, has = need.part.partition(" '")[0], ", ".join(provided) or "none of what stages may need"
            near = hint(need.part, [part for part in provided if part.startswith(f"{kind} '")])
            end = near if "did you mean" in near else f"; change {need.field}, or take an input that has it"
            raise RecipeError(
                f"{where}: {need.field} is {need.value!r}, which needs {need.part}, but {of} has {has}{end}"
            )


def needs_of(settings: Any) -> Iterator[Need]:
    """Yields what typed settings need, anywhere in them."""
    yield from getattr(settings, "needs", ())
    for at, name, value in walk(settings):
        if is_dataclass(value):
            yield from (replace(need, field=f"{at}.{need.field}") for need in getattr(value, "needs", ()))
        judges = {at: value} if name == "judge" else {}
        judges |= {f"{at}.{key}": judge for key, judge in value.items()} if name == "judges" else {}
        for place, judge in judges.items():
            if judge is not None and JUDGES[kind := JUDGES.kind_of(judge)].needs_world:
                yield Need(TRUE_REWARDS, f"{place}.kind", kind)
        if name == "segmenter" and isinstance(value, Mapping):
            yield from _of_segmenter(value, at)


def _of_segmenter(segmenter: Mapping[str, Any], at: str) -> Iterator[Need]:
    if segmenter.get("kind") == "gold":
        yield Need(CLAUSES, f"{at}.kind", "gold")
    for option, name in cutoff_names(segmenter).items():
        yield Need(f"entropy cutoff '{name}'", f"{at}.{option}", name)


# --- reward models -----------------------------------------------------------------------------------------------


def model_provides(model: Item | str | int, stage: StageContext) -> list[str]:
    """Returns what a reward model of a stage provides: one that was trained here, a given one, or one that is asked
    instead, which rewards responses alone. A Hugging Face classifier reads other tokens than the policy writes."""
    if not isinstance(model, Item):
        own_words = is_hub_classifier(stage.settings.root / str(model))
        return [TRAINED, FITTED, REFERENCES, *([] if own_words else [TOKENS, SEGMENTS])]
    context = StageContext(model, stage.settings)
    if isinstance(context.own("scale"), ZeroShotScale):
        return []
    spec = trained_spec(context)
    heads = [] if spec is None else [f"head '{head}'" for head in build_loss(spec.loss).heads]
    at_tokens = [] if spec is not None and spec.end_token else [REFERENCES]
    return [TRAINED, TOKENS, SEGMENTS, FITTED, *at_tokens, *heads]


def trained_spec(model: StageContext) -> RewardModelSpec | None:
    """Returns the settings that a reward model was trained with; for an average, the settings of its first member."""
    spec = model.own("spec")
    if isinstance(spec, MergeSpec):
        return trained_spec(model.upstream("reward_model")[0])
    return None if isinstance(spec, GivenSpec) else spec


def _place(model: Item | str | int, stage: StageContext) -> str:
    """Returns the address of a reward model's settings; of its scale's, where it is asked instead of trained."""
    if not isinstance(model, Item):
        return str(model)
    context = StageContext(model, stage.settings)
    asked = isinstance(context.own("scale"), ZeroShotScale)
    return f"zero_shot, {context.where('scale')}" if asked else context.where("spec")


# --- numbers -----------------------------------------------------------------------------------------------------


def check_limits(stage: StageContext) -> None:
    """Refuses engines, lengths and numbers of rows that a stage's model and data do not have."""
    for where, settings in stage.settings_by_address():
        for place, engine in _named(settings, "engine"):
            _check_engine(stage, engine, f"{where}: {place}")
        _check_lengths(stage, settings, where)
    for (module, argument, name), (sets, words) in ROWS.items():
        if stage.item.module == module and (asked := getattr(stage.own(argument), name)) is not None:
            exist = [count for one in sets if (count := rows_of(stage.data, one)) is not None]
            of = f"{words} ({stage.prepare.where('spec')}, {' and '.join(f'rows.{one}' for one in sets)})"
            check_amount(asked, sum(exist) if exist else None, stage.where(argument), name, of)


def check_amount(asked: int, exist: int | None, where: str, name: str, of: str) -> None:
    """Refuses a number above what exists: the stage would take less, and its settings say something else.

    Args:
        asked: value of the setting.
        exist: at most so many; None where that is not known before data is read.
        where: address of the settings.
        name: of the setting.
        of: noun and place of what exists.
    """
    if exist is not None and asked > exist:
        raise RecipeError(
            f"{where}: {name} is {asked}, but there are {exist} {of}; set {name} to at most {exist}, or raise the other"
        )


def _named(settings: Any, *names: str) -> list[tuple[str, Any]]:
    """Returns the places and values of the fields of some names anywhere in typed settings, where they are stated."""
    return [(at, value) for at, name, value in walk(settings) if name in names and value is not None]


def _check_lengths(stage: StageContext, settings: Any, where: str) -> None:
    """Refuses answers that, after the longest prompts, are beyond the positions of the backbone."""
    limit = getattr(settings, "prompt_limit", None)
    tokens = [length for _, length in _named(settings, *LENGTHS)]
    if limit is None and not tokens:
        return
    own = getattr(settings, "limits", None)
    limits = own if isinstance(own, Limits) else typed(Limits, stage.data.limits, where)
    if limit is not None and limit >= limits.total:
        raise RecipeError(
            f"{where}: prompt_limit is {limit}; it must be below the data's total limit of {limits.total}"
        )
    if tokens:
        prompt = limits.prompt if limit is None else limit
        check_positions(stage, prompt + max(tokens), f"prompts and answers of {where}")


def check_positions(stage: StageContext, tokens: int | None = None, what: str = "") -> None:
    """Refuses sequences beyond the positions of a stage's backbone, where these are known; those of its data unless
    stated."""
    if tokens is None:
        tokens, what = typed(Limits, stage.data.limits, "limits").total, "rows of the data, by its limits.total,"
    for sft in _sft_stages(stage):
        spec: BackboneSpec = sft.own("spec")
        places = field(architecture_of(spec.source, spec.architecture), POSITIONS)
        if places is not None and tokens > places:
            raise RecipeError(
                f"{sft.where('spec')}: architecture.max_position_embeddings is {places}, but {what} have {tokens} "
                "tokens; shorten them, or take a model with more positions"
            )


def _sft_stages(stage: StageContext) -> list[StageContext]:
    return [stage] if stage.item.module == "sft" else stage.upstream("sft")


def _check_engine(stage: StageContext, engine: str, where: str) -> None:
    """Refuses an engine that cannot run the model of a stage's backbone, where that is known."""
    for sft in _sft_stages(stage):
        try:
            ENGINES[engine].check(_architecture(stage.settings.root, sft.own("spec")))
        except RecipeError as error:
            problem = f"is '{engine}', but {error} ({sft.where('spec')}); use {DEFAULT_ENGINE}"
            raise RecipeError(f"{where} {problem}") from None


def _architecture(root: Path, spec: BackboneSpec) -> Mapping[str, Any]:
    """Returns the fields of a backbone's configuration, those of a local folder included; empty where not known."""
    config = root / str(spec.source) / "config.json"
    if spec.source is None or not config.is_file():
        return architecture_of(spec.source, spec.architecture)
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError, RecursionError) as error:
        problem = f"not valid JSON of a model's configuration ({error})"
        raise DataError(problem, file=str(config), remedy="Save the model again, with its config.json") from None
    return found
