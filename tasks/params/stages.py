"""Settings of running: what stages need while they run, which rows and seeds are run together (params.yaml), and files
of DeepSpeed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rlhf_core.errors import RecipeError
from rlhf_core.typed import Checked, Count, Size, above, each_once, typed
from tasks.params.pages import read_settings

#: The file of what is run.
RUNS = "params.yaml"
Seeds = Annotated[tuple[Size, ...], each_once()]


@dataclass(frozen=True)
class StageNeeds(Checked):
    """Resources of a running stage where a scale differs from the defaults; memory in GiB."""

    cores: Count | None = None
    gpus: Size | None = None
    memory_gb: Annotated[float, above(0)] | None = None


@dataclass(frozen=True)
class RowsAndSeeds(Checked):
    """Rows and seeds of a paper; a backbone's name stands for the backbone as it is."""

    rows: Annotated[tuple[str, ...], each_once()]
    seeds: Seeds


@dataclass(frozen=True)
class Suite(Checked):
    """The papers' whole matrices.

    Args:
        seeds: at the testbed's scale.
        scale_seeds: at every other scale by paper; `default` for papers that are not named.
    """

    seeds: Seeds
    scale_seeds: Mapping[str, Seeds]

    def _check_together(self) -> None:
        if "default" not in self.scale_seeds:
            raise RecipeError("scale_seeds: 'default' is missing; it holds the seeds of papers that are not named")


@dataclass(frozen=True)
class RunSettings(Checked):
    """params.yaml: what is run, by paper: the demo (a study counts as one), headline rows, and the whole matrices."""

    suite: Suite
    demo: Mapping[str, RowsAndSeeds] = field(default_factory=dict)
    demo_all: Mapping[str, RowsAndSeeds] = field(default_factory=dict)

    def _check_together(self) -> None:
        if both := sorted(self.demo.keys() & self.demo_all.keys()):
            raise RecipeError(f"demo and demo_all both name '{both[0]}'; leave it in one of them")

    def parts(self, paper: str) -> tuple[RowsAndSeeds, ...]:
        """Returns a paper's part of the demo or of demo-all, if it has one."""
        return tuple(named[paper] for named in (self.demo, self.demo_all) if paper in named)


def run_settings(root: Path) -> RunSettings:
    """Reads params.yaml."""
    return typed(RunSettings, read_settings(root / RUNS), RUNS)


def stage_needs(values: Mapping[str, Any], where: str) -> dict[str, StageNeeds]:
    """Returns the resources that stages need, by stage.

    Raises:
        RecipeError: an unknown field, or a value that its field does not allow.
    """
    return {stage: typed(StageNeeds, needs, f"{where}.{stage}") for stage, needs in values.items()}


def read_deepspeed(path: Path) -> dict[str, Any]:
    """Returns a DeepSpeed configuration file, checked."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"DeepSpeed configuration {path} cannot be read ({error}); see infra/deepspeed/") from None
    if not isinstance(config, dict) or not isinstance(config.get("zero_optimization"), dict):
        raise RecipeError(f"DeepSpeed configuration {path}: 'zero_optimization' with its 'stage' is missing")
    stage = config["zero_optimization"].get("stage")
    if stage not in (0, 1, 2, 3):
        raise RecipeError(f"DeepSpeed configuration {path}: zero_optimization stage is {stage}; known: 0, 1, 2, 3")
    given = {"optimizer", "scheduler", "gradient_clipping", "train_batch_size", "zero_force_ds_cpu_optimizer"}
    if own := sorted(given & set(config)):
        raise RecipeError(f"DeepSpeed configuration {path}: {', '.join(own)} come from the recipe; leave them out")
    offload = config["zero_optimization"].get("offload_optimizer") or {}
    if not isinstance(offload, dict):
        raise RecipeError(f"DeepSpeed configuration {path}: offload_optimizer is {offload!r}; write {{device: cpu}}")
    if offload.get("ratio", 1) != 1:
        raise RecipeError(f"DeepSpeed configuration {path}: an optimiser is offloaded whole; leave its ratio out")
    if (config.get("fp16") or {}).get("enabled"):
        raise RecipeError(f"DeepSpeed configuration {path}: fp16 scales losses and skips steps; use bf16")
    return config
