"""Names of the benchmarks that a data set can have beside arithmetic, and what the published ones hold."""

from importlib.resources import files
from typing import Any

import yaml

_HELD: dict[str, Any] = yaml.load(
    files("rlhf_core.evaluation").joinpath("benchmarks.yaml").read_bytes(), yaml.CSafeLoader
)

#: `held_out` has prompts of the preference data's test split.
DIALOGUE_BENCHMARKS = ("alpaca", "arena", "ood", "mtbench", "held_out")
CHOICE_TASKS = ("arc", "truthfulqa", "winograd", "hellaswag", "mmlu")
#: Columns of generated code, and the items of the published sets.
CODE_BENCHMARKS: dict[str, int] = _HELD["code"]
#: Numbers of items, of questions by column, and of rows by task of lm-evaluation-harness; a copy with fewer is partial.
OFFICIAL_ITEMS: dict[str, int] = _HELD["items"]
OFFICIAL_QUESTIONS: dict[str, int] = _HELD["questions"]
OFFICIAL_ROWS: dict[str, int] = _HELD["harness"]
#: Examples of each subset of RewardBench by section.
REWARD_BENCH: dict[str, dict[str, int]] = _HELD["reward_bench"]
#: Categories of MT-Bench whose answers are judged beside a reference, and the temperature of each one's answers.
REFERENCE_CATEGORIES = ("math", "reasoning", "coding")
CATEGORY_TEMPERATURES: dict[str, float] = _HELD["temperatures"]
