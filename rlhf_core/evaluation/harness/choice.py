"""Settings of a task of lm-evaluation-harness, and which tasks there are; without importing the harness.

A name is looked up among the harness's own task files. Their index takes the harness itself half a minute to build, so
that only the folder of a task is indexed (see `tasks.py`).
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from rlhf_core.errors import RecipeError, nearest
from rlhf_core.evaluation.benchmark_names import OFFICIAL_ROWS
from rlhf_core.typed import Checked, at_least

#: Distribution that holds the harness, and the extra of this project that installs it.
DISTRIBUTION, EXTRA = "lm-eval", "benchmarks"
_NAMED = re.compile(
    r"""^[ \t]*["']?(?:task|group)["']?[ \t]*:[ \t]*["']?([\w.+-]+)["']?[ \t]*(?:#.*)?$""", re.MULTILINE
)


@dataclass(frozen=True)
class HarnessTask(Checked):
    """A task of lm-evaluation-harness on which policies are measured.

    Args:
        task: its name in the harness, such as arc_challenge; a group such as mmlu is one task.
        metric: of the task, such as acc_norm.
        filter: answer filter of the task, such as strict-match; the harness calls no filter 'none'.
        shots: examples before each question; without it, as many as the task file says.
        chat: whether requests are put into the policy's chat template, with examples as turns before them.
        rows: name of a set in the folder of real data, `<rows>.<split>.jsonl`; without it, the task's own from the hub.
    """

    task: str
    metric: str = "acc"
    filter: str = "none"
    shots: Annotated[int, at_least(0)] | None = None
    chat: bool = False
    rows: str | None = None


#: The Open LLM Leaderboard's first version, by the column of Segment's Table 7: the harness's group `openllm`.
LEADERBOARD = {
    "arc": HarnessTask("arc_challenge", "acc_norm", shots=25),
    "truthfulqa": HarnessTask("truthfulqa_mc2", "acc", shots=0),
    "winograd": HarnessTask("winogrande", "acc", shots=5),
    "hellaswag": HarnessTask("hellaswag", "acc_norm", shots=10),
    "mmlu": HarnessTask("mmlu", "acc", shots=5),
    "gsm8k": HarnessTask("gsm8k", "exact_match", "strict-match", shots=5),
}


def harness_folder() -> Path:
    """Returns the folder of the harness's task files.

    Raises:
        RecipeError: the harness is not installed.
    """
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or spec.origin is None:
        raise RecipeError(
            f"{DISTRIBUTION} is not installed, which measures policies on these tasks; install the extra '{EXTRA}': "
            f"pip install 'rewardsmith[{EXTRA}]'"
        )
    return Path(spec.origin).parent / "tasks"


@cache
def task_files() -> dict[str, Path]:
    """Returns the file of each task and group by name."""
    files: dict[str, Path] = {}
    for path in sorted(harness_folder().rglob("*.yaml")):
        if found := _NAMED.search(path.read_text(encoding="utf-8")):
            files.setdefault(found[1], path)
    return files


def check_task(name: str, where: str) -> None:
    """Refuses a task that the harness does not have.

    Raises:
        RecipeError: names the nearest ones.
    """
    if name in OFFICIAL_ROWS and harness_folder():
        return  # reading 14,000 task files takes seconds
    known = task_files()
    if name not in known:
        near = nearest(name, known, more=3, cutoff=0.5)
        asked = f"did you mean {' or '.join(near)}?" if near else "`lm-eval ls tasks` lists those it has"
        raise RecipeError(f"{where}: task is '{name}', which {DISTRIBUTION} does not have; {asked}")
