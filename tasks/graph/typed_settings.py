"""Typed settings by their addresses: the name of a page says what its entries are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError, RewardsmithError
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.typed import typed
from tasks.graph.items import Item
from tasks.params.aspects import AspectModelSpec, AspectSpec, SelectionEntry, SelectionScale
from tasks.params.backbone import BackboneSpec, EntropySpec, SegmenterSpec, TokenizerSpec
from tasks.params.data import data_spec
from tasks.params.evaluation import (
    BestOfNSpec,
    EvaluationConfig,
    PoolSpec,
    ReevaluationSettings,
    RewardBenchSpec,
    SecondJudgeSpec,
)
from tasks.params.pages import BASE, Address, entries, read_page, read_settings
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
from tasks.params.scales import RESOURCES, STAGES, scale_entries, scale_names
from tasks.params.stages import RUNS, RunSettings, stage_needs

#: Makes typed settings of a mapping; the second argument is its place, for messages.
Make = Callable[[Mapping[str, Any], str], Any]


def _of(cls: type[Any]) -> Make:
    return partial(typed, cls)


#: The pages of a paper, by the name of their files.
PAPER_PAGES: Mapping[str, Make] = {
    "rows": parse_row,
    "reward_models": reward_model_spec,
    "generative_reward_models": _of(GenerativeModelSpec),
    "selections": _of(SelectionEntry),
    "aspect_models": _of(AspectModelSpec),
}
#: The pages of a scale.
SCALE_PAGES: Mapping[str, Make] = {
    "backbones": _of(BackboneSpec),
    "data": data_spec,
    "tokenizers": _of(TokenizerSpec),
    "evaluation": _of(EvaluationConfig),
    "policy": _of(PolicyScale),
    "aspects": _of(AspectSpec),
    "segmenters": _of(SegmenterSpec),
}
PAGES = {**PAPER_PAGES, **SCALE_PAGES}
#: Entries of a scale's stages.yaml, by the stage that their names begin with.
STAGE_SETTINGS: Mapping[str, Make] = {
    RESOURCES: stage_needs,
    "entropies": _of(EntropySpec),
    "samples": _of(SamplesSpec),
    "teacher": _of(TeacherSpec),
    "generative_reward_model": _of(GenerativeModelScale),
    "reward_model": reward_model_scale,
    "normaliser": _of(NormaliserSpec),
    "references": _of(ReferencesSpec),
    "aspect_model": _of(TrainingConfig),
    "selection": _of(SelectionScale),
    "reward_bench": _of(RewardBenchSpec),
    "pool": _of(PoolSpec),
    "best_of_n": _of(BestOfNSpec),
    "second_judge": _of(SecondJudgeSpec),
}
#: Whole files.
FILES: Mapping[str, Make] = {"reevaluation": _of(ReevaluationSettings), Path(RUNS).stem: _of(RunSettings)}


def type_of(address: str) -> Make:
    """Returns what types the settings at an address; raises KeyError for a page or stage that has none."""
    at = Address(address)
    stem = at.file.stem
    if at.key is None:
        return FILES[stem]
    if stem.partition("_")[0] == STAGES:
        return STAGE_SETTINGS[at.key.partition("-")[0]]
    kinds = [kind for kind in PAGES if stem == kind or stem.startswith(f"{kind}_")]
    return PAGES[max(kinds, key=len, default=stem)]


class TypedSettings:
    """Settings below a root, each typed once; what was wrong with one is raised again whenever it is asked for.

    Attributes:
        problems: of all entries that were asked for.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.problems = root, set[str]()
        self._made: dict[str, Any] = {}
        self._entries: dict[tuple[str, str], dict[str, Address]] = {}

    def get(self, address: str) -> Any:
        """Returns the typed settings at an address."""
        if address not in self._made:
            try:
                self._made[address] = type_of(address)(read_settings(self.root / address), address)
            except DataError as error:
                self._made[address] = error
            except RecipeError as error:
                self._made[address] = RecipeError(self._of_the_base(str(error), Address(address)))
            if isinstance(self._made[address], RewardsmithError):
                self.problems.add(str(self._made[address]))
        found = self._made[address]
        if isinstance(found, RewardsmithError):
            raise found
        return found

    def problem(self, address: str) -> str | None:
        """Returns what is wrong with the settings at an address, None if they are valid."""
        try:
            self.get(address)
        except (RecipeError, DataError) as error:
            return str(error)
        return None

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

    def _of_the_base(self, problem: str, address: Address) -> str:
        """Returns a problem of an entry as its page's base's, where the base alone has the same one."""
        if address.key is None:
            return problem
        base = Address(f"{address.file}:{BASE}")
        try:
            type_of(address)({"title": BASE, **read_page(self.root / address.file).base}, base)
        except RecipeError as error:
            if str(error).removeprefix(base) == problem.removeprefix(address):
                return str(error)
        return problem


def typed_settings(root: Path) -> TypedSettings:
    """Returns the settings below a root; the same as before as long as params/ stays as it is."""
    files = sorted(file for file in (root / "params").glob("**/*.yaml") if file.exists())
    return _typed_settings(root, tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files))


@lru_cache(maxsize=8)
def _typed_settings(root: Path, _: tuple[tuple[Path, int, int], ...]) -> TypedSettings:
    return TypedSettings(root)


def walk(settings: Any, place: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yields the place, name and value of each field anywhere in typed settings."""
    if isinstance(settings, tuple):
        for number, each in enumerate(settings):
            yield from walk(each, f"{place}[{number}]")
    elif is_dataclass(settings):
        for field in fields(settings):
            at, value = f"{place}.{field.name}" if place else field.name, getattr(settings, field.name)
            yield at, field.name, value
            yield from walk(value, at)


@dataclass(frozen=True)
class StageContext:
    """A stage with the typed settings of itself and of the stages that it reads from.

    Attributes:
        item: the stage.
        settings: of this root.
    """

    item: Item
    settings: TypedSettings

    def own(self, argument: str) -> Any:
        """Returns the typed settings of one of the stage's own arguments."""
        return self.settings.get(self.where(argument))

    def where(self, argument: str) -> str:
        """Returns the address of one of the stage's own settings."""
        return str(self.item.inputs[argument])

    def settings_by_address(self) -> Iterator[tuple[str, Any]]:
        """Yields the address and the typed settings of each of the stage's own arguments that has some."""
        for address in self.item.addresses:
            yield address, self.settings.get(address)

    def upstream(self, argument: str) -> list[StageContext]:
        """Returns the stages whose results are given as an argument; a given reward model has none."""
        return [StageContext(item, self.settings) for item in self.item.items(argument)]

    @property
    def prepare(self) -> StageContext:
        """Returns the stage that prepares the stage's data."""
        stage = self if self.item.module == "prepare" else self.upstream("data")[0]
        return stage if stage.item.module == "prepare" else stage.prepare

    @property
    def data(self) -> Any:
        """Returns the typed data spec of the stage's data."""
        return self.prepare.own("spec")
