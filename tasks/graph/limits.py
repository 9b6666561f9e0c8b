"""Refusals of numbers: rows, prompts and evaluations above what exists, and sequences beyond a model's positions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.data.encoding import Limits
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.architecture import POSITIONS, architecture_of, field
from rlhf_core.models.sampling import DEFAULT_ENGINE, ENGINES
from tasks.graph.typed_settings import StageContext, walk
from tasks.params.backbone import BackboneSpec
from tasks.params.data import rows_of
from tasks.params.settings import typed

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
        assert isinstance(found, dict)
    except (OSError, ValueError, RecursionError, AssertionError) as error:
        problem = f"not valid JSON of a model's configuration ({error})"
        raise DataError(problem, file=str(config), remedy="Save the model again, with its config.json") from None
    return found
