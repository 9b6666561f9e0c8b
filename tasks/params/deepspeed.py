"""DeepSpeed's configuration files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlhf_core.errors import RecipeError


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
    if own := sorted({"optimizer", "scheduler", "gradient_clipping", "train_batch_size"} & set(config)):
        raise RecipeError(f"DeepSpeed configuration {path}: {', '.join(own)} come from the recipe; leave them out")
    if (config.get("fp16") or {}).get("enabled"):
        raise RecipeError(f"DeepSpeed configuration {path}: fp16 scales losses and skips steps; use bf16")
    return config
