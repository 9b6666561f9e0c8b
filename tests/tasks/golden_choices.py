"""Settings of golden runs beside the main ones: each choice of a step that no main run makes, at its cheapest."""

from __future__ import annotations

from typing import Any

from tests.tasks.golden_settings import (
    AGGREGATE,
    ENTROPY,
    EVALUATION,
    LENGTH_PENALTY,
    NO_CRITIC,
    SIZES,
    Values,
    policy_scale,
    reward_model,
    reward_row,
    supervised_row,
)
from tests.tasks.golden_settings import SETTINGS as MAIN

NGRAM: Values = {"kind": "ngram", "n": 3}

#: Shapings by the name of their row; what the reference rewards are of is the bandit model.
SHAPINGS: dict[str, Values] = {
    "sigmoid_k2": {"kind": "sigmoid_k2"},
    "sigmoid_k3": {"kind": "sigmoid_k3", "references": 5},
    "tanh_centered": {"kind": "tanh_centered"},
    "sgfc": {"kind": "sgfc"},
    "centered": {"kind": "centered"},
    "poly": {"kind": "poly", "clamp": True},
    "lsc": {"kind": "lsc"},
    "length_penalty": LENGTH_PENALTY,
}
#: Those that need no reference rewards.
PLAIN_SHAPINGS: dict[str, Values] = {
    "sigmoid": {"kind": "sigmoid", "k": 2.0},
    "tanh": {"kind": "tanh"},
    "ceil": {"kind": "ceil", "ceiling": 0.5},
    "clip": {"kind": "clip"},
    "meanstd": {"kind": "meanstd"},
    "short_response": {"kind": "short_response", "tokens": 10, "value": -3.0},
}
#: Reward models by name: segmenter and aggregation.
MODELS: dict[str, Values] = {
    "marker": {"segmenter": {"kind": "sentence"}, "aggregation": "sum"},
    "difference": {"segmenter": NGRAM, "aggregation": "differential_mean"},
    "attention": {"segmenter": NGRAM, "aggregation": {"kind": "value_attention", "dim": 16}},
    "transformer": {"segmenter": {"kind": "token"}, "aggregation": {"kind": "preference_transformer", "dim": 16}},
}


def component(model: str, segmenter: Values, read: str, normaliser: str, credit: str, **more: Any) -> Values:
    """Returns what a row says of a reward model at segments."""
    readout = {"segmenter": segmenter, "read": read}
    return {"reward_model": model, "readout": readout, "normaliser": normaliser, "credit": credit, **more}


#: Rows on read-outs, normalisers and credit rules: the model that each reads, and what it says.
READS: dict[str, tuple[str, Values]] = {
    "marker": ("marker", component("marker", {"kind": "sentence"}, "value", "global", "segment_end")),
    "difference": ("difference", component("difference", NGRAM, "difference", "none", "segment_end")),
    "attention": ("attention", component("attention", NGRAM, "weighted", "none", "repeat")),
    "transformer": ("transformer", component("transformer", {"kind": "token"}, "aggregate", "sequence", "every_token")),
    "least-squares": (
        "segment", component("segment", ENTROPY, "value", "location_aware", "repeat", estimator="ols"),
    ),
    "read-elsewhere": ("bandit", component("bandit", NGRAM, "value", "sequence", "even_split", clamp=0.5)),
}  # fmt: skip

#: Iterations in which a learning rate's decay shows.
LONGER: Values = {"iterations": 3}
#: Changed settings of optimisers by the name of the row: kind and settings.
OPTIMISERS: dict[str, tuple[str, Values]] = {
    "whitening": (
        "ppo",
        {**SIZES, "whitening": "minibatch", "lr_schedule": "cosine", "epochs": 2, "gamma": 0.9, **LONGER},
    ),
    "no-clip": ("ppo", {**SIZES, "value_clip": None, "kl_estimator": "k2", "kl_coef": 0.2, "lam": 0.8}),
    "penalty": ("reinforce_plus_plus", {**NO_CRITIC, "kl_placement": "loss", "kl_estimator": "k2", "kl_coef": 0.2}),
    "groups": ("grpo", {**NO_CRITIC, "group_size": 4, "group_std": "sample", "kl_placement": "none", "epochs": 2}),
    "responses": (
        "rloo",
        {**NO_CRITIC, "loss_average": "responses", "lr_schedule": "linear", "max_grad_norm": 0.1, **LONGER},
    ),
}
#: Supervised recipes with other settings than those of RLMEC's table.
RECIPES: dict[str, Values] = {
    "rft-truths": supervised_row("RFT with ground truths", kind="rft", additional="ground_truth"),
    "figa-weights": supervised_row("FIGA", kind="figa", alpha=0.8, gamma=0.2),
    "imitation-weights": supervised_row("Imitation", kind="imitation", rewrites="generative", gamma=0.8),
}
#: Levels at which almost any fall and any divergence raise the hacking alarm.
EASILY_ALARMED: Values = {"false_alarms": 0.99, "proxy_level": 0.9, "kl": 0.005}

#: Rows of real data by the file's name; one of them is bad, and goes into quarantine.
FILES: dict[str, list[Values]] = {
    **{
        f"talks.{split}": [
            {"id": f"{split}-{n}", "prompt": f"Where is house number {n}?", "source": "made up"}
            | {"chosen": f"It is in street {n}, near the river." if n != 7 else "", "rejected": "I do not know."}
            for n in range(count)
        ]
        for split, count in (("train", 20), ("test", 5))
    },
    **{
        f"sums.{split}": [
            {"id": f"{split}-{n}", "question": f"What is {n} + 1?", "answer": str(n + 1), "source": "made up"}
            | {"solution": f"It is {n} + 1 = {n + 1}." if n % 3 else None}
            for n in range(count)
        ]
        for split, count in (("train", 20), ("test", 5))
    },
}
#: Folder that FILES are written to.
FILES_FOLDER = "files"
OWN: Values = {"source": "directory", "directory": FILES_FOLDER, "template": "plain"} | {
    "limits": {"prompt": 64, "total": 128}
}

SETTINGS: dict[str, Values] = {
    "data/own-pairs": {**OWN, "preference": ["talks"], "validation_share": 0.2, "benchmark_rows": 4},
    "data/own-sums": {**OWN, "task": "mathematics", "train": ["sums"], "tests": {"sums": "seen"}}
    | {"rows": {"sft": 6, "sft_validation": 2, "questions": 4, "test": 2}},
    "generative_strict": {**MAIN["generative_scale"], "least_accuracy": 1.0},
    # Trained until it names steps: what stands before them is kept then.
    "generative_longer": MAIN["generative_scale"]
    | {"training": {**MAIN["generative_scale"]["training"], "epochs": 40}},
    "short_evaluation": {**EVALUATION, "only": ["alpaca"]},
    "policy/choice": policy_scale(NO_CRITIC),
    "policy/alarmed": policy_scale(
        {**NO_CRITIC, "actor_lr": 5.0e-3, **LONGER}, alarm=EASILY_ALARMED, checkpoint_prompts=4
    ),
    "row/alarmed": reward_row("Alarmed", "vanilla_ppo"),
    # A floor that some of the segments meet.
    "normaliser_floored": {**MAIN["normaliser"], "floor_fraction": 0.75},
    "row/floored": reward_row("Floored", "vanilla_ppo", **READS["least-squares"][1]),
    **{f"row/{name}": values for name, values in RECIPES.items()},
    **{f"policy/{name}": policy_scale(values) for name, (_, values) in OPTIMISERS.items()},
    **{f"reward_model/{name}": reward_model(name, **values) for name, values in MODELS.items()},
    **{
        f"row/{name}": reward_row(name, "vanilla_ppo", shaping=shaping, readout=AGGREGATE)
        for name, shaping in {**SHAPINGS, **PLAIN_SHAPINGS}.items()
    },
    **{f"row/{name}": reward_row(name, "vanilla_ppo", **values) for name, (_, values) in READS.items()},
    **{f"row/{name}": reward_row(name, kind) for name, (kind, _) in OPTIMISERS.items()},
}
