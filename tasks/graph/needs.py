"""Needs of stages, held against what their inputs provide.

Data and reward models provide parts, in the words of `tasks.params.settings`; settings declare by an attribute `needs`
what they need of them, choices by attributes of their class. `check_needs` compares the two for any stage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from typing import Any

from rlhf_core.errors import RecipeError, hint
from rlhf_core.evaluation.judges.choices import JUDGES
from rlhf_core.models.folders import is_hub_classifier
from rlhf_core.rewards.preference_losses import build_loss
from rlhf_core.segmentation.segmenters import cutoff_names
from tasks.graph.items import Item
from tasks.graph.typed_settings import StageContext, walk
from tasks.params.data import benchmarks_of
from tasks.params.reward_model import GivenSpec, MergeSpec, RewardModelSpec, ZeroShotScale
from tasks.params.settings import (
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

#: Parts that stages of a kind need, whatever their settings say.
OF_STAGES: Mapping[str, tuple[str, ...]] = {
    "references": (TRAINED, REFERENCES),
    "best_of_n": (TRAINED,),
    "reward_bench": (TRAINED,),
}


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
