"""Settings are read, checked and refused without torch."""

from __future__ import annotations

import subprocess
import sys

#: Modules that hold tables of choices, or settings that a file of params/ is read into.
LIGHT = (
    "rlhf_core.aspects.choices",
    "rlhf_core.choices",
    "rlhf_core.credit",
    "rlhf_core.data.selection",
    "rlhf_core.data.encoding",
    "rlhf_core.evaluation.consistency",
    "rlhf_core.evaluation.hacking_alarm",
    "rlhf_core.evaluation.judges.openai_endpoint",
    "rlhf_core.models.lora",
    "rlhf_core.models.sampling",
    "rlhf_core.normalisers",
    "rlhf_core.policy_optimisation.advantages",
    "rlhf_core.policy_optimisation.config",
    "rlhf_core.policy_optimisation.kl",
    "rlhf_core.policy_optimisation.objectives",
    "rlhf_core.reasoning.rewriting",
    "rlhf_core.recipe",
    "rlhf_core.rewards.aggregation",
    "rlhf_core.rewards.combinations",
    "rlhf_core.rewards.function",
    "rlhf_core.rewards.preference_losses",
    "rlhf_core.rewards.reads",
    "rlhf_core.schedule",
    "rlhf_core.services",
    "rlhf_core.segmentation.sat",
    "rlhf_core.segmentation.segmenters",
    "rlhf_core.shaping.choices",
    "rlhf_core.supervised.config",
    "rlhf_core.supervised.recipes",
    "rlhf_core.evaluation.judges.choices",
    "rlhf_core.teachers.choices",
    "rlhf_core.testbed.judge",
    "rlhf_core.typed",
)
HEAVY = ("torch", "transformers", "scipy", "sklearn", "pandas", "pandera", "datasets")
#: A row with a choice of every kind, and what is wrong in a second one.
ROW = """
from rlhf_core.errors import RecipeError
from rlhf_core.recipe import parse_recipe
component = {"reward_model": "m", "readout": {"segmenter": {"kind": "entropy", "cutoff": "1.75"}, "read": "value"},
             "normaliser": "location_aware", "shaping": {"kind": "par"}, "credit": "even_split"}
row = {"title": "t", "kind": "reward", "backbone": "b", "optimiser": {"kind": "grpo", "group_size": 4},
       "lora": {"rank": 8}, "alarm": {"patience": 3}, **component}
parse_recipe(row)
for wrong in ({"credit": "evensplit"}, {"shaping": {"kind": "par", "k": 0}}, {"optimiser": {"kind": "grp"}}):
    try:
        parse_recipe(row | wrong)
    except RecipeError:
        continue
    raise AssertionError(wrong)
"""


def test_settings_are_read_and_refused_without_anything_heavy() -> None:
    code = f"import sys\nimport {', '.join(LIGHT)}\n{ROW}\nprint([name for name in {HEAVY} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert (found.stdout, found.stderr) == ("[]\n", "")
