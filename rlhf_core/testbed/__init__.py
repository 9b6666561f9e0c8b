"""The embedded world with known rewards."""

from rlhf_core.testbed.annotator import Annotator, annotator_of, bayes_ceiling, calibrated_temperature
from rlhf_core.testbed.judge import GoldJudge
from rlhf_core.testbed.knowledge import GoldWorld
from rlhf_core.testbed.rewards import KINDS, Clause, ClauseRewards, Dials
from rlhf_core.testbed.world import VERSION, World

__all__ = [
    "KINDS",
    "VERSION",
    "Annotator",
    "Clause",
    "ClauseRewards",
    "Dials",
    "GoldJudge",
    "GoldWorld",
    "World",
    "annotator_of",
    "bayes_ceiling",
    "calibrated_temperature",
]
