"""Rows and reward models as the pages of params/ state them, as far as the graph needs to know them.

params/<paper>/rows.yaml                 rows of the paper; where there are many, also rows_<topic>.yaml
params/<paper>/reward_models.yaml        reward models, shared by rows; another paper's is `<paper>/<name>`
params/<paper>/selections.yaml           which aspects are compared with which holistic reward model
params/<paper>/generative_reward_models.yaml, aspect_models.yaml
params/scales/<scale>/backbones.yaml     what a row starts from, with the data and tokenizer that belong to it
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError, hint
from rlhf_core.recipe import Recipe, referenced_models, reward_models
from rlhf_core.segmentation.segmenters import segmenter_needs
from rlhf_core.supervised.recipes import GENERATED, PREFERENCE, SAMPLES, TEACHER, needs_of
from tasks.params.aspects import SelectionEntry
from tasks.params.pages import BASE, Address, entries, explained, page_files, read_page, read_settings
from tasks.params.policy import needed_solutions
from tasks.params.reward_model import GenerativeModelSpec, GivenSpec, MergeSpec, reward_model_spec
from tasks.params.row_parser import COMPARING, MEASURING, TRAINING, ComparingRow, MeasuringRow, RawRow, parse_row
from tasks.params.scales import scale_entries, scale_names
from tasks.params.settings import DEFAULT_SCALE, typed
from tasks.params.stages import run_settings
from tasks.params.yaml_files import folders_of

#: Stages at which rows end: what a run is asked for, and what is reported of it.
ROW_STAGES = ("sft", "policy", *MEASURING, *COMPARING)


@dataclass(frozen=True)
class ModelSpec:
    """A reward model, as its settings page states it.

    Attributes:
        entropies: whether its segments are cut by the SFT model's entropies.
        segmenter: the SaT model that finds its sentences, None for segments of another kind.
        merge: the reward models that it is the average of; empty where it is trained.
        data: the data set whose pairs it learns from, None for its backbone's.
        given: a folder with a trained model in `model/`, in the place of training one.
        references: names the scale's settings `references-<it>`; None for its `references`.
        samples: whether it learns from pairs of sampled solutions instead of the data's preference pairs.
    """

    paper: str
    name: str
    path: Address
    backbone: str
    entropies: bool
    segmenter: str | None = None
    merge: tuple[ModelSpec, ...] = ()
    data: str | None = None
    given: str | None = None
    references: str | None = None
    samples: bool = False


@dataclass(frozen=True)
class SelectionSpec:
    """A selection: what the initial policy's greedy and sampled answers are scored by.

    Attributes:
        backbone: whose initial policy answers.
        holistic: the holistic reward model.
        aspects: names of entries of params/scales/<scale>/aspects.yaml, in order.
    """

    paper: str
    name: str
    path: Address
    backbone: str
    holistic: ModelSpec
    aspects: tuple[str, ...]


@dataclass(frozen=True)
class RowSpec:
    """One row.

    Attributes:
        kind: reward, supervised; reward_bench or best_of_n, which measure a reward model; second_judge, which compares
            policies; or raw: the backbone itself, measured by its SFT stage.
        settings: names an entry of params/scales/<scale>/policy.yaml; the optimiser's kind without it.
        reward_models: those that its components read, in order, each once.
        entropies: whether a read-out of its own needs entropies.
        segmenter: the SaT model behind its sentences, if any.
        references: those of its reward models whose reference rewards a shaping needs.
        evaluation: names an entry of params/scales/<scale>/evaluation.yaml; None for the backbone's.
        selection: where its aspects and the statistics of pure samples come from, if anywhere.
        policies: the rows whose policies it compares, the one that is judged first.
        solutions: what it reads of sampled solutions: samples, a teacher's rewrites, a generative reward model's with
            its token rewards.
        generative: that generative reward model.
    """

    paper: str
    name: str
    path: Address
    kind: str
    backbone: str
    settings: str = ""
    reward_models: tuple[ModelSpec, ...] = ()
    entropies: bool = False
    segmenter: str | None = None
    references: tuple[ModelSpec, ...] = ()
    evaluation: str | None = None
    selection: SelectionSpec | None = None
    policies: tuple[RowSpec, ...] = ()
    solutions: tuple[str, ...] = ()
    generative: ModelSpec | None = None


#: The pages of a paper, by what their entries are.
PAGES = ("rows", "reward_models", "generative_reward_models", "selections", "aspect_models")


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


def backbone_names(root: Path) -> set[str]:
    """Returns the names of the backbones of all scales."""
    return {name for scale in scale_names(root) for name in scale_entries(root, scale, "backbones")}


def _one_sat_model(names: Iterable[str | None], where: str) -> str | None:
    found = sorted({name for name in names if name is not None})
    if len(found) > 1:
        raise RecipeError(f"{where}: sentences of several SaT models ({', '.join(found)}); a row has one")
    return found[0] if found else None


def _cuts(segmenter: Mapping[str, Any]) -> tuple[bool, str | None]:
    """Returns whether a segmenter cuts by entropies, and the SaT model behind its sentences."""
    needs = segmenter_needs(segmenter)
    return needs.entropies, str(segmenter["model"]) if needs.of_stage else None


def _find_model(root: Path, row: str, paper: str, named: str, kind: str, field_: str = "") -> tuple[str, Address]:
    """Returns the owner and the address of a reward model that a row names.

    Raises:
        RecipeError: no such model, with the nearest known names.
    """
    owner, _, name = named.rpartition("/")
    owner = owner or paper
    where = entries(root, paper_folder(owner), f"{kind}s").get(name)
    if where is None:
        folders = [path.name for path in folders_of(root / "params")]
        found = {folder: entries(root, paper_folder(folder), f"{kind}s") for folder in folders}
        known = {one if of == paper else f"{of}/{one}" for of, names in found.items() for one in names}
        raise RecipeError(
            f"{row}: {field_ or kind} is '{named}', which no page has{hint(named, sorted(known), more=3)}"
        )
    return owner, where


def load_model(root: Path, row: str, paper: str, named: str, field_: str = "reward_model") -> ModelSpec:
    """Returns the reward model that a row, or another entry, names in a field."""
    owner, where = _find_model(root, row, paper, named, "reward_model", field_)
    spec = reward_model_spec(read_settings(where.under(root)), where)
    if isinstance(spec, MergeSpec):
        return _merge(root, where, owner, spec)
    known = ModelSpec(owner, where.name, where, spec.backbone, entropies=False, data=spec.data)
    known = replace(known, references=spec.references)
    if isinstance(spec, GivenSpec):
        return replace(known, given=spec.given)
    entropies, segmenter = _cuts(spec.segmenter)
    return replace(known, entropies=entropies, segmenter=segmenter, samples=spec.pairs == SAMPLES)


def _generative_model(root: Path, row: str, paper: str, named: str, field_: str) -> ModelSpec:
    """Returns the generative reward model that a row names in a field."""
    owner, where = _find_model(root, row, paper, named, "generative_reward_model", field_)
    spec = typed(GenerativeModelSpec, read_settings(where.under(root)), where)
    return ModelSpec(owner, where.name, where, spec.backbone, entropies=False)


def _merge(root: Path, where: Address, owner: str, spec: MergeSpec) -> ModelSpec:
    """Returns a reward model that averages others of its backbone and data, which are trained themselves."""
    members = []
    for place, name in enumerate(spec.merge):
        _, at = _find_model(root, where, owner, name, "reward_model", f"merge[{place}]")
        if "merge" in read_settings(at.under(root)):
            raise RecipeError(f"{where}: merge: '{name}' is a merge itself; name the reward models that it averages")
        members.append(load_model(root, where, owner, name))
    for member in members:
        if member.given is not None:
            raise RecipeError(f"{where}: merge: '{member.name}' is given; name reward models that are trained here")
        if member.backbone != spec.backbone:
            raise RecipeError(
                f"{where}: backbone is '{spec.backbone}' but '{member.name}' is of '{member.backbone}'; only models of "
                "the same backbone can be averaged"
            )
        if member.data != spec.data:
            raise RecipeError(
                f"{where}: data is {spec.data or 'the default'} but '{member.name}' learns from "
                f"{member.data or 'the default'}; only models of the same data set can be averaged"
            )
    samples = {member.samples for member in members}
    if len(samples) > 1:
        raise RecipeError(f"{where}: some of the models learn from pairs of samples and some do not")
    return ModelSpec(
        owner,
        where.name,
        where,
        spec.backbone,
        entropies=any(member.entropies for member in members),
        segmenter=_one_sat_model([member.segmenter for member in members], where),
        merge=tuple(members),
        data=spec.data,
        references=spec.references,
        samples=samples == {True},
    )


def load_selection(root: Path, where: str, paper: str, name: str) -> SelectionSpec:
    """Returns the selection that a row names.

    Raises:
        RecipeError: no such selection, or one that is not valid.
    """
    known = entries(root, paper_folder(paper), "selections")
    own = known.get(name)
    if own is None:
        raise RecipeError(f"{where}: unknown selection '{name}'{hint(name, sorted(known), more=3)}")
    spec = typed(SelectionEntry, read_settings(own.under(root)), own)
    return SelectionSpec(
        paper, name, own, spec.backbone, load_model(root, own, paper, spec.holistic, "holistic"), spec.aspects
    )


def _compared(root: Path, paper: str, where: str, row: ComparingRow) -> tuple[RowSpec, ...]:
    """Returns the rows whose policies a row compares, the one that is judged first."""
    known, rows = row_addresses(root, paper), []
    for field_, name in (("policy", row.policy), *(("against", name) for name in row.against)):
        if name not in known:
            near = hint(name, sorted(known), more=3)
            raise RecipeError(f"{where}: {field_} names '{name}', which is not a row{near}")
        kind = read_settings(known[name].under(root)).get("kind", "reward")
        if kind not in TRAINING:
            raise RecipeError(f"{where}: {field_} names '{name}', a row of kind '{kind}', which trains no policy")
        rows.append(load_row(root, paper, known[name]))
    return tuple(rows)


def _solutions(
    root: Path, where: str, paper: str, recipe: Recipe, models: tuple[ModelSpec, ...]
) -> tuple[tuple[str, ...], ModelSpec | None]:
    """Returns the kinds of sampled solutions that a row reads, and its generative reward model."""
    optimiser = dict(recipe.optimiser)
    kind = str(optimiser.pop("kind"))
    named = [recipe.rewrites, *(part.generative_reward_model for part in recipe.components)]
    name = next((name for name in named if name is not None), None)
    field_ = "generative_reward_model" if recipe.rewrites is None else "rewrites"
    generative = None if name is None else _generative_model(root, where, paper, name, field_)
    if recipe.kind == "supervised":
        needed = set(needs_of(kind, optimiser)) - {PREFERENCE}
    else:
        sampled = generative is not None or any(model.samples for model in models)
        needed = {SAMPLES, TEACHER} if sampled else set()
        needed |= set() if generative is None else {GENERATED}
    if GENERATED in needed and generative is None:
        raise RecipeError(f"{where}: 'rewrites' must name the generative reward model whose rewrites are learned")
    unmet = [name for name in needed_solutions(recipe) if name not in needed]
    if unmet:
        raise RecipeError(
            f"{where}: the row learns from {unmet[0]}, but names no generative reward model: name it by 'rewrites', or "
            "in a component"
        )
    return tuple(name for name in (SAMPLES, TEACHER, GENERATED) if name in needed), generative


def _of_base(root: Path, where: Address, problem: str) -> str:
    """Returns a row's problem; the base's, where the page's base alone has the same one."""
    base = Address(f"{where.file}:{BASE}")
    try:
        parse_row({"title": BASE, **read_page(root / where.file).base}, base)
    except RecipeError as error:
        return str(error) if str(error).removeprefix(base) == problem.removeprefix(where) else problem
    return problem


def load_row(root: Path, paper: str, where: Address, backbones: Collection[str] | None = None) -> RowSpec:
    """Returns the row at an address, which is relative to the root.

    Args:
        backbones: of any scale, where they are known.

    Raises:
        RecipeError: a setting that is not valid, or a name that is not known.
    """
    try:
        row, name = parse_row(read_settings(where.under(root)), where), where.name
    except RecipeError as error:
        raise RecipeError(_of_base(root, where, explained(str(error), where.under(root)))) from None
    known = backbone_names(root) if backbones is None else backbones
    if row.backbone not in known:
        raise RecipeError(f"{where}: unknown backbone '{row.backbone}'{hint(row.backbone, sorted(known), more=3)}")
    if isinstance(row, RawRow):
        return RowSpec(paper, name, where, row.kind, row.backbone)
    if isinstance(row, MeasuringRow):
        model = load_model(root, where, paper, row.reward_model)
        return RowSpec(paper, name, where, row.kind, row.backbone, "", (model,), model.entropies, model.segmenter)
    if isinstance(row, ComparingRow):
        policies = _compared(root, paper, where, row)
        return RowSpec(paper, name, where, row.kind, row.backbone, policies=policies)
    return _training_row(root, paper, where, row)


def _training_row(root: Path, paper: str, where: Address, recipe: Recipe) -> RowSpec:
    """Returns a row that trains a policy, by its recipe."""
    named = reward_models(recipe)
    models = tuple(load_model(root, where, paper, name) for name in named)
    cuts = [_cuts(part.readout.segmenter) for part in recipe.components if part.readout is not None]
    selection = None
    if recipe.selection is not None:
        selection = load_selection(root, where, paper, recipe.selection)
        if selection.backbone not in (known := backbone_names(root)):
            near = hint(selection.backbone, sorted(known), more=3)
            raise RecipeError(f"{selection.path}: backbone is '{selection.backbone}', which no scale has{near}")
        if selection.backbone != recipe.backbone:
            raise RecipeError(
                f"{where}: backbone is '{recipe.backbone}' but selection '{selection.name}' is of "
                f"'{selection.backbone}'; name the same backbone"
            )
    solutions, generative = _solutions(root, where, paper, recipe, models)
    referenced = set(referenced_models(recipe))
    return RowSpec(
        paper,
        where.name,
        where,
        recipe.kind,
        recipe.backbone,
        settings=recipe.settings or str(recipe.optimiser["kind"]),
        reward_models=models,
        entropies=any(by_entropy for by_entropy, _ in cuts) or any(model.entropies for model in models),
        segmenter=_one_sat_model([*(sat for _, sat in cuts), *(model.segmenter for model in models)], where),
        references=tuple(model for name, model in zip(named, models, strict=True) if name in referenced),
        evaluation=recipe.evaluation,
        selection=selection,
        solutions=solutions,
        generative=generative,
    )


def load_rows(root: Path, paper: str) -> dict[str, RowSpec]:
    """Returns every row of a paper by name.

    Raises:
        RecipeError: a row that is not valid.
    """
    return {name: load_row(root, paper, where) for name, where in sorted(row_addresses(root, paper).items())}


def read_rows(root: Path, paper: str) -> tuple[dict[str, RowSpec], dict[str, str]]:
    """Returns the valid rows of a paper by name, and what is wrong with the others; read once as long as params/
    stays."""
    files = sorted(file for file in (root / "params").glob("**/*.yaml") if file.exists())
    rows, problems = _read_rows(
        root, paper, tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    )
    return dict(rows), dict(problems)


@lru_cache(maxsize=64)
def _read_rows(
    root: Path, paper: str, _: tuple[tuple[Path, int, int], ...]
) -> tuple[dict[str, RowSpec], dict[str, str]]:
    rows, problems, backbones = {}, {}, backbone_names(root)
    for name, where in sorted(row_addresses(root, paper).items()):
        try:
            rows[name] = load_row(root, paper, where, backbones)
        except (RecipeError, DataError) as error:
            problems[name] = str(error)
    return rows, problems


def raw_row(root: Path, paper: str, backbone: str) -> RowSpec:
    """Returns the row of a backbone as it is, which its SFT stage measures."""
    scales = (scale_entries(root, scale, "backbones") for scale in (DEFAULT_SCALE, *scale_names(root)))
    nowhere = Address(f"params/scales/{DEFAULT_SCALE}/backbones.yaml:{backbone}")
    where = next((found[backbone] for found in scales if backbone in found), nowhere)
    return RowSpec(paper, backbone, where, "raw", backbone)


def row_named(root: Path, paper: str, name: str, rows: Mapping[str, RowSpec] | None = None) -> RowSpec:
    """Returns a row by name, as it is in `rows` if it is there; the name of a backbone means the raw backbone."""
    if rows is not None and name in rows:
        return rows[name]
    if name in (known := row_addresses(root, paper)):
        return load_row(root, paper, known[name])  # says what is wrong with it
    backbones = backbone_names(root)
    if name in backbones:
        return raw_row(root, paper, name)
    raise RecipeError(f"unknown row '{name}' of {paper}{hint(name, sorted({*known, *backbones}), more=3)}")
