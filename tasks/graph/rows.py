"""Rows and reward models by name, with their typed settings.

params/<paper>/rows.yaml                 rows of the paper; where there are many, also rows_<topic>.yaml
params/<paper>/reward_models.yaml        reward models, shared by rows; another paper's is `<paper>/<name>`
params/<paper>/selections.yaml           which aspects are compared with which holistic reward model
params/<paper>/generative_reward_models.yaml, aspect_models.yaml
params/scales/<scale>/backbones.yaml     what a row starts from, with the data and tokenizer that belong to it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError, hint
from rlhf_core.recipe import Recipe, reward_models
from rlhf_core.rewards.preference_losses import build_loss
from rlhf_core.segmentation.segmenters import segmenter_class
from rlhf_core.supervised.recipes import GENERATED, PREFERENCE, SAMPLES, TEACHER, needs_of
from tasks.graph.typed_settings import TypedSettings, typed_settings
from tasks.params.pages import Address, entries, page_files
from tasks.params.policy import needed_solutions
from tasks.params.reward_model import MergeSpec, RewardModelSpec
from tasks.params.row_parser import COMPARING, MEASURING, TRAINING, MeasuringRow, RawRow
from tasks.params.scales import DEFAULT_SCALE, scale_entries, scale_names
from tasks.params.stages import run_settings
from tasks.params.yaml_files import folders_of

#: Stages at which rows end: what a run is asked for, and what is reported of it.
ROW_STAGES = ("sft", "policy", *MEASURING, *COMPARING)


@dataclass(frozen=True)
class TypedEntry:
    """An entry of a paper's page with its typed settings."""

    paper: str
    path: Address
    spec: Any

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def backbone(self) -> str:
        return str(self.spec.backbone)


@dataclass(frozen=True)
class RowSpec(TypedEntry):
    """A row."""

    @property
    def kind(self) -> str:
        """Returns one of `ROW_KINDS`."""
        return str(self.spec.kind)

    @property
    def reward_models(self) -> list[str]:
        """Returns the names of the reward models that it reads, each once, in order."""
        if isinstance(self.spec, MeasuringRow):
            return [self.spec.reward_model]
        return reward_models(self.spec) if isinstance(self.spec, Recipe) else []


@dataclass(frozen=True)
class ModelSpec(TypedEntry):
    """A reward model; `members` has the reward models that it is the average of."""

    members: tuple[ModelSpec, ...] = ()

    @property
    def trained(self) -> RewardModelSpec | None:
        """Returns the settings that it was trained with, an average like its first member; None for a given one."""
        spec = self.members[0].spec if self.members else self.spec
        return spec if isinstance(spec, RewardModelSpec) else None

    @property
    def segmenters(self) -> list[Mapping[str, Any]]:
        return [] if self.trained is None else [self.trained.segmenter]


def sentence_model(segmenters: Iterable[Mapping[str, Any]], where: str) -> str | None:
    """Returns the SaT model whose sentences segmenters read, None for segments of other kinds."""
    found = sorted({str(one["model"]) for one in segmenters if hasattr(segmenter_class(one), "of_stage")})
    if len(found) > 1:
        raise RecipeError(f"{where}: sentences of several SaT models ({', '.join(found)}); a row has one")
    return found[0] if found else None


def model_named(settings: TypedSettings, where: str, paper: str, asked: str, field: str = "reward_model") -> ModelSpec:
    """Returns the reward model that an entry names in a field."""
    owner, path = entry_named(settings, where, paper, asked, field, "reward_models")
    spec = settings.get(path)
    if not isinstance(spec, MergeSpec):
        return ModelSpec(owner, path, spec)
    members = tuple(model_named(settings, path, owner, one, f"merge[{at}]") for at, one in enumerate(spec.merge))
    _refuse_unlike(path, spec, members)
    return ModelSpec(owner, path, spec, members)


def entry_named(
    settings: TypedSettings, where: str, paper: str, asked: str, field: str, kind: str
) -> tuple[str, Address]:
    """Returns the paper and address of an entry of a kind of pages, `name` or another paper's `<paper>/<name>`."""
    owner, _, name = asked.rpartition("/")
    owner = owner or paper
    if name not in (own := settings.entries(owner, kind)):
        folders = [path.name for path in folders_of(settings.root / "params")]
        known = {one if of == paper else f"{of}/{one}" for of in folders for one in settings.entries(of, kind)}
        raise RecipeError(f"{where}: {field} is '{asked}', which no page has{hint(asked, sorted(known), more=3)}")
    return owner, own[name]


def _refuse_unlike(where: str, spec: MergeSpec, members: tuple[ModelSpec, ...]) -> None:
    """Refuses to average models that are not trained here, or that differ in more than rates, order and seed."""
    first = members[0]
    for member in members:
        if not isinstance(member.spec, RewardModelSpec):
            raise RecipeError(f"{where}: merge: '{member.name}' is not trained here; name reward models that are")
        if (member.backbone, member.spec.data) != (spec.backbone, spec.data):
            raise RecipeError(
                f"{where}: merge: '{member.name}' has backbone {member.backbone} and data "
                f"{member.spec.data or 'of it'}; they must be those of the average, {spec.backbone} and "
                f"{spec.data or 'of it'}"
            )
        for part, value in _read_by(member.spec).items():
            if value != (other := _read_by(first.spec)[part]):
                raise RecipeError(
                    f"{where}: merge: '{member.name}' has {part} {value} and '{first.name}' has {other}; merge reward "
                    "models of the same segmenter, aggregation, heads, end token and pairs"
                )


def _read_by(spec: RewardModelSpec) -> dict[str, Any]:
    own = {name: getattr(spec, name) for name in ("segmenter", "aggregation", "end_token", "pairs")}
    return {**own, "heads": build_loss(spec.loss).heads}


# --- rows --------------------------------------------------------------------------------------------------------


def paper_folder(paper: str) -> Path:
    """Returns the folder of a paper's pages, relative to the root."""
    return Path("params") / paper


def row_addresses(root: Path, paper: str) -> dict[str, Address]:
    """Returns where each row of a paper is set, by name: FILE:key, an entry of a settings page such as
    `params/par/rows.yaml:par`."""
    return entries(root, paper_folder(paper), "rows")


def papers(root: Path) -> tuple[str, ...]:
    """Returns the papers that have rows, those of the demo and of demo-all first."""
    found = [path.name for path in folders_of(root / "params") if page_files(path, "rows")]
    settings = run_settings(root)
    first = [name for name in (*settings.demo, *settings.demo_all) if name in found]
    return tuple(dict.fromkeys([*first, *found]))


def backbone_names(root: Path) -> frozenset[str]:
    """Returns the names of the backbones of all scales."""
    return typed_settings(root).backbones


def read_rows(
    root: Path, paper: str, settings: TypedSettings | None = None
) -> tuple[dict[str, RowSpec], dict[str, str]]:
    """Returns the rows of a paper with valid settings by name, and what is wrong with the others."""
    rows, problems, settings = {}, {}, settings or typed_settings(root)
    for name in sorted(settings.entries(paper, "rows")):
        try:
            rows[name] = row_named(root, paper, name, settings)
        except (RecipeError, DataError) as error:
            problems[name] = str(error)
    return rows, problems


def raw_row(root: Path, paper: str, backbone: str) -> RowSpec:
    """Returns the row of a backbone as it is, which its SFT stage measures."""
    scales = (scale_entries(root, scale, "backbones") for scale in (DEFAULT_SCALE, *scale_names(root)))
    nowhere = Address(f"params/scales/{DEFAULT_SCALE}/backbones.yaml:{backbone}")
    where = next((found[backbone] for found in scales if backbone in found), nowhere)
    return RowSpec(paper, where, RawRow(kind="raw", backbone=backbone))


def row_named(root: Path, paper: str, name: str, settings: TypedSettings | None = None) -> RowSpec:
    """Returns a row by name; the name of a backbone means the raw backbone.

    Args:
        settings: of the root, where they are at hand.

    Raises:
        RecipeError: an unknown row, or one whose own settings are not valid.
    """
    settings = settings or typed_settings(root)
    if (where := (known := settings.entries(paper, "rows")).get(name)) is not None:
        return RowSpec(paper, where, _with_backbone(settings, where))
    if name in settings.backbones:
        return raw_row(root, paper, name)
    raise RecipeError(f"unknown row '{name}' of {paper}{hint(name, sorted({*known, *settings.backbones}), more=3)}")


def _with_backbone(settings: TypedSettings, where: Address) -> Any:
    """Returns typed settings whose backbone some scale has."""
    spec = settings.get(where)
    if spec.backbone not in settings.backbones:
        near = hint(spec.backbone, sorted(settings.backbones), more=3)
        raise RecipeError(f"{where}: backbone is '{spec.backbone}', which no scale has{near}")
    return spec


# --- what a row names --------------------------------------------------------------------------------------------


def models_of(settings: TypedSettings, row: RowSpec) -> tuple[ModelSpec, ...]:
    """Returns the reward models that a row reads, in order, each once."""
    return tuple(model_named(settings, row.path, row.paper, name) for name in row.reward_models)


def selection_of(settings: TypedSettings, row: RowSpec) -> TypedEntry | None:
    """Returns the selection of a row's aspects and pure samples, if it has one.

    Raises:
        RecipeError: no such selection, or one of another backbone.
    """
    if (name := row.spec.selection) is None:
        return None
    found = selection_named(settings, row.path, row.paper, name)
    if found.backbone != row.backbone:
        raise RecipeError(
            f"{row.path}: backbone is '{row.backbone}' but selection '{name}' is of '{found.backbone}'; name the same "
            "backbone"
        )
    return found


def selection_named(settings: TypedSettings, where: str, paper: str, name: str) -> TypedEntry:
    """Returns the selection that an entry names."""
    known = settings.entries(paper, "selections")
    if name not in known:
        raise RecipeError(f"{where}: unknown selection '{name}'{hint(name, sorted(known), more=3)}")
    return TypedEntry(paper, known[name], _with_backbone(settings, known[name]))


def generative_of(settings: TypedSettings, row: RowSpec) -> TypedEntry | None:
    """Returns the generative reward model whose rewrites or token rewards a row reads, if it reads one."""
    named = [("rewrites", row.spec.rewrites)]
    named += [("generative_reward_model", part.generative_reward_model) for part in row.spec.components]
    found = []
    for field, name in named:
        if name is not None:
            owner, path = entry_named(settings, row.path, row.paper, name, field, "generative_reward_models")
            found.append(TypedEntry(owner, path, settings.get(path)))
    return next(iter(found), None)


def compared_rows(settings: TypedSettings, row: RowSpec) -> list[RowSpec]:
    """Returns the rows whose policies a row compares, the one that is judged first.

    Raises:
        RecipeError: one that is not a row, or that trains no policy.
    """
    known, rows = settings.entries(row.paper, "rows"), []
    for field, name in (("policy", row.spec.policy), *(("against", name) for name in row.spec.against)):
        if name not in known:
            near = hint(name, sorted(known), more=3)
            raise RecipeError(f"{row.path}: {field} names '{name}', which is not a row{near}")
        rows.append(found := row_named(settings.root, row.paper, name, settings))
        if found.kind not in TRAINING:
            raise RecipeError(f"{row.path}: {field} names '{name}', of kind '{found.kind}', which trains no policy")
    return rows


def solutions_of(row: RowSpec, models: Iterable[ModelSpec], generative: TypedEntry | None) -> set[str]:
    """Returns what a row reads of sampled solutions: samples, a teacher's rewrites, a generative reward model's with
    its token rewards.

    Raises:
        RecipeError: it learns from rewrites, and names no generative reward model.
    """
    recipe, found = row.spec, set[str]()
    if recipe.kind == "supervised":
        optimiser = {name: value for name, value in recipe.optimiser.items() if name != "kind"}
        found = set(needs_of(str(recipe.optimiser["kind"]), optimiser)) - {PREFERENCE}
        unmet = [GENERATED] if GENERATED in found and generative is None else []
    else:
        if generative is not None or any(one.trained and one.trained.pairs == SAMPLES for one in models):
            found = {SAMPLES, TEACHER} if generative is None else {SAMPLES, TEACHER, GENERATED}
        unmet = [name for name in needed_solutions(recipe) if name not in found]
    if unmet:
        raise RecipeError(
            f"{row.path}: the row learns from {unmet[0]}, but names no generative reward model: name it by 'rewrites', "
            "or in a component"
        )
    return found
