"""Settings of evaluations (of policies, of reward models, of one policy against another, of re-evaluation), and the
names of what they measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from rlhf_core.data.selection import HubSet
from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.benchmark_names import CHOICE_TASKS, CODE_BENCHMARKS, DIALOGUE_BENCHMARKS
from rlhf_core.evaluation.judges.choices import check_stated_judge
from rlhf_core.evaluation.protocols import PAIR_TEMPLATES, PROTOCOLS
from rlhf_core.models.sampling import DEFAULT_ENGINE, ENGINES, Sampling, Temperature
from rlhf_core.typed import (
    Checked,
    Count,
    InnerShare,
    Seed,
    Size,
    accepted_by,
    at_least,
    between,
    each_once,
    one_of,
    typed,
)
from tasks.params.pages import read_settings
from tasks.params.parts import DIALOGUES, Need, benchmark_part

#: Parts of an evaluation: dialogue benchmarks, and tasks with right answers.
PARTS = (*DIALOGUE_BENCHMARKS, "choices", "arithmetic", "code", "tasks")
#: Benchmarks on which a judge can compare a policy with its SFT model.
OVER_SFT_BENCHMARKS = ("alpaca", "arena")
#: Name of true rewards among judges.
TRUE = "true"


#: A judge: `{kind: gold, persona: exact}`, or `{kind: endpoint}` with the fields of `EndpointConfig`.
Judge = Annotated[Mapping[str, Any], accepted_by(check_stated_judge)]


@dataclass(frozen=True)
class EvaluationConfig(Checked):
    """Settings for the evaluation of policies.

    Args:
        max_new_tokens: longest answer on dialogue benchmarks.
        temperature, top_p, top_k: of dialogue answers; 0 keeps all tokens, as in `Sampling`.
        task_tokens: longest answer on arithmetic and code, which are answered greedily.
        judge: judge spec (see `tasks.running.loading.load_judge`), None for none.
        over_sft: one of `PROTOCOLS`, by which the judge compares a policy with its SFT model where the data has no true
            rewards.
        over_sft_benchmarks: benchmarks on whose prompts it does so after training; none for an empty list.
        judge_baseline: whether it compares answers with the benchmarks' own (`alpaca_wr`, `arena_wr`), too.
        judge_checkpoints: whether it does so while a policy trains, too: one or two calls for each prompt of
            `checkpoint_prompts` at every evaluation.
        isolated_code: run generated code (in a limited process without network); False leaves code out.
        pair_rows: prompts on which rows are compared with each other by the judge, drawn once; None for all.
    """

    max_new_tokens: Count
    task_tokens: Count
    temperature: Temperature = 1.0
    top_p: Annotated[float, between(0, 1, open_low=True)] = 1.0
    top_k: Size = 0
    engine: Annotated[str, one_of(ENGINES)] = DEFAULT_ENGINE
    batch: Count = 128
    seed: Seed = 7
    rows: Count | None = None
    judge: Judge | None = None
    isolated_code: bool = True
    only: tuple[Annotated[str, one_of(PARTS)], ...] | None = None
    pair_rows: Count | None = None
    over_sft: Annotated[str, one_of(PROTOCOLS)] = "alpaca_eval"
    over_sft_benchmarks: tuple[Annotated[str, one_of(OVER_SFT_BENCHMARKS)], ...] = OVER_SFT_BENCHMARKS
    judge_baseline: bool = True
    judge_checkpoints: bool = True

    def has(self, part: str) -> bool:
        """Returns whether a part is evaluated."""
        return self.only is None or part in self.only

    def dialogue_answers(self) -> dict[str, Any]:
        """Returns the settings that answers to dialogue benchmarks depend on, beside model and items."""
        names = ["max_new_tokens", "temperature", "top_p", "top_k", "batch", "seed", "rows"]
        if self.engine != DEFAULT_ENGINE:  # answers that the loop gave keep their identity
            names.append("engine")
        return {name: getattr(self, name) for name in names}

    def between_rows(self) -> dict[str, Any]:
        """Returns the judge of two rows' answers, and the number of prompts."""
        return {"judge": self.judge, "rows": self.pair_rows}


@dataclass(frozen=True)
class PoolSpec(Checked):
    """Settings for drawing a pool of answers to the benchmarks' prompts."""

    benchmarks: Annotated[tuple[Annotated[str, one_of(DIALOGUE_BENCHMARKS)], ...], each_once()]
    sampling: Sampling
    samples: Count = 32
    prompts: Count | None = None
    batch: Count = 256

    def _check_together(self) -> None:
        self.sampling.refuse_copies(self.samples, "samples")

    @property
    def needs(self) -> tuple[Need, ...]:
        return tuple(Need(benchmark_part(name), "benchmarks", name) for name in self.benchmarks)


@dataclass(frozen=True)
class BestOfNSpec(Checked):
    """Settings for judging the best of N answers.

    Args:
        judges: {name: judge spec, see `tasks.running.loading.load_judge`}; none leaves judged win rates out.
    """

    sizes: Annotated[tuple[Count, ...], each_once()] = (2, 4, 8, 16, 32)
    judges: Mapping[str, Judge] = field(default_factory=dict)
    template: Annotated[str, one_of(PAIR_TEMPLATES)] = "ranking"
    batch: Count = 64

    def _check_together(self) -> None:
        if TRUE in self.judges:
            raise RecipeError("judges: 'true' is the name of true rewards; give the judge another name")


@dataclass(frozen=True)
class RewardBenchSpec(Checked):
    """A benchmark of reward models.

    Args:
        source: 'testbed' generates one from the world of the data, 'huggingface' loads one.
        pairs, seed: of 'testbed'; pairs of each subset.
        sets: of 'huggingface', whose split `test` holds pairs with their `subset`.
    """

    source: Annotated[str, one_of(("testbed", "huggingface"))]
    pairs: Count = 100
    seed: Seed = 0
    sets: Mapping[str, HubSet] = field(default_factory=dict)
    batch: Count = 64

    def _check_together(self) -> None:
        if (self.source == "huggingface") != bool(self.sets):
            raise RecipeError(f"source '{self.source}' with {len(self.sets)} sets: 'sets' belong to huggingface")

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need(DIALOGUES, "source", self.source),) if self.source == "testbed" else ()


@dataclass(frozen=True)
class SecondJudgeSpec(Checked):
    """Judge, benchmark and template of a second judgement: the benchmark's first turns are compared."""

    judge: Judge
    benchmark: Annotated[str, one_of(DIALOGUE_BENCHMARKS)] = "alpaca"
    template: Annotated[str, one_of(PAIR_TEMPLATES)] = "ranking"

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need(benchmark_part(self.benchmark), "benchmark", self.benchmark),)


@dataclass(frozen=True)
class ReevaluatedModel(Checked):
    """A model of the registry that is evaluated again."""

    name: str
    alias: str = "champion"


@dataclass(frozen=True)
class Schedule(Checked):
    """Schedule of a deployment: a cron expression of five fields and a time zone."""

    cron: str
    timezone: str = "UTC"

    def _check_together(self) -> None:
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise RecipeError(f"timezone is '{self.timezone}', which is not a time zone; try UTC") from None
        check_cron(self.cron)


def check_cron(cron: str) -> None:
    """Refuses a cron expression that is not one, or whose date never comes."""
    try:
        if len(cron.split()) != 5:
            raise CronSimError("Wrong number of fields")
        next(CronSim(cron, datetime(2024, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration) as error:
        problem = str(error).lower() or "no such day"
        raise RecipeError(
            f"cron is '{cron}': {problem}; it has five fields, as in '0 3 * * *' for each night at three"
        ) from None


@dataclass(frozen=True)
class ReevaluationSettings(Checked):
    """params/reevaluation.yaml.

    Args:
        models: which, each `{name: segment-policy-segment, alias: champion}`.
        schedule: of the deployment.
        benchmarks: of the model's data set.
        canary: comparisons in the canary.
        drift_days: how often the judge is checked when nothing else changed.
        level: of all benchmarks' intervals together.
    """

    models: tuple[ReevaluatedModel, ...]
    schedule: Schedule
    benchmarks: tuple[Annotated[str, one_of(DIALOGUE_BENCHMARKS)], ...] = ("alpaca", "arena", "ood", "mtbench")
    canary: Annotated[int, at_least(2)] = 64
    drift_days: Annotated[float, between(0, 36500)] = 7.0
    level: InnerShare = 0.95


def read_reevaluation(file: Path) -> ReevaluationSettings:
    """Reads params/reevaluation.yaml of a tree."""
    return typed(ReevaluationSettings, read_settings(file), str(file))


# --- names of metrics --------------------------------------------------------------------------------------------

#: Of texts and of true rewards, by the prefix of a benchmark; AlpacaEval's true rewards have none.
_TEXTS = tuple(f"{name}_{what}" for name in DIALOGUE_BENCHMARKS for what in ("chars", "tokens", "true_reward"))
_JUDGED = tuple(f"{name}_{what}" for name in ("alpaca", "ood") for what in ("wr", "wr_se", "invalid"))
_OVER_SFT = tuple(
    f"{name}{end}"
    for name in ("win_rate_vs_sft", "ood_win_rate_vs_sft", "peak_win_rate_vs_sft")
    for end in ("", "_se", "_p")
)
_MT_BENCH = ("mtbench", "mtbench_turn1", "mtbench_turn2")
#: Metrics that the last stage of a row can write. Length-controlled rates and win rates between rows are not among
#: them: the report computes those from several runs.
METRIC_NAMES = (
    *_OVER_SFT, *_JUDGED, *_TEXTS, *_MT_BENCH, "true_reward", "mtbench_missing", "bleu",
    "arena_wr", "arena_wr_lower", "arena_wr_upper", "arena_invalid",
    *CHOICE_TASKS, "gsm8k", "gsm8k_strict", "gsm8k_flexible", "arithmetic_seen", "arithmetic_unseen",
    *CODE_BENCHMARKS, "ecqa", "qasc", "obqa", "math", "svamp", "mm", "seen", "unseen", "average",
    "kl", "train_kl", "reward", "train_true_reward", "response_length", "truncated", "entropy", "mean_segment_length",
    "proxy_reward", "proxy_reward_sft", "preference_score", "judged_win_rate_vs_sft", "judged_unparsable",
    "peak_step", "peak_alpaca_chars", *(f"peak_{name}" for name in _MT_BENCH), "peak_mtbench_missing",
    "loss_after_peak", "hacking_alarms", "hacking_onset", "stopped_step", "kept_step",
    "gate/pairs", "gate/share_above", "gate/share_above_first", "normaliser_floor_uses", "normaliser_floor_share",
    "examples", "examples_too_long", "rewrites", "rewrites_too_long", "samples", "samples_correct",
    "credit_auc", "credit_auc_within", "credit_mistaken", "credit_precision", "credit_recall", "credit_tokens",
    "parameters", "validation_nll",
    "accuracy", "seen_pairs", "ood_pairs",
    *(f"{name}{end}" for name in ("chat", "chat_hard", "safety", "reasoning") for end in ("", "_lower", "_upper")),
)  # fmt: skip
#: Beginnings of names that end in a component, an aspect, a kind of clause, a benchmark with N, or a row.
_BEGINNINGS = (
    "train_proxy/", "shaping/", "score/", "hacking/", "clauses/", "clauses_sft/", "clauses_per_response/",
    "clauses_per_response_sft/", "subset/", "judge/", "judge_se/", "judge_invalid/", "second/", "second_se/",
    "second_invalid/", "reward/", "true/", "true_reward/",
)  # fmt: skip
#: Losses of supervised recipes begin with the recipe's name, which may be your own.
_ENDINGS = ("_loss", "_margin", "_accuracy")


def is_metric(name: str) -> bool:
    """Returns whether the last stage of a row can write a metric of this name."""
    begun = any(name.startswith(beginning) and name != beginning for beginning in _BEGINNINGS)
    return name in METRIC_NAMES or begun or name.endswith(_ENDINGS)


#: Beginnings of names that are measured on AlpacaEval's prompts although they do not name it.
_ON_ALPACA = ("win_rate_vs_sft", "true_reward", "bleu")


def needed_parts(name: str) -> list[tuple[str, ...]]:
    """Returns the parts of an evaluation that a metric of a policy is measured on; of each tuple one is enough.

    Empty where every evaluation has the metric. Tests of questions are no part, so that of questions this says nothing.
    """
    name = name.removeprefix("peak_")
    if name.startswith((*_ON_ALPACA, "alpaca_")):
        return [("alpaca",)]
    for benchmark in DIALOGUE_BENCHMARKS:
        if name.startswith(benchmark):
            return [(benchmark,)]
    choices, arithmetic = ("choices", "tasks"), ("arithmetic", "tasks")
    if name == "average":
        return [choices, arithmetic]
    if name in CHOICE_TASKS:
        return [choices]
    if name.startswith(("gsm8k", "arithmetic_")):
        return [arithmetic]
    return [("code",)] if name in CODE_BENCHMARKS else []
