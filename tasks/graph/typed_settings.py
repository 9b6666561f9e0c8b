"""Settings of each stage, typed as the stage types them: `TYPES` says how, for every settings argument of a stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError, RewardsmithError
from rlhf_core.supervised.config import TrainingConfig
from tasks.params.aspects import AspectModelSpec, AspectSpec, SelectionEntry, SelectionScale
from tasks.params.backbone import BackboneSpec, EntropySpec, SegmenterSpec, TokenizerSpec
from tasks.params.data import data_spec
from tasks.params.evaluation import BestOfNSpec, EvaluationConfig, PoolSpec, RewardBenchSpec, SecondJudgeSpec
from tasks.params.pages import Address, explained, read_settings
from tasks.params.policy import PolicyScale
from tasks.params.reward_model import (
    GenerativeModelScale,
    GenerativeModelSpec,
    NormaliserSpec,
    ReferencesSpec,
    reward_model_scale,
    reward_model_spec,
)
from tasks.params.row_parser import parse_row
from tasks.params.settings import typed
from tasks.params.solutions import SamplesSpec, TeacherSpec

#: Makes typed settings of a mapping; the second argument is its place, for messages.
Make = Callable[[Mapping[str, Any], str], Any]


def _of(cls: type[Any]) -> Make:
    return partial(typed, cls)


#: Functions that type the settings among a stage's arguments, by stage and argument.
TYPES: Mapping[tuple[str, str], Make] = {
    ("prepare", "spec"): data_spec,
    ("tokenizer", "spec"): _of(TokenizerSpec),
    ("segmenter", "spec"): _of(SegmenterSpec),
    ("sft", "spec"): _of(BackboneSpec),
    ("sft", "evaluation"): _of(EvaluationConfig),
    ("entropies", "spec"): _of(EntropySpec),
    ("samples", "spec"): _of(SamplesSpec),
    ("teacher", "spec"): _of(TeacherSpec),
    ("generative_reward_model", "spec"): _of(GenerativeModelSpec),
    ("generative_reward_model", "scale"): _of(GenerativeModelScale),
    ("reward_model", "spec"): reward_model_spec,
    ("reward_model", "scale"): reward_model_scale,
    ("normaliser", "scale"): _of(NormaliserSpec),
    ("references", "scale"): _of(ReferencesSpec),
    ("aspect_model", "spec"): _of(AspectModelSpec),
    ("aspect_model", "scale"): _of(TrainingConfig),
    ("selection", "spec"): _of(SelectionEntry),
    ("selection", "scale"): _of(SelectionScale),
    ("selection", "aspect"): _of(AspectSpec),
    ("policy", "row"): parse_row,
    ("policy", "scale"): _of(PolicyScale),
    ("policy", "evaluation"): _of(EvaluationConfig),
    ("reward_bench", "scale"): _of(RewardBenchSpec),
    ("pool", "scale"): _of(PoolSpec),
    ("best_of_n", "scale"): _of(BestOfNSpec),
    ("second_judge", "row"): parse_row,
    ("second_judge", "scale"): _of(SecondJudgeSpec),
}


@dataclass
class TypedSettings:
    """Settings below a root, each typed once; what was wrong with one is raised again whenever it is asked for."""

    root: Path
    made: dict[tuple[Make, str], Any] = field(default_factory=dict)
    problems: set[str] = field(default_factory=set)

    def get(self, make: Make, address: str) -> Any:
        """Returns the typed settings at an address.

        Raises:
            RecipeError, DataError: they cannot be read or typed.
        """
        key = (make, address)
        if key not in self.made:
            try:
                self.made[key] = make(read_settings(self.root / address), address)
            except RecipeError as error:
                self.made[key] = RecipeError(explained(str(error), Address(self.root / address)))
            except DataError as error:
                self.made[key] = error
            if isinstance(self.made[key], RewardsmithError):
                self.problems.add(str(self.made[key]))
        found = self.made[key]
        if isinstance(found, RewardsmithError):
            raise found
        return found
