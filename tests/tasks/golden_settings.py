"""Settings of the golden runs: every stage, policy optimiser and supervised recipe at tiny size."""

from __future__ import annotations

from typing import Any

Values = dict[str, Any]

SUPERVISED: Values = {"epochs": 1, "batch": 16, "microbatch": 16, "learning_rate": 5.0e-3}
SIZES: Values = {"iterations": 2, "rollout_batch": 16, "minibatch": 8, "microbatch": 8, "epochs": 1} | {
    "actor_lr": 1.0e-3, "critic_lr": 2.0e-3
}  # fmt: skip
NO_CRITIC: Values = {name: value for name, value in SIZES.items() if name != "critic_lr"}
MEASURED: Values = {"checkpoints": 2, "checkpoint_prompts": 2, "rollout_samples": 4}
COMMON: Values = {"template": "plain", "world_seed": 0, "seed": 0, "annotator": {"temperature": 0.75}}
BANDIT: Values = {"kind": "bandit"}
ENTROPY: Values = {"kind": "entropy", "cutoff": "1.75"}
AGGREGATE: Values = {"segmenter": BANDIT, "read": "aggregate"}
SAT: Values = {"kind": "sat", "model": "sat-1l"}
LLAMA: Values = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": True,
    "initializer_range": 0.08,
}  # fmt: skip
T5: Values = {
    "model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2,
    "dropout_rate": 0.0, "tie_word_embeddings": False,
}  # fmt: skip


def policy_scale(optimiser: Values, **changed: Any) -> Values:
    """Returns the settings of a policy optimiser at tiny size."""
    return {"optimiser": optimiser, "sampling": {"max_new_tokens": 12}, **MEASURED, **changed}


def reward_row(title: str, optimiser: str, backbone: str = "tiny", **changed: Any) -> Values:
    """Returns a row that reads a whole-response reward model, or what `changed` says."""
    read = {"reward_model": "bandit", "readout": AGGREGATE, "normaliser": "sequence", "credit": "last_token"}
    reward = {} if {"components", "function", "generative_reward_model"} & set(changed) else read
    return {
        "title": title,
        "kind": "reward",
        "backbone": backbone,
        **reward,
        "optimiser": {"kind": optimiser},
    } | changed


def supervised_row(title: str, backbone: str = "reasoner", rewrites: str | None = None, **optimiser: Any) -> Values:
    """Returns a row of a supervised recipe."""
    row = {"title": title, "kind": "supervised", "backbone": backbone, "optimiser": optimiser}
    return row if rewrites is None else {**row, "rewrites": rewrites}


def reward_model(title: str, **changed: Any) -> Values:
    """Returns a reward model of whole responses."""
    common = {"segmenter": BANDIT, "aggregation": "mean", "loss": "bradley_terry"}
    return {"title": title, "backbone": "tiny", **common, **changed}


DIALOGUE: Values = {
    **COMMON,
    "source": "testbed",
    "limits": {"prompt": 160, "total": 288},
    "follow_up_share": 0.1,
    "baseline_quality": {"arena": 0.7, "ood": 0.7},
    "rows": {
        "sft": 48,
        "sft_validation": 8,
        "tasks": 16,
        "prompts": 16,
        "preference_train": 32,
        "preference_validation": 16,
        "preference_ood": 8,
        "benchmark": 4,
        "choices": 3,
        "arithmetic": 2,
        "functions": 1,
    },
}
DATA: dict[str, Values] = {
    "data/dialogue": DIALOGUE,
    "data/mathematics": {
        "source": "testbed",
        "task": "mathematics",
        "template": "plain",
        "limits": {"prompt": 96, "total": 240},
        "difficulty": {
            "arithmetic": {"seen_start": [1, 3], "unseen_start": [1, 3], "operand": [1, 2], "multiply_share": 0.0}
        },
        "rows": {"sft": 40, "sft_validation": 4, "questions": 8, "test": 4},
    },
    "data/questions": {
        "source": "testbed",
        "task": "multiple_choice",
        "template": "plain",
        "limits": {"prompt": 160, "total": 288},
        "rows": {"sft": 24, "sft_validation": 4, "questions": 6, "test": 2},
    },
    "data/longform": {
        **COMMON,
        "source": "testbed-longform",
        "limits": {"prompt": 176, "total": 288},
        "rows": {
            "sft": 64,
            "sft_validation": 8,
            "prompts": 24,
            "preference_train": 32,
            "preference_validation": 16,
            "preference_ood": 8,
            "labelled_train": 32,
            "labelled_validation": 8,
            "benchmark": 8,
        },
    },
    "data/translation": {
        **COMMON,
        "source": "testbed-translation",
        "limits": {"prompt": 64, "total": 128},
        "rows": {
            "sft": 40,
            "sft_validation": 8,
            "prompts": 12,
            "preference_train": 24,
            "preference_validation": 8,
            "preference_ood": 6,
            "benchmark": 6,
        },
    },
    "data/flattery": {**DIALOGUE, "annotator": {"temperature": 0.75, "flattery_bias": 3.0}}
    | {"padding": {"flattery": 0.4}},
}

BACKBONE: Values = {
    "data": "dialogue",
    "tokenizer": "dialogue",
    "evaluation": "dialogue",
    "architecture": LLAMA,
    "training": {**SUPERVISED, "epochs": 5, "batch": 8, "learning_rate": 2.0e-2},
}
EVALUATION: Values = {"max_new_tokens": 12, "task_tokens": 8, "judge": {"kind": "gold", "persona": "exact"}}
BACKBONES: dict[str, Values] = {
    "tokenizer": {"vocabulary": 400, "full_byte_alphabet": False},
    "question_tokenizer": {"vocabulary": 400},
    "backbone": BACKBONE,
    "reasoner": {**BACKBONE, "training": {**SUPERVISED, "epochs": 16, "batch": 8, "learning_rate": 2.0e-2}},
    "encoder_decoder": {**BACKBONE, "architecture": T5},
    "evaluation": EVALUATION,
    "question_evaluation": {"max_new_tokens": 16, "task_tokens": 16},
    "long_evaluation": {**EVALUATION, "temperature": 0, "max_new_tokens": 16},
    "entropies": {"cutoffs": {"1.75": {"quantile": 0.8}, "fixed": {"nats": 2.0}}},
    "segmenter": {
        "source": "train",
        "gold": "clauses",
        "tagger": {"layers": 1, "hidden": 16, "heads": 2, "vocabulary": 400, "window": 60},
        "training": {"epochs": 4, "batch": 8, "microbatch": 8, "learning_rate": 1.0e-2},
    },
    "samples": {"samples": 6, "sampling": {"max_new_tokens": 48, "temperature": 0.7, "top_p": 0.95}},
    "teacher": {"kind": "oracle", "options": {"noise": 0.1}, "limits": {"most_edits": 1.0}},
}

REWARD_MODELS: dict[str, Values] = {
    "training": {**SUPERVISED, "learning_rate": 1.0e-3},
    "reward_model/segment": reward_model("Reward model segment", segmenter=ENTROPY),
    "reward_model/bandit": reward_model("Bandit"),
    "reward_model/reg": reward_model("Reg", loss={"kind": "bradley_terry", "regularisation": 0.005}),
    "reward_model/odin": reward_model("ODIN", loss={"kind": "odin", "length": 1.0, "orthogonality": 1.0}),
    "reward_model/token": reward_model("Token", segmenter={"kind": "token"}, aggregation="sum"),
    "reward_model/sentence": reward_model(
        "Sentence", segmenter=SAT, aggregation={"kind": "differential_attention", "dim": 16}, end_token=True
    ),
    "reward_model/warm-1": reward_model("WARM, first", learning_rate_share=0.6, seed_offset=1000),
    "reward_model/warm-2": reward_model("WARM, second", learning_rate_share=1.2, seed_offset=2000),
    "reward_model/warm": {"title": "WARM", "backbone": "tiny", "merge": ["warm-1", "warm-2"]},
    "reward_model/solutions": reward_model("Solutions", backbone="reasoner", pairs="samples"),
    "generative": {"title": "Generative reward model", "backbone": "tiny"},
    "generative_scale": {
        "training": {**SUPERVISED, "epochs": 6, "batch": 8, "microbatch": 8},
        "limits": {"prompt": 400, "total": 480},
        "max_new_tokens": 24,
        "header": "short",
        "held_out": 0.3,
        "least_accuracy": 0.0,
    },
    "normaliser": {"pairs": 24, "floor_fraction": 0.1, "min_samples": 2},
    "references": {"sampling": {"max_new_tokens": 8}, "responses": 10, "batch": 16},
    "aspect_model/factuality": {
        "title": "Factuality", "backbone": "long", "aspect": "factuality", "density": "sentence"
    },
    "aspect_model/relevance": {"title": "Relevance", "backbone": "long", "aspect": "relevance", "density": "span"}
    | {"error_weight": 2.0},
    "aspect_model/completeness": {
        "title": "Completeness", "backbone": "long", "aspect": "completeness", "density": "sequence"
    },
    "aspects/factuality": {"aspect": {"kind": "trained"}, "model": "factuality"},
    "aspects/relevance": {"aspect": {"kind": "testbed-relevance", "noise": 0.1}},
    "aspects/completeness": {"aspect": {"kind": "testbed-completeness"}, "normaliser": "z"},
    "aspects/length": {"aspect": {"kind": "length"}, "normaliser": "mean", "positive": True},
    "aspects/grammar": {"aspect": {"kind": "testbed-grammar"}},
    "selection/qa": {
        "title": "Selection",
        "backbone": "long",
        "holistic": "holistic",
        "aspects": ["factuality", "relevance", "completeness", "length"],
        "rule": {"kind": "lowest"},
    },
    "selection/mt": {
        "title": "Selection",
        "backbone": "encoder-decoder",
        "holistic": "holistic",
        "aspects": ["grammar", "length"],
    },
    "selection_scale": {"prompts": 16, "max_new_tokens": 16, "rounds": 20},
}  # fmt: skip

SCALES: dict[str, Values] = {
    "policy/ppo": policy_scale(SIZES),
    "policy/ppo_a2c": policy_scale(SIZES),
    "policy/vanilla_ppo": policy_scale(NO_CRITIC),
    "policy/reinforce_plus_plus": policy_scale(NO_CRITIC),
    "policy/grpo": policy_scale({**NO_CRITIC, "rollout_batch": 20, "minibatch": 10, "kl_coef": 0.1, "epochs": 2}),
    "policy/rloo": policy_scale({**NO_CRITIC, "kl_coef": 0.1}),
    "policy/online_dpo": policy_scale({**NO_CRITIC, "actor_lr": 5.0e-4, "dpo_beta": 0.5}),
    "policy/par_ppo": policy_scale(
        {**SIZES, "iterations": 3, "critic": "reward_model", "value_target": "monte_carlo", "lr_warmup": 0.5}
        | {"value_coef": 1.0, "kl_coef": 0.1, "epochs": 2, "replay": 1},
        sampling={"max_new_tokens": 12, "temperature": 0.9, "top_k": 50, "top_p": 0.9},
        checkpoint_every=1,
        checkpoint_proxy=True,
        peak=True,
        measure_hacking=True,
    ),
    "policy/alarm": policy_scale(
        {**SIZES, "group_size": 2, "kl_target": 6.0, "kl_coef": 0.2, "critic_warmup": 1},
        sampling={"max_new_tokens": 16},
    ),
    "policy/rlmec": policy_scale({**NO_CRITIC, "iterations": 3, "epochs": 2}, imitation={"batch": 4}),
    "policy/dpo": {"optimiser": {**SUPERVISED, "learning_rate": 3.0e-4, "beta": 0.1}},
    "policy/solutions": {
        "optimiser": {**SUPERVISED, "batch": 8, "microbatch": 8}, "checkpoints": 2, "checkpoint_prompts": 4
    },
    "policy/solutions_dpo": {
        "optimiser": {**SUPERVISED, "batch": 8, "microbatch": 8, "beta": 0.1}, "checkpoints": 2, "checkpoint_prompts": 4
    },
    "reward_bench": {"source": "testbed", "pairs": 4},
    "pool": {
        "benchmarks": ["alpaca", "arena"],
        "samples": 4,
        "sampling": {"max_new_tokens": 12, "temperature": 0.6, "top_k": 50, "top_p": 0.9},
    },
    "best_of_n": {
        "sizes": [2, 4],
        "judges": {"judge": {"kind": "gold", "persona": "exact"}, "second": {"kind": "gold", "persona": "noisy"}},
    },
    "second_judge_scale": {"judge": {"kind": "gold", "persona": "noisy"}},
}  # fmt: skip

LENGTH_PENALTY: Values = {
    "kind": "length_penalty",
    "beyond": {"value": 300, "sft_lengths": 0.9},
    "per_token": {"value": 0.01, "sft_deviations": 1.0},
}
HOLISTIC: Values = {
    "name": "holistic",
    "reward_model": "holistic",
    "readout": AGGREGATE,
    "normaliser": "pure_samples",
    "credit": "last_token",
    "weight": 5,
}
GATE: Values = {"kind": "gate", "by": "holistic", "threshold": 0.0}


def par(*steps: Values) -> Values:
    """Returns what PAR's rows share: shaped rewards of a whole response, without a limit."""
    return {"normaliser": "none", "shaping": [LENGTH_PENALTY, *steps], "clamp": None}


def alarm_row(title: str, components: list[Values], **changed: Any) -> Values:
    """Returns a row that pays aspects beside the holistic reward."""
    row = reward_row(title, "ppo", "long", components=components, selection="qa", clamp=None)
    return row | changed


SEGMENT: Values = {
    "title": "Segment (Ours)",
    "kind": "reward",
    "backbone": "tiny",
    "reward_model": "segment",
    "readout": {"segmenter": ENTROPY, "read": "value"},
    "normaliser": "location_aware",
    "credit": "even_split",
    "optimiser": {"kind": "ppo", "value_clip": 0.25},
}
ROWS: dict[str, Values] = {
    "row/segment": SEGMENT,
    "row/bandit": reward_row("Bandit", "ppo"),
    "row/segment-par": {
        **SEGMENT,
        "title": "Segment with PAR",
        "shaping": [
            {"kind": "length_penalty", "beyond": {"value": 300, "sft_lengths": 1.0}},
            {"kind": "par", "references": 2},
            {"kind": "minmax"},
        ],
    },
    "row/dpo": supervised_row("DPO", "tiny", kind="dpo"),
    "row/two": reward_row(
        "Segments beside a shaped whole",
        "ppo",
        components=[
            {"name": "segments", "reward_model": "segment"}
            | {"readout": SEGMENT["readout"]}
            | {"normaliser": "global", "credit": "repeat", "weight": 0.5},
            {"name": "whole", "reward_model": "bandit", "readout": AGGREGATE}
            | {"shaping": {"kind": "par"}, "credit": "last_token", "weight": 0.5},
        ],
    ),
    "row/token": reward_row(
        "Token", "ppo", reward_model="token", readout={"segmenter": {"kind": "token"}, "read": "value"}
    )
    | {"normaliser": "last", "credit": "segment_end"},
    "row/function": reward_row(
        "Function", "reinforce_plus_plus", function="tests.tasks.own_reward:brevity", gives="sequence"
    )
    | {"credit": "last_token"},
    "row/lora": reward_row("Bandit with LoRA", "ppo", lora={"rank": 2, "alpha": 4}),
    "row/sentence": reward_row(
        "Sentence", "reinforce_plus_plus", reward_model="sentence", readout={"segmenter": SAT, "read": "weighted"}
    )
    | {"normaliser": "none", "credit": "segment_end"},
    "row/second-judge": {"title": "Second judge", "kind": "second_judge", "backbone": "tiny", "policy": "sentence"}
    | {"against": ["bandit", "dpo"]},
    "row/par": reward_row("PAR", "ppo", **par({"kind": "par", "references": 2})),
    "row/minmax": reward_row("Minmax", "ppo", **par({"kind": "minmax"})),
    "row/odin": reward_row(
        "ODIN", "ppo", reward_model="odin", readout={**AGGREGATE, "head": "quality"}, **par()
    ),
    "row/warm": reward_row("WARM", "ppo", reward_model="warm", **par()),
    "row/grpo-par": reward_row("GRPO, PAR", "grpo", **par({"kind": "par"})),
    "row/online-dpo-par": reward_row("Online DPO, PAR", "online_dpo", **par({"kind": "par"})),
    "row/rloo": reward_row("RLOO", "rloo", reward_model="segment")
    | {"readout": SEGMENT["readout"], "normaliser": "location_aware", "credit": "even_split"},
    "row/ppo-a2c": reward_row("PPO A2C", "ppo_a2c", "reasoner", reward_model="solutions"),
    "row/vanilla-ppo": reward_row("Vanilla PPO", "vanilla_ppo", "reasoner", reward_model="solutions")
    | {"credit": "every_token"},
    "row/qa-alarm": alarm_row("ALARM", [HOLISTIC, {"aspect": "factuality"}], combination=GATE),
    "row/qa-alarm-selected": alarm_row("ALARM, selected", [HOLISTIC, {"aspect": "selected"}], combination=GATE)
    | {"lora": {"rank": 2, "alpha": 4}},
    "row/qa-weighted-sum": alarm_row("Weighted sum", [HOLISTIC, {"aspect": "relevance"}, {"aspect": "length"}]),
    "row/mt-alarm": alarm_row("ALARM", [HOLISTIC, {"aspect": "grammar"}], combination=GATE)
    | {"backbone": "encoder-decoder", "selection": "mt"},
    "row/math-rlmec": reward_row("RLMEC", "rlmec", "reasoner", generative_reward_model="generative", credit="as_is")
    | {"imitation": {}},
    "row/math-without-tls": reward_row("RLMEC without token rewards", "rlmec", "reasoner", reward_model="solutions")
    | {"shaping": {"kind": "outcome_probability"}, "credit": "every_token", "imitation": {}, "rewrites": "generative"},
    "row/math-sft": supervised_row("SFT", kind="sft"),
    "row/math-rft": supervised_row("RFT", kind="rft"),
    "row/math-rft-td": supervised_row("RFT with rewrites", kind="rft", additional="teacher"),
    "row/math-coh": supervised_row("Chain of Hindsight", kind="coh"),
    "row/math-figa": supervised_row("FIGA", kind="figa"),
    "row/math-dpo": supervised_row("DPO", kind="dpo", pairs="samples"),
    "row/math-imitation": supervised_row("Imitation", kind="imitation", rewrites="generative"),
}  # fmt: skip

SETTINGS: dict[str, Values] = {**DATA, **BACKBONES, **REWARD_MODELS, **SCALES, **ROWS}
