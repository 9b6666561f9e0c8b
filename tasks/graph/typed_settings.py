"""Settings of each stage and of the stages above it, typed as the stages type them: `TYPES` says how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError, RewardsmithError
from rlhf_core.supervised.config import TrainingConfig
from tasks.graph.items import Argument, Item, result_of
from tasks.params.aspects import AspectModelSpec, AspectSpec, SelectionEntry, SelectionScale
from tasks.params.backbone import BackboneSpec, EntropySpec, SegmenterSpec, TokenizerSpec
from tasks.params.data import data_spec
from tasks.params.evaluation import BestOfNSpec, EvaluationConfig, PoolSpec, RewardBenchSpec, SecondJudgeSpec
from tasks.params.pages import BASE, Address, entries, explained, read_page, read_settings
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
from tasks.params.scales import scale_entries, scale_names
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


class TypedSettings:
    """Settings below a root, each typed once; what was wrong with one is raised again whenever it is asked for.

    Attributes:
        problems: of all entries that were asked for.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.problems = root, set[str]()
        self._made: dict[tuple[Make, str], Any] = {}
        self._entries: dict[tuple[str, str], dict[str, Address]] = {}

    def get(self, make: Make, address: str) -> Any:
        """Returns the typed settings at an address.

        Raises:
            RecipeError, DataError: they cannot be read or typed.
        """
        key = (make, address)
        if key not in self._made:
            try:
                self._made[key] = make(read_settings(self.root / address), address)
            except DataError as error:
                self._made[key] = error
            except RecipeError as error:
                self._made[key] = RecipeError(self._explained(str(error), make, Address(address)))
            if isinstance(self._made[key], RewardsmithError):
                self.problems.add(str(self._made[key]))
        found = self._made[key]
        if isinstance(found, RewardsmithError):
            raise found
        return found

    def entries(self, paper: str, kind: str) -> dict[str, Address]:
        """Returns addresses of a paper's entries of a kind by name, found once."""
        key = (paper, kind)
        if key not in self._entries:
            self._entries[key] = entries(self.root, Path("params") / paper, kind)
        return self._entries[key]

    @cached_property
    def backbones(self) -> frozenset[str]:
        """Returns the names of the backbones of all scales."""
        found = (scale_entries(self.root, scale, "backbones") for scale in scale_names(self.root))
        return frozenset(name for names in found for name in names)

    def _explained(self, problem: str, make: Make, address: Address) -> str:
        """Returns a problem of an entry as the base's, where the page's base alone has the same one."""
        if address.key is not None:
            base = Address(f"{address.file}:{BASE}")
            try:
                make({"title": BASE, **read_page(self.root / address.file).base}, base)
            except RecipeError as error:
                if str(error).removeprefix(base) == problem.removeprefix(address):
                    return str(error)
        return explained(problem, address.under(self.root))


def typed_settings(root: Path) -> TypedSettings:
    """Returns the settings below a root; the same as before as long as params/ stays as it is."""
    files = sorted(file for file in (root / "params").glob("**/*.yaml") if file.exists())
    return _typed_settings(root, tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files))


@lru_cache(maxsize=8)
def _typed_settings(root: Path, _: tuple[tuple[Path, int, int], ...]) -> TypedSettings:
    return TypedSettings(root)


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
