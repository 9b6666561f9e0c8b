"""ALARM's stages, run in this process on a few dozen rows, with settings and results laid out as by the graph."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from tests.tasks.tiny_pipeline import SETTINGS as TINY

DATA: dict[str, Any] = {
    "source": "testbed-longform",
    "template": "plain",
    "limits": {"prompt": 176, "total": 288},
    "world_seed": 0,
    "seed": 0,
    "annotator": {"temperature": 0.75},
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
}
HOLISTIC = {
    "name": "holistic",
    "reward_model": "holistic",
    "readout": {"segmenter": {"kind": "bandit"}, "read": "aggregate"},
    "normaliser": "pure_samples",
    "credit": "last_token",
    "weight": 5,
}
ROW = {
    "title": "ALARM",
    "kind": "reward",
    "backbone": "alarm-qa",
    "selection": "qa",
    "components": [HOLISTIC, {"aspect": "factuality"}],
    "combination": {"kind": "gate", "by": "holistic", "threshold": 0.0},
    "clamp": None,
    "optimiser": {"kind": "ppo"},
}
ROWS: dict[str, dict[str, Any]] = {
    "qa-alarm": ROW,
    "qa-alarm-selected": {**ROW, "components": [HOLISTIC, {"aspect": "selected"}], "lora": {"rank": 2, "alpha": 4}},
    "qa-weighted-sum": {k: v for k, v in ROW.items() if k != "combination"},
    "qa-factuality": {k: v for k, v in {**ROW, "components": [{"aspect": "factuality"}]}.items() if k != "combination"},
    "qa-holistic": {k: v for k, v in {**ROW, "components": [HOLISTIC]}.items() if k != "combination"},
}
FILES: dict[str, dict[str, Any]] = {
    "data": DATA,
    "tokenizer": TINY["tokenizer"],
    "backbone": TINY["backbone"],
    "evaluation": {**TINY["evaluation"], "temperature": 0, "max_new_tokens": 16},
    "training": {"epochs": 1, "batch": 16, "microbatch": 16, "learning_rate": 1.0e-3},
    "reward_model": {
        "title": "Holistic",
        "backbone": "alarm-qa",
        "segmenter": {"kind": "bandit"},
        "aggregation": "mean",
        "loss": "bradley_terry",
    },
    "normaliser": TINY["normaliser"],
    "aspect_model": {"title": "Factuality", "backbone": "alarm-qa", "aspect": "factuality", "density": "sentence"},
    "selection": {
        "title": "Selection",
        "backbone": "alarm-qa",
        "holistic": "holistic",
        "aspects": ["factuality", "relevance", "completeness", "length"],
        "rule": {"kind": "lowest"},
    },
    "selection_scale": {"prompts": 16, "max_new_tokens": 16, "rounds": 20},
    "ppo": {
        **TINY["ppo"],
        "optimiser": {**TINY["ppo"]["optimiser"], "group_size": 2, "kl_target": 6.0, "kl_coef": 0.2},
        "sampling": {"max_new_tokens": 16},
    },
    "aspects/factuality": {"aspect": {"kind": "trained"}, "model": "factuality"},
    "aspects/relevance": {"aspect": {"kind": "testbed-relevance", "noise": 0.1}},
    "aspects/completeness": {"aspect": {"kind": "testbed-completeness"}, "normaliser": "z"},
    "aspects/length": {"aspect": {"kind": "length"}, "normaliser": "mean", "positive": True},
}
ASPECTS = ("factuality", "relevance", "completeness", "length")

#: In the place of the files above, for translation: token rewards of a grammar checker.
TRANSLATION: dict[str, dict[str, Any]] = {
    "data": {
        **DATA,
        "source": "testbed-translation",
        "limits": {"prompt": 64, "total": 128},
        "rows": {name: count for name, count in DATA["rows"].items() if "labelled" not in name},
    },
    "selection": {**FILES["selection"], "aspects": ["grammar", "length"]},
    "aspects/grammar": {"aspect": {"kind": "testbed-grammar"}},
    "qa-alarm": {**ROW, "components": [HOLISTIC, {"aspect": "grammar"}], "lora": {"rank": 2, "alpha": 4}},
}


class Run:
    """A folder with settings and results as the graph lays them out; stages run in this process.

    Args:
        root: the folder.
        changed: settings by name in the place of `FILES` and `ROWS`, or beside them.
        aspects: what the selection compares.
        models: aspects that are trained models, by name: settings of that name, or `aspect_model`.
    """

    def __init__(
        self,
        root: Path,
        changed: Mapping[str, Any] | None = None,
        aspects: Sequence[str] = ASPECTS,
        models: Mapping[str, str] | None = None,
    ) -> None:
        self.root, self.aspects = root, aspects
        self.models = {"factuality": "aspect_model"} if models is None else models
        for name, values in {**FILES, **ROWS, **(changed or {})}.items():
            path = self.settings(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(values), encoding="utf-8")

    def settings(self, name: str) -> Path:
        return self.root / "params" / f"{name}.yaml"

    def out(self, place: str) -> Path:
        return self.root / "results" / "testbed" / place

    def result(self, place: str) -> Path:
        return self.out(place) / "result"

    def read(self, place: str, file: str) -> Any:
        text = (self.result(place) / file).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()] if file.endswith("l") else json.loads(text)

    def stage(self, module: str, place: str, **arguments: Any) -> Path:
        line: list[str] = []
        for name, value in {**arguments, "out": self.out(place)}.items():
            values = value if isinstance(value, tuple) else (value,)
            line += [f"--{name.replace('_', '-')}", *map(str, values)]
        import_module(f"tasks.{module}").main(line)
        return self.result(place)

    def up_to_the_selection(self) -> Run:
        """Runs every stage before the policies."""
        data = {"data": self.stage("prepare", "shared/data/longform", spec=self.settings("data"))}
        words = self.stage("tokenizer", "shared/tokenizer/longform", spec=self.settings("tokenizer"), **data)
        files = {"spec": self.settings("backbone"), "evaluation": self.settings("evaluation")}
        sft = {"sft": self.stage("sft", "shared/sft/alarm-qa/0", **files, **data, tokenizer=words, seed=0)}
        scale = {"scale": self.settings("training")}
        spec = {"spec": self.settings("reward_model")}
        asked = self.settings("zero_shot")
        own = {"scale": asked} if asked.exists() else scale
        model = self.stage("reward_model", "alarm/reward_model/holistic/0", **spec, **own, **data, **sft, seed=0)
        fit = {"scale": self.settings("normaliser"), "reward_model": model}
        self.stage("normaliser", "alarm/normaliser/holistic/0", **fit, **data, **sft)
        for name, file in self.models.items():
            spec = {"spec": self.settings(file)}
            self.stage("aspect_model", f"alarm/aspect_model/{name}/0", **spec, **scale, **data, **sft, seed=0)
        self.stage("selection", "alarm/selection/qa/0", **self.selection_inputs())
        return self

    def _aspect_models(self) -> dict[str, tuple[Path, ...]]:
        found = tuple(self.result(f"alarm/aspect_model/{name}/0") for name in self.models)
        return {"aspect_model": found} if found else {}

    def policy(self, of: str, place: str | None = None, **changed: Any) -> Path:
        return self.stage("policy", place or f"alarm/policy/{of}/0", **{**self.policy_inputs(of), **changed})

    def policy_inputs(self, row: str) -> dict[str, Any]:
        read = {
            "reward_model": self.result("alarm/reward_model/holistic/0"),
            "normaliser": self.result("alarm/normaliser/holistic/0"),
        }
        return {
            "row": self.settings(row),
            "scale": self.settings("ppo"),
            "evaluation": self.settings("evaluation"),
            "data": self.result("shared/data/longform"),
            "sft": self.result("shared/sft/alarm-qa/0"),
            **(read if row != "qa-factuality" else {}),
            "selection": self.result("alarm/selection/qa/0"),
            "holistic": self.result("alarm/reward_model/holistic/0"),
            **self._aspect_models(),
            "seed": 0,
        }

    def selection_inputs(self) -> dict[str, Any]:
        return {
            "spec": self.settings("selection"),
            "scale": self.settings("selection_scale"),
            "aspect": tuple(self.settings(f"aspects/{name}") for name in self.aspects),
            "data": self.result("shared/data/longform"),
            "sft": self.result("shared/sft/alarm-qa/0"),
            "reward_model": self.result("alarm/reward_model/holistic/0"),
            **self._aspect_models(),
            "seed": 0,
        }
