"""Rows and reward models as the pages of params/ state them, with the models and rows that they name.

params/<paper>/rows.yaml                 rows of the paper; where there are many, also rows_<topic>.yaml
params/<paper>/reward_models.yaml        reward models, shared by rows; another paper's is `<paper>/<name>`
params/<paper>/selections.yaml           which aspects are compared with which holistic reward model
params/<paper>/generative_reward_models.yaml, aspect_models.yaml
params/scales/<scale>/backbones.yaml     what a row starts from, with the data and tokenizer that belong to it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError, hint
from rlhf_core.recipe import Recipe, referenced_models, reward_models
from rlhf_core.rewards.preference_losses import build_loss
from rlhf_core.segmentation.segmenters import segmenter_class
from rlhf_core.supervised.recipes import GENERATED, PREFERENCE, SAMPLES, TEACHER, needs_of
from tasks.graph.typed_settings import TypedSettings, typed_settings
from tasks.params.aspects import SelectionEntry
from tasks.params.pages import Address, entries, page_files
from tasks.params.policy import needed_solutions
from tasks.params.reward_model import MergeSpec, RewardModelSpec
from tasks.params.row_parser import COMPARING, MEASURING, TRAINING, AnyRow, ComparingRow, MeasuringRow, RawRow
from tasks.params.scales import scale_entries, scale_names
from tasks.params.settings import DEFAULT_SCALE
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

    @property
    def segmenters(self) -> list[Mapping[str, Any]]:
        """Returns the segmenters that it reads."""
        return []

    @property
    def entropies(self) -> bool:
        """Returns whether segments are cut by the SFT model's entropies."""
        return any(segmenter_class(one).needs_entropies for one in self.segmenters)

    @property
    def segmenter(self) -> str | None:
        """Returns the SaT model that finds sentences, None for segments of another kind.

        Raises:
            RecipeError: there are several.
        """
        found = sorted({str(one["model"]) for one in self.segmenters if hasattr(segmenter_class(one), "of_stage")})
        if len(found) > 1:
            raise RecipeError(f"{self.path}: sentences of several SaT models ({', '.join(found)}); a row has one")
        return found[0] if found else None


@dataclass(frozen=True)
class ModelSpec(TypedEntry):
    """A reward model, or a generative one; `merge` has the reward models that it is the average of."""

    merge: tuple[ModelSpec, ...] = ()

    @property
    def data(self) -> str | None:
        """Returns the data set whose pairs it learns from, None for its backbone's."""
        return getattr(self.spec, "data", None)

    @property
    def given(self) -> str | None:
        """Returns the folder of a model that is not trained here."""
        return getattr(self.spec, "given", None)

    @property
    def references(self) -> str | None:
        """Returns the name of the scale's settings `references-<name>`; None for its `references`."""
        return getattr(self.spec, "references", None)

    @property
    def trained(self) -> RewardModelSpec | None:
        """Returns the settings that it was trained with, an average like its first member; None for a given one."""
        spec = self.merge[0].spec if self.merge else self.spec
        return spec if isinstance(spec, RewardModelSpec) else None

    @property
    def samples(self) -> bool:
        """Returns whether it learns from pairs of sampled solutions instead of the data's preference pairs."""
        return self.trained is not None and self.trained.pairs == SAMPLES

    @property
    def segmenters(self) -> list[Mapping[str, Any]]:
        return [] if self.trained is None else [self.trained.segmenter]


@dataclass(frozen=True)
class SelectionSpec(TypedEntry):
    """A selection: what the initial policy's greedy and sampled answers are scored by beside its `aspects`.

    Attributes:
        holistic: the holistic reward model.
    """

    holistic: ModelSpec


@dataclass(frozen=True)
class RowSpec(TypedEntry):
    """One row with the models and rows that it names.

    Attributes:
        reward_models: those that its components read, in order, each once.
        selection: where its aspects and the statistics of pure samples come from, if anywhere.
        policies: the rows whose policies it compares, the one that is judged first.
        generative: the generative reward model whose rewrites or token rewards it reads.
    """

    reward_models: tuple[ModelSpec, ...] = ()
    selection: SelectionSpec | None = None
    policies: tuple[RowSpec, ...] = ()
    generative: ModelSpec | None = None

    @property
    def kind(self) -> str:
        """Returns reward, supervised; reward_bench or best_of_n, which measure a reward model; second_judge, which
        compares policies; or raw: the backbone itself, measured by its SFT stage."""
        return str(self.spec.kind)

    @property
    def settings(self) -> str:
        """Returns the name of a policy's sizes in params/scales/<scale>/policy.yaml; the optimiser's kind unless
        stated."""
        return self.spec.settings or str(self.spec.optimiser["kind"])

    @property
    def segmenters(self) -> list[Mapping[str, Any]]:
        own = [part.readout.segmenter for part in getattr(self.spec, "components", ()) if part.readout is not None]
        return own + [one for model in self.reward_models for one in model.segmenters]

    @property
    def references(self) -> tuple[ModelSpec, ...]:
        """Returns those of its reward models whose reference rewards a shaping needs."""
        if not isinstance(self.spec, Recipe):
            return ()
        needed, known = referenced_models(self.spec), zip(reward_models(self.spec), self.reward_models, strict=True)
        return tuple(model for name, model in known if name in needed)

    @property
    def solutions(self) -> tuple[str, ...]:
        """Returns what it reads of sampled solutions: samples, a teacher's rewrites, a generative reward model's with
        its token rewards.

        Raises:
            RecipeError: it learns from rewrites, and names no generative reward model.
        """
        recipe, needed = self.spec, set[str]()
        if recipe.kind == "supervised":
            optimiser = {name: value for name, value in recipe.optimiser.items() if name != "kind"}
            needed = set(needs_of(str(recipe.optimiser["kind"]), optimiser)) - {PREFERENCE}
            unmet = [GENERATED] if GENERATED in needed and self.generative is None else []
        else:
            if self.generative is not None or any(model.samples for model in self.reward_models):
                needed = {SAMPLES, TEACHER} if self.generative is None else {SAMPLES, TEACHER, GENERATED}
            unmet = [name for name in needed_solutions(recipe) if name not in needed]
        if unmet:
            raise RecipeError(
                f"{self.path}: the row learns from {unmet[0]}, but names no generative reward model: name it by "
                "'rewrites', or in a component"
            )
        return tuple(name for name in (SAMPLES, TEACHER, GENERATED) if name in needed)


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


def _refuse_unknown_backbone(settings: TypedSettings, name: str, where: str) -> None:
    if name not in settings.backbones:
        near = hint(name, sorted(settings.backbones), more=3)
        raise RecipeError(f"{where}: backbone is '{name}', which no scale has{near}")


def load_model(
    settings: TypedSettings,
    where: str,
    paper: str,
    asked: str,
    field: str = "reward_model",
    kind: str = "reward_models",
) -> ModelSpec:
    """Returns the reward model that an entry names in a field.

    Args:
        kind: reward_models or generative_reward_models.

    Raises:
        RecipeError: no such model, with the nearest known names; or models that cannot be averaged.
    """
    owner, _, name = asked.rpartition("/")
    owner = owner or paper
    if name not in (own := settings.entries(owner, kind)):
        folders = [path.name for path in folders_of(settings.root / "params")]
        known = {one if of == paper else f"{of}/{one}" for of in folders for one in settings.entries(of, kind)}
        raise RecipeError(f"{where}: {field} is '{asked}', which no page has{hint(asked, sorted(known), more=3)}")
    path = own[name]
    spec = settings.get(path)
    if not isinstance(spec, MergeSpec):
        return ModelSpec(owner, path, spec)
    members = tuple(load_model(settings, path, owner, one, f"merge[{at}]") for at, one in enumerate(spec.merge))
    _refuse_unlike(path, spec, members)
    return ModelSpec(owner, path, spec, members)


def _refuse_unlike(where: str, spec: MergeSpec, members: tuple[ModelSpec, ...]) -> None:
    """Refuses to average models that are not trained here, or that differ in more than rates, order and seed."""
    first = members[0]
    for member in members:
        if not isinstance(member.spec, RewardModelSpec):
            raise RecipeError(f"{where}: merge: '{member.name}' is not trained here; name reward models that are")
        if (member.backbone, member.data) != (spec.backbone, spec.data):
            raise RecipeError(
                f"{where}: merge: '{member.name}' has backbone {member.backbone} and data {member.data or 'of it'}; "
                f"they must be those of the average, {spec.backbone} and {spec.data or 'of it'}"
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


def load_selection(settings: TypedSettings, where: str, paper: str, name: str) -> SelectionSpec:
    """Returns the selection that a row names.

    Raises:
        RecipeError: no such selection, or one that is not valid.
    """
    known = settings.entries(paper, "selections")
    if name not in known:
        raise RecipeError(f"{where}: unknown selection '{name}'{hint(name, sorted(known), more=3)}")
    spec: SelectionEntry = settings.get(known[name])
    _refuse_unknown_backbone(settings, spec.backbone, known[name])
    return SelectionSpec(paper, known[name], spec, load_model(settings, known[name], paper, spec.holistic, "holistic"))


def _compared(settings: TypedSettings, paper: str, where: str, row: ComparingRow) -> tuple[RowSpec, ...]:
    """Returns the rows whose policies a row compares, the one that is judged first."""
    known, rows = settings.entries(paper, "rows"), []
    for field, name in (("policy", row.policy), *(("against", name) for name in row.against)):
        if name not in known:
            near = hint(name, sorted(known), more=3)
            raise RecipeError(f"{where}: {field} names '{name}', which is not a row{near}")
        rows.append(load_row(settings, paper, known[name]))
        if rows[-1].kind not in TRAINING:
            raise RecipeError(f"{where}: {field} names '{name}', of kind '{rows[-1].kind}', which trains no policy")
    return tuple(rows)


def load_row(settings: TypedSettings | Path, paper: str, where: Address) -> RowSpec:
    """Returns the row at an address, which is relative to the root.

    Args:
        settings: of the repository, or its root.

    Raises:
        RecipeError: a setting that is not valid, or a name that is not known.
    """
    settings = typed_settings(settings) if isinstance(settings, Path) else settings
    row: AnyRow = settings.get(where)
    _refuse_unknown_backbone(settings, row.backbone, where)
    if isinstance(row, MeasuringRow):
        return RowSpec(paper, where, row, (load_model(settings, where, paper, row.reward_model),))
    if isinstance(row, ComparingRow):
        return RowSpec(paper, where, row, policies=_compared(settings, paper, where, row))
    if isinstance(row, RawRow):
        return RowSpec(paper, where, row)
    models = tuple(load_model(settings, where, paper, name) for name in reward_models(row))
    selection = None if row.selection is None else load_selection(settings, where, paper, row.selection)
    if selection is not None and selection.backbone != row.backbone:
        raise RecipeError(
            f"{where}: backbone is '{row.backbone}' but selection '{selection.name}' is of '{selection.backbone}'; "
            "name the same backbone"
        )
    named = [("rewrites", row.rewrites)]
    named += [("generative_reward_model", part.generative_reward_model) for part in row.components]
    generative = [
        load_model(settings, where, paper, name, field, "generative_reward_models")
        for field, name in named
        if name is not None
    ]
    spec = RowSpec(paper, where, row, models, selection, generative=next(iter(generative), None))
    _ = spec.solutions, spec.segmenter  # refuses what the row lacks
    return spec


def load_rows(root: Path, paper: str) -> dict[str, RowSpec]:
    """Returns every row of a paper by name.

    Raises:
        RecipeError: a row that is not valid.
    """
    settings = typed_settings(root)
    return {name: load_row(settings, paper, where) for name, where in sorted(settings.entries(paper, "rows").items())}


def read_rows(root: Path, paper: str) -> tuple[dict[str, RowSpec], dict[str, str]]:
    """Returns the valid rows of a paper by name, and what is wrong with the others."""
    rows, problems, settings = {}, {}, typed_settings(root)
    for name, where in sorted(settings.entries(paper, "rows").items()):
        try:
            rows[name] = load_row(settings, paper, where)
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
    """
    settings = settings or typed_settings(root)
    if name in (known := settings.entries(paper, "rows")):
        return load_row(settings, paper, known[name])
    if name in settings.backbones:
        return raw_row(root, paper, name)
    raise RecipeError(f"unknown row '{name}' of {paper}{hint(name, sorted({*known, *settings.backbones}), more=3)}")
