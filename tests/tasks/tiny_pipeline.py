"""Every stage of the pipeline on a world of a few dozen rows and a model of 16 dimensions."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tasks.params.yaml_files import yaml_text

SUPERVISED = {"epochs": 1, "batch": 16, "microbatch": 16, "learning_rate": 5.0e-3}

SETTINGS: dict[str, dict[str, Any]] = {
    "data": {
        "source": "testbed",
        "template": "plain",
        "limits": {"prompt": 160, "total": 288},
        "world_seed": 0,
        "seed": 0,
        "annotator": {"temperature": 0.75},
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
    },
    "tokenizer": {"vocabulary": 400, "full_byte_alphabet": False},
    "backbone": {
        "data": "dialogue",
        "tokenizer": "dialogue",
        "evaluation": "dialogue",
        "architecture": {
            "model_type": "llama",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
            "initializer_range": 0.08,
        },
        "training": {**SUPERVISED, "epochs": 5, "batch": 8, "learning_rate": 2.0e-2},
    },
    "evaluation": {"max_new_tokens": 12, "task_tokens": 8, "judge": {"kind": "gold", "persona": "exact"}},
    "entropies": {"cutoffs": {"1.75": {"quantile": 0.8}, "fixed": {"nats": 2.0}}},
    "reward_model_scale": {**SUPERVISED, "learning_rate": 1.0e-3},
    "reward_model": {
        "title": "Reward model segment",
        "backbone": "tiny",
        "segmenter": {"kind": "entropy", "cutoff": "1.75"},
        "aggregation": "mean",
        "loss": "bradley_terry",
    },
    "normaliser": {"pairs": 24, "floor_fraction": 0.1, "min_samples": 2},
    "ppo": {
        "optimiser": {
            "iterations": 2,
            "rollout_batch": 16,
            "minibatch": 8,
            "microbatch": 8,
            "epochs": 1,
            "actor_lr": 1.0e-3,
            "critic_lr": 2.0e-3,
        },
        "sampling": {"max_new_tokens": 12},
        "checkpoints": 2,
        "checkpoint_prompts": 2,
        "rollout_samples": 4,
    },
    "references": {"sampling": {"max_new_tokens": 8}, "responses": 3, "batch": 16},
    "dpo": {"optimiser": {**SUPERVISED, "learning_rate": 3.0e-4, "beta": 0.1}},
    "segment": {
        "title": "Segment (Ours)",
        "kind": "reward",
        "backbone": "tiny",
        "reward_model": "segment",
        "readout": {"segmenter": {"kind": "entropy", "cutoff": "1.75"}, "read": "value"},
        "normaliser": "location_aware",
        "credit": "even_split",
        "optimiser": {"kind": "ppo", "value_clip": 0.25},
    },
    "par": {
        "title": "Segment with PAR",
        "kind": "reward",
        "backbone": "tiny",
        "reward_model": "segment",
        "readout": {"segmenter": {"kind": "entropy", "cutoff": "1.75"}, "read": "value"},
        "normaliser": "location_aware",
        "shaping": [
            {"kind": "length_penalty", "beyond": {"value": 300, "sft_lengths": 1.0}},
            {"kind": "par", "references": 2},
            {"kind": "minmax"},
        ],
        "credit": "even_split",
        "optimiser": {"kind": "ppo", "value_clip": 0.25},
    },
    "questions": {
        "source": "testbed",
        "task": "mathematics",
        "template": "plain",
        "limits": {"prompt": 96, "total": 240},
        "difficulty": {"arithmetic": {"seen_start": [2, 9], "unseen_start": [3, 9], "operand": [1, 5]}},
        "rows": {"sft": 24, "sft_validation": 4, "questions": 6, "test": 2},
    },
    "question_tokenizer": {"vocabulary": 400},
    "question_evaluation": {"max_new_tokens": 8, "task_tokens": 8},
    "samples": {"samples": 2, "sampling": {"max_new_tokens": 12, "temperature": 0.7, "top_p": 0.95}},
    "teacher": {"kind": "oracle", "options": {"noise": 0.1}, "limits": {"most_edits": 1.0}},
    "generative_reward_model": {"title": "Generative reward model", "backbone": "tiny"},
    "generative_reward_model_scale": {
        "training": {**SUPERVISED, "batch": 4},
        "limits": {"prompt": 400, "total": 480},
        "max_new_tokens": 12,
        "header": "short",
        "held_out": 0.3,
        "least_accuracy": 0.0,
    },
    "dpo_row": {"title": "DPO", "kind": "supervised", "backbone": "tiny", "optimiser": {"kind": "dpo"}},
}

#: Runs of the tiny pipeline in order: name, stage module, arguments that name settings, and upstream runs; an
#: argument that another run than the one of its name gives is `argument=run`.
RUNS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "data": ("prepare", {"spec": "data"}, ()),
    "tokenizer": ("tokenizer", {"spec": "tokenizer"}, ("data",)),
    "sft": ("sft", {"spec": "backbone", "evaluation": "evaluation"}, ("data", "tokenizer")),
    "entropies": ("entropies", {"spec": "entropies"}, ("sft", "data")),
    "reward_model": (
        "reward_model",
        {"spec": "reward_model", "scale": "reward_model_scale"},
        ("data", "sft", "entropies"),
    ),
    "normaliser": ("normaliser", {"scale": "normaliser"}, ("data", "sft", "entropies", "reward_model")),
    "ppo": (
        "policy",
        {"row": "segment", "scale": "ppo", "evaluation": "evaluation"},
        ("data", "sft", "entropies", "reward_model", "normaliser"),
    ),
    "references": ("references", {"scale": "references"}, ("data", "sft", "reward_model")),
    "par": (
        "policy",
        {"row": "par", "scale": "ppo", "evaluation": "evaluation"},
        ("data", "sft", "entropies", "reward_model", "normaliser", "references"),
    ),
    "dpo": ("policy", {"row": "dpo_row", "scale": "dpo", "evaluation": "evaluation"}, ("data", "sft")),
    "questions": ("prepare", {"spec": "questions"}, ()),
    "question_tokenizer": ("tokenizer", {"spec": "question_tokenizer"}, ("data=questions",)),
    "question_sft": (
        "sft",
        {"spec": "backbone", "evaluation": "question_evaluation"},
        ("data=questions", "tokenizer=question_tokenizer"),
    ),
    "samples": ("samples", {"spec": "samples"}, ("data=questions", "sft=question_sft")),
    "teacher": ("teacher", {"spec": "teacher"}, ("data=questions", "sft=question_sft", "samples")),
    "generative_reward_model": (
        "generative_reward_model",
        {"spec": "generative_reward_model", "scale": "generative_reward_model_scale"},
        ("data=questions", "sft=question_sft", "samples", "teacher"),
    ),
}
SEEDED = (
    "question_sft",
    "samples",
    "generative_reward_model",
    "sft",
    "reward_model",
    "references",
    "ppo",
    "par",
    "dpo",
)


def changed(settings: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of a settings mapping with the value at a dotted path replaced; None removes it."""
    result = copy.deepcopy(settings)
    *parents, last = path.split(".")
    inner = result
    for name in parents:
        inner = inner[name]
    if value is None:
        inner.pop(last)
    else:
        inner[last] = value
    return result


@dataclass(frozen=True)
class Pipeline:
    """A directory with settings files and stage outputs, named as in RUNS."""

    root: Path

    def write(self, settings: dict[str, dict[str, Any]]) -> Pipeline:
        """Writes settings files; returns itself."""
        for name, values in settings.items():
            self.settings(name).parent.mkdir(parents=True, exist_ok=True)
            self.settings(name).write_text(yaml_text(values), encoding="utf-8")
        return self

    def settings(self, name: str) -> Path:
        return self.root / "params" / f"{name}.yaml"

    def out(self, name: str) -> Path:
        return self.root / "results" / name

    def result(self, name: str) -> Path:
        return self.out(name) / "result"

    def metrics(self, name: str) -> dict[str, float]:
        metrics: dict[str, float] = json.loads((self.result(name) / "metrics.json").read_text())
        return metrics

    def record(self, name: str) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.out(name) / "record" / "record.json").read_text())
        return record

    def rows(self, name: str, file: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.result(name) / file).read_text().splitlines()]

    def upstream(self, name: str) -> dict[str, Path]:
        """Results that a run reads, by argument."""
        parts = (each.partition("=") for each in RUNS[name][2])
        return {argument: self.result(run or argument) for argument, _, run in parts}

    def arguments(
        self, name: str, out: Path, seed: int = 0, settings: dict[str, Path] | None = None
    ) -> tuple[str, list[str]]:
        """(stage module, its command line) of a run; `settings` replaces settings files by argument."""
        stage, files, _ = RUNS[name]
        given = {argument: self.settings(file) for argument, file in files.items()} | (settings or {})
        paths = given | self.upstream(name) | {"out": out}
        line = [part for key, path in paths.items() for part in (f"--{key.replace('_', '-')}", str(path))]
        return f"tasks.{stage}", line + (["--seed", str(seed)] if name in SEEDED else [])

    def run(self, name: str, out: Path | None = None, seed: int = 0, settings: dict[str, Path] | None = None) -> Path:
        """Runs a stage's entry point in this process; returns its result directory."""
        out = out or self.out(name)
        module, line = self.arguments(name, out, seed, settings)
        main: Callable[[list[str]], None] = import_module(module).main
        main(line)
        return out / "result"
