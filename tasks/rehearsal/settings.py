"""Settings of a scale made small for a rehearsal: two updates, batches of two, few rows, short answers.

`SMALL` has a function for each kind of page. What says how a thing is done stays as the scale has it; what says how
much of it is done becomes as little as still does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import lcm
from typing import Any

from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.typed import init_fields
from tasks.params.scales import RESOURCES
from tasks.rehearsal.rows import LEARNED, MEASURED, SmallRows
from tasks.rehearsal.stand_ins import StandIns

Settings = dict[str, Any]
UPDATES, BATCH = 2, 2
#: Tokens of an answer, and of the longest one where a stage cuts it in parts.
ANSWER = 12
#: Resources of every stage.
NEEDS = {"cores": 1, "gpus": 0, "memory_gb": 2}
#: A supervised run.
RUN = {"epochs": None, "updates": UPDATES, "batch": BATCH, "microbatch": BATCH}
#: Numbers that are capped wherever a stage's settings have them.
CAPS = {
    "max_new_tokens": ANSWER, "task_tokens": ANSWER, "batch": BATCH, "benchmark_rows": MEASURED, "held_out": MEASURED,
    "pairs": LEARNED, "prompts": LEARNED, "samples": 2, "rounds": 20, "checkpoints": 1,
    "checkpoint_every": 1, "checkpoint_prompts": BATCH, "rollout_samples": 1, "examples": LEARNED, "pair_rows": BATCH,
    "generation_batch": BATCH, "preference_pairs": LEARNED, "texts": LEARNED,
}  # fmt: skip


@dataclass
class Shrinking:
    """Material from which the settings of one rehearsal are made.

    Attributes:
        rows: of its data.
        stand_ins: of its models; their tokenizers are trained on the rows, so data come first.
        groups: by entry of `policy`: responses to a prompt of the rows that read it.
        replaced: what plays which part, for the list at the end.
    """

    rows: SmallRows
    stand_ins: StandIns
    groups: Mapping[str, int]
    replaced: dict[str, str] = field(default_factory=dict)


def capped(values: Mapping[str, Any]) -> Settings:
    """Returns settings with every number of `CAPS` at most its cap, in mappings within them, too."""
    made: Settings = {}
    for name, value in values.items():
        cap = CAPS.get(name)
        if isinstance(value, Mapping):
            made[name] = capped(value)
        elif cap is not None and isinstance(value, int | float) and not isinstance(value, bool):
            made[name] = min(value, cap)
        elif name == "prompts" and value is None:
            made[name] = LEARNED
        else:
            made[name] = value
    return made


def trained_small(values: Mapping[str, Any]) -> Settings:
    """Returns the settings of a supervised run, or of what is around them, with two updates of two rows."""
    return {**values, **RUN}


def small_backbone(with_: Shrinking, name: str, values: Mapping[str, Any]) -> Settings:
    """Returns a backbone with a stand-in as its source."""
    made = capped(values)
    if "source" in made:
        made["source"] = with_.stand_ins.of(str(made["source"]))
    if made.get("training"):
        made["training"] = trained_small(values["training"])
    if str(made.get("attention", "")).startswith("flash"):
        made["attention"] = "sdpa"
        with_.replaced[f"backbones: {name}: flash_attention_2"] = "sdpa, since a rehearsal runs on the CPU"
    return made


def small_tokenizer(with_: Shrinking, name: str, values: Mapping[str, Any]) -> Settings:
    """Returns a tokenizer with the stand-in's as its source."""
    return {**values, "source": with_.stand_ins.of(str(values["source"]))} if "source" in values else dict(values)


def small_data(with_: Shrinking, name: str, values: Mapping[str, Any]) -> Settings:
    """Returns data of which every set has rows in the tree."""
    made = capped({key: value for key, value in values.items() if key != "prompts"})
    made |= {"prompts": values["prompts"]} if "prompts" in values else {}
    rows = with_.rows
    if "task" in values:
        kind = "choice" if values["task"] == "multiple_choice" else "solved"
        for one in values.get("train", ()):
            rows.directory_set(one, "train", kind, where=lambda row: bool(row.get("solution")))
        for one in values.get("tests", ()):
            rows.directory_set(one, "test", "choice" if one in CHOICE_TESTS else kind)
        return {**made, "rows": {"sft": 6, "sft_validation": 1, "questions": 4, "test": MEASURED}}
    if "sets" in values and isinstance(values["sets"], Mapping):
        used = {*values["preference"], *values.get("prompts", ()), *values.get("benchmarks", {}).values()}
        used |= {*values.get("references", {}).values(), *values.get("code", {}).values()}
        made["sets"] = {one: rows.hub_set(one, own) for one, own in values["sets"].items() if one in used}
    elif values["source"] in DIRECTORIES:
        DIRECTORIES[values["source"]](rows, values)
    if "validation_share" in values:
        made["validation_share"] = 0.125
    if values.get("tasks"):
        made["tasks"] = {
            column: {**own, "rows": rows.task_rows(own["task"], own.get("shots") or 0, own.get("rows"))}
            for column, own in values["tasks"].items()
        }
    if values.get("alpaca_calibration"):
        made["alpaca_calibration"] = rows.calibration()
    for name in ("directory", "livecode_window"):
        made.pop(name, None)
    return made


def with_tokenizer(with_: Shrinking, values: Mapping[str, Any]) -> Settings:
    """Returns data whose filters count the tokens of a stand-in."""
    if not values.get("filters"):
        return dict(values)
    return {**values, "filters": {**values["filters"], "tokenizer": with_.stand_ins.of(values["filters"]["tokenizer"])}}


#: Test sets of mathematics whose questions have choices.
CHOICE_TESTS = ("mmlu_math",)


def _real(rows: SmallRows, values: Mapping[str, Any]) -> None:
    for one in values["preference"]:
        rows.directory_set(one, "train", "preference")
        rows.directory_set(one, "test", "preference")
    for one in values.get("prompts", ()):
        rows.directory_set(one, "train", "prompt")
    for one in values.get("benchmarks", {}).values():
        rows.directory_set(one, "test", "benchmark")
    for one in values.get("references", {}).values():
        rows.directory_set(one, "test", "model_output")
    for column, one in values.get("code", {}).items():
        rows.directory_set(one, "test", "live_code" if column == "livecode" else "code")


def _long_form(rows: SmallRows, values: Mapping[str, Any]) -> None:
    for split in ("train", "test"):
        asked = rows.directory_set(values["questions"], split, "feedback", where=_corrected)
        ids = {row["id"] for row in asked}
        rows.pairs_of(values["preference"], split, ids)


def _corrected(row: Mapping[str, Any]) -> bool:
    """Returns whether a row of QA-Feedback has what all three of the aspects' models learn from."""
    told = row["feedback"]
    return bool(told["errors"] and told["missing_info"] and told.get("corrected_prediction") and row["gold_answer"])


def _translations(rows: SmallRows, values: Mapping[str, Any]) -> None:
    for one in values["sets"]:
        for split in ("train", "test"):
            rows.directory_set(one, split, "translation", where=lambda row: len(row["target_text"].split()) > 3)


DIRECTORIES: Mapping[str, Callable[[SmallRows, Mapping[str, Any]], None]] = {
    "directory": _real,
    "directory-longform": _long_form,
    "directory-translation": _translations,
}


def small_policy(with_: Shrinking, name: str, values: Mapping[str, Any]) -> Settings:
    """Returns a policy's settings with two updates, each of two prompts."""
    made = capped(values)
    optimiser = dict(values.get("optimiser", {}))
    if "iterations" in optimiser or "rollout_batch" in optimiser:
        responses = BATCH * lcm(with_.groups.get(name, 1), optimiser.get("group_size", 1))
        replay = min(optimiser.get("replay", 0), 1)
        optimiser |= {"iterations": UPDATES + replay, "rollout_batch": responses, "minibatch": responses}
        optimiser |= {"microbatch": responses, "epochs": 1}
        optimiser |= {"replay": replay} if "replay" in optimiser else {}
        optimiser |= {"critic_warmup": 1} if optimiser.get("critic_warmup") else {}
    else:
        optimiser = trained_small(optimiser)
    made["optimiser"] = optimiser
    if made.get("imitation"):
        made["imitation"] = {**made["imitation"], "batch": BATCH}
    return made


def small_aspect(with_: Shrinking, name: str, values: Mapping[str, Any]) -> Settings:
    """Returns an aspect; one whose tool is not installed here has a formula without it."""
    made = dict(values)
    formula = values["aspect"].get("formula", "")
    if formula.startswith(("flesch", "gunning")) and not _syllables():
        made["aspect"] = {**values["aspect"], "formula": "automated_readability_index"}
        with_.replaced[f"aspects: {name}: {formula}"] = "automated_readability_index: NLTK's cmudict is not installed"
    return made


def _syllables() -> bool:
    """Returns whether NLTK's cmudict is installed."""
    if find_spec("nltk") is None:
        return False
    import nltk

    try:
        nltk.data.find("corpora/cmudict")
    except LookupError:
        return False
    return True


def small_segmenter(with_: Shrinking, name: str, values: Mapping[str, Any]) -> Settings:
    """Returns a finder of sentences: a stand-in for a released model, or one that is trained a little."""
    made = capped(values)
    if "model" in values:
        return {**made, "model": with_.stand_ins.sentences(str(values["model"]))}
    if values.get("gold", "clauses") != "clauses":
        for split in ("train", "validation", "test"):
            with_.rows.directory_set(values["gold"], split, "sentences")
    made["tagger"] = {**values.get("tagger", {}), "layers": 1, "hidden": 16, "heads": 2, "vocabulary": 320}
    return {**made, "training": trained_small(values["training"])}


def small_stage(with_: Shrinking, name: str, values: Mapping[str, Any]) -> Settings:
    """Returns the settings of another stage."""
    if name == RESOURCES:
        return {}
    made = capped(values)
    if {"epochs", "updates"} & values.keys() and values.keys() <= set(init_fields(TrainingConfig)):
        return trained_small(values)
    if "training" in values:
        made["training"] = trained_small(values["training"])
    if "least_accuracy" in values:
        # Every model trains the two updates, also one that states a multiple of the scale's epochs.
        made |= {"least_accuracy": 0.0, "held_out": 0.25, "gold": True, "fixed": True}
        with_.replaced[f"stages: {name}: least_accuracy"] = "0: random models rewrite nothing rightly"
        with_.replaced[f"stages: {name}: the model's rewrites"] = "the questions' own solutions, marked as gold"
    if "benchmarks" in values and made.get("prompts"):
        made["prompts"] = min(made["prompts"], MEASURED)  # as many as a benchmark has
    if "sizes" in values:
        made["sizes"] = [size for size in values["sizes"] if size <= 2] or [min(values["sizes"])]
    for limits in ("limits", "rewrites"):
        if "most_steps" in values.get(limits, {}):
            made[limits] = {**values[limits], "most_edits": 1.0}
            with_.replaced[f"stages: {name}: {limits}.most_edits"] = "1: no word of a random prediction is kept"
    if name.startswith("samples"):
        made["gold"] = 1
        with_.replaced[f"stages: {name}: one sample of each question"] = "its own solution, marked as gold"
    if "zero_shot" in values and "base_url" not in values["zero_shot"]:
        own = values["zero_shot"]
        given = with_.stand_ins.with_head if own.get("read") == "head" else with_.stand_ins.of
        made["zero_shot"] = {**made["zero_shot"], "model": given(own["model"])}
    if "sets" in values:
        made["sets"] = {one: with_.rows.hub_set(one, own) for one, own in values["sets"].items()}
    return made


#: Settings of each kind of page, made small. Data come before what is trained on its rows.
SMALL: Mapping[str, Callable[[Shrinking, str, Mapping[str, Any]], Settings]] = {
    "data": small_data,
    "segmenters": small_segmenter,
    "tokenizers": small_tokenizer,
    "backbones": small_backbone,
    "evaluation": lambda _, __, values: capped(values),
    "policy": small_policy,
    "aspects": small_aspect,
    "stages": small_stage,
}
