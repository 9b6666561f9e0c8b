"""Settings of each stage and of the stages above it, typed as the stages type them: `TYPES` says how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError, RewardsmithError
from rlhf_core.supervised.config import TrainingConfig
from tasks.graph.items import Argument, Item, result_of
from tasks.params.aspects import AspectModelSpec, AspectSpec, SelectionEntry, SelectionScale
from tasks.params.backbone import BackboneSpec, EntropySpec, SegmenterSpec, TokenizerSpec
from tasks.params.data import data_spec
from tasks.params.evaluation import BestOfNSpec, EvaluationConfig, PoolSpec, RewardBenchSpec, SecondJudgeSpec
from tasks.params.pages import Address, explained, read_settings
from tasks.params.policy import PolicyScale
from tasks.params.questions import SamplesSpec, TeacherSpec
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


@dataclass(frozen=True)
class StageContext:
    """A stage with the stages that it reads from.

    Attributes:
        item: the stage.
        above: every stage above it, by its result.
        settings: of this root.
    """

    item: Item
    above: Mapping[str, Item]
    settings: TypedSettings

    def own(self, argument: str) -> Any:
        """Returns the typed settings of one of the stage's own arguments."""
        return self.settings.get(TYPES[self.item.module, argument], self.where(argument))

    def where(self, argument: str) -> str:
        """Returns the address of one of the stage's own settings."""
        return str(self.item.arguments[argument])

    def settings_by_address(self) -> Iterator[tuple[str, Any]]:
        """Yields the address and the typed settings of each of the stage's own arguments that has some."""
        for make, address in stated_settings(self.item):
            yield address, self.settings.get(make, address)

    def upstream(self, argument: str) -> list[StageContext]:
        """Returns the stages whose results are given as an argument; a given reward model has none."""
        value: Argument = self.item.arguments.get(argument, ())
        results = value if isinstance(value, tuple) else (str(value),)
        return [stage for one in results if (stage := self.stage_of(one)) is not None]

    def stage_of(self, result: str) -> StageContext | None:
        """Returns the stage that makes a result; None for what is given."""
        return StageContext(self.above[result], self.above, self.settings) if result in self.above else None

    @property
    def prepare(self) -> StageContext:
        """Returns the stage that prepares the stage's data."""
        stage = self.upstream("data")[0] if self.item.module != "prepare" else self
        return stage if stage.item.module == "prepare" else stage.prepare

    @property
    def data(self) -> Any:
        """Returns the typed data spec of the stage's data."""
        return self.prepare.own("spec")


def stated_settings(item: Item) -> Iterator[tuple[Make, str]]:
    """Yields the type and the address of each of a stage's settings."""
    for name, value in item.arguments.items():
        if (item.module, name) in TYPES:
            for address in value if isinstance(value, tuple) else (str(value),):
                yield TYPES[item.module, name], address


def by_result(items: list[Item]) -> dict[str, Item]:
    """Returns stages by their results."""
    return {result_of(item): item for item in items}
