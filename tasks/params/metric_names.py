"""Names of the metrics that the last stage of a row can write, by which settings are checked before any stage runs.

Length-controlled rates and win rates between rows are not among them: the report computes those from several runs.
"""

from __future__ import annotations

from rlhf_core.evaluation.benchmark_names import CHOICE_TASKS, CODE_BENCHMARKS, DIALOGUE_BENCHMARKS

#: Of texts and of true rewards, by the prefix of a benchmark; AlpacaEval's true rewards have none.
_TEXTS = tuple(f"{name}_{what}" for name in DIALOGUE_BENCHMARKS for what in ("chars", "tokens", "true_reward"))
_JUDGED = tuple(f"{name}_{what}" for name in ("alpaca", "ood") for what in ("wr", "wr_se", "invalid"))
_OVER_SFT = tuple(
    f"{name}{end}"
    for name in ("win_rate_vs_sft", "ood_win_rate_vs_sft", "peak_win_rate_vs_sft")
    for end in ("", "_se", "_p")
)
_MT_BENCH = ("mtbench", "mtbench_turn1", "mtbench_turn2")
NAMES = (
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
BEGINNINGS = (
    "train_proxy/", "shaping/", "score/", "hacking/", "clauses/", "clauses_sft/", "clauses_per_response/",
    "clauses_per_response_sft/", "subset/", "judge/", "judge_se/", "judge_invalid/", "second/", "second_se/",
    "second_invalid/", "reward/", "true/", "true_reward/",
)  # fmt: skip
#: Losses of supervised recipes begin with the recipe's name, which may be your own.
ENDINGS = ("_loss", "_margin", "_accuracy")


def is_metric(name: str) -> bool:
    """Returns whether the last stage of a row can write a metric of this name."""
    begun = any(name.startswith(beginning) and name != beginning for beginning in BEGINNINGS)
    return name in NAMES or begun or name.endswith(ENDINGS)


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
