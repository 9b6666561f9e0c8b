"""Rows and reward models as the pages of params/ state them, as far as the graph needs to know them.

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

from rlhf_core.errors import RecipeError
from rlhf_core.shaping.specification import needs_references
from rlhf_core.supervised.recipes import GENERATED, PREFERENCE, SAMPLES, TEACHER, needs_of
from rlhf_core.supervised.recipes import RECIPES as SUPERVISED
from tasks.params.pages import Address, entries, nearest, page_files, read_settings
from tasks.params.scales import scale_entries, scale_names

ROOT_SCALE = "testbed"
#: Where backbones are, in messages.
BACKBONES = "params/scales/<scale>/backbones.yaml"
#: Rows that measure a reward model, by a stage of that name.
MEASURING = ("reward_bench", "best_of_n")
#: Rows that compare policies, by a stage of that name.
COMPARING = ("second_judge",)
KINDS = ("reward", "supervised", *MEASURING, *COMPARING, "raw")
#: What rows say that train nothing.
SETTINGS = dict.fromkeys(MEASURING, ("reward_model",)) | dict.fromkeys(COMPARING, ("policy", "against"))
#: Stages at which rows end: what a run is asked for, and what is reported of it.
ROW_STAGES = ("sft", "policy", *MEASURING, *COMPARING)


@dataclass(frozen=True)
class ModelSpec:
    """A reward model, as its page states it.

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
    """Where a paper's pages are, relative to the root."""
    return Path("params") / paper


def row_addresses(root: Path, paper: str) -> dict[str, Address]:
    """Addresses of a paper's rows by name."""
    return entries(root, paper_folder(paper), "rows")


def refuse_old_tree(root: Path) -> None:
    """Refuses a params/ in which each row and setting is a file of its own.

    Raises:
        RecipeError: it is one, and how to convert it.
    """
    scales = root / "params" / "scales"
    if old := sorted([*(root / "params").glob("*/rows/*.yaml"), *scales.glob("*/backbones/*.yaml")]):
        raise RecipeError(
            f"{old[0].relative_to(root)}: a file of its own; entries are on pages, such as params/<paper>/rows.yaml. "
            "Convert the tree with `rewardsmith migrate`"
        )


def papers(root: Path) -> tuple[str, ...]:
    """The papers that have rows, the demo's first.

    Raises:
        RecipeError: a tree with a file for each row.
    """
    refuse_old_tree(root)
    found = sorted(path.name for path in (root / "params").glob("*/") if page_files(path, "rows"))
    demo = [name for name in read_settings(root / "params.yaml")["demo"] if name in found]
    return tuple(dict.fromkeys([*demo, *found]))


def backbone_names(root: Path) -> set[str]:
    """Backbones of any scale."""
    return {name for scale in scale_names(root) for name in scale_entries(root, scale, "backbones")}


def _cuts_by_entropy(values: Any) -> bool:
    """Whether a segmenter of kind entropy stands anywhere in some settings."""
    if isinstance(values, Mapping):
        return values.get("kind") == "entropy" or any(map(_cuts_by_entropy, values.values()))
    return isinstance(values, list) and any(map(_cuts_by_entropy, values))


def _sat_models(values: Any) -> set[str]:
    """Names of the SaT models that segmenters anywhere in some settings use."""
    if isinstance(values, Mapping):
        own = {str(values.get("model"))} if values.get("kind") == "sat" else set()
        return own.union(*map(_sat_models, values.values()))
    return set().union(*map(_sat_models, values)) if isinstance(values, list) else set()


def _one_sat_model(names: Iterable[str | None], where: str) -> str | None:
    found = sorted({name for name in names if name is not None})
    if len(found) > 1:
        raise RecipeError(f"{where}: sentences of several SaT models ({', '.join(found)}); a row has one")
    return found[0] if found else None


def _model(root: Path, row: str, paper: str, named: str, kind: str = "reward_model") -> ModelSpec:
    """The reward model that a row names, or of another kind the generative one."""
    owner, _, name = named.rpartition("/")
    owner = owner or paper
    where = entries(root, paper_folder(owner), f"{kind}s").get(name)
    if where is None:
        folders = (path.name for path in (root / "params").glob("*/"))
        found = {folder: entries(root, paper_folder(folder), f"{kind}s") for folder in folders}
        known = {one if of == paper else f"{of}/{one}" for of, names in found.items() for one in names}
        raise RecipeError(f"{row}: unknown {kind} '{named}'. {nearest(named, known)}")
    values = read_settings(where.under(root))
    declared = values.get("backbone")
    if not isinstance(declared, str):
        raise RecipeError(f"{where}: 'backbone' is missing; it names an entry of {BACKBONES}")
    if "merge" in values:
        return _merge(root, where, owner, name, declared, values)
    segmenter = _one_sat_model(_sat_models(values), where)
    samples = values.get("pairs") == SAMPLES
    data, entropies = values.get("data"), _cuts_by_entropy(values)
    if data is not None and (entropies or segmenter or samples):
        raise RecipeError(
            f"{where}: entropies, SaT sentences and pairs of samples are those of the backbone's data; leave 'data' out"
        )
    own = values.get("given"), values.get("references")
    return ModelSpec(owner, name, where, declared, entropies, segmenter, (), data, *own, samples)


def _merge(root: Path, where: Address, owner: str, name: str, backbone: str, values: Mapping[str, Any]) -> ModelSpec:
    """A reward model that averages others of its backbone and data, which are trained themselves."""
    named, data = values["merge"], values.get("data")
    if not isinstance(named, list) or not all(isinstance(member, str) for member in named):
        raise RecipeError(f"{where}: merge is '{named}'; it must be a list of reward models' names")
    members = tuple(_model(root, where, owner, member) for member in named)
    for member in members:
        if member.merge:
            raise RecipeError(f"{where}: '{member.name}' is a merge itself; name the reward models that it averages")
        if member.backbone != backbone:
            raise RecipeError(
                f"{where}: backbone is '{backbone}' but '{member.name}' is of '{member.backbone}'; models of one "
                "backbone can be averaged"
            )
        if member.data != data:
            raise RecipeError(
                f"{where}: data is {data or 'that of the backbone'} but '{member.name}' learns from "
                f"{member.data or 'that of the backbone'}; models of one data set can be averaged"
            )
    segmenter = _one_sat_model([member.segmenter for member in members], where)
    entropies, samples = any(member.entropies for member in members), {member.samples for member in members}
    if len(samples) > 1:
        raise RecipeError(f"{where}: some of the models learn from pairs of samples and some do not")
    return ModelSpec(
        owner,
        name,
        where,
        backbone,
        entropies,
        segmenter,
        members,
        data,
        None,
        values.get("references"),
        samples == {True},
    )


def _models(root: Path, where: str, paper: str, values: Mapping[str, Any]) -> tuple[ModelSpec, ...]:
    """The reward models of a row's components, each once."""
    components = values.get("components", [values])
    others = {"function", "aspect", "generative_reward_model"}
    parts = [part for part in components if isinstance(part, Mapping) and not others & set(part)]
    named = [part.get("reward_model") for part in parts]
    if not components or not all(isinstance(name, str) for name in named):
        raise RecipeError(f"{where}: a row of this kind must name its 'reward_model', or that of each component")
    return tuple(_model(root, where, paper, name) for name in dict.fromkeys(map(str, named)))


def _referenced(where: str, values: Mapping[str, Any], models: tuple[ModelSpec, ...]) -> tuple[ModelSpec, ...]:
    """The reward models of the components whose shaping needs reference rewards, in the models' order."""
    parts = [part for part in values.get("components", [values]) if "reward_model" in part and "function" not in part]
    try:
        needed = {part["reward_model"] for part in parts if part.get("shaping") and needs_references(part["shaping"])}
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from None
    names = dict.fromkeys(part["reward_model"] for part in parts)
    return tuple(model for name, model in zip(names, models, strict=True) if name in needed)


def _refuse_other_settings(where: str, kind: str, values: Mapping[str, Any]) -> None:
    known = ("title", "kind", "backbone", "notes", *SETTINGS[kind])
    for name in values:
        if name not in known:
            raise RecipeError(f"{where}: a row of kind {kind} has no setting '{name}'. {nearest(str(name), known)}")


def load_selection(root: Path, where: str, paper: str, name: str) -> SelectionSpec:
    """The selection that a row names.

    Raises:
        RecipeError: no such file, or one without backbone, holistic reward model or aspects.
    """
    known = entries(root, paper_folder(paper), "selections")
    if name not in known:
        raise RecipeError(f"{where}: unknown selection '{name}'. {nearest(name, known)}")
    own = known[name]
    values = read_settings(own.under(root))
    backbone, holistic, aspects = (values.get(field) for field in ("backbone", "holistic", "aspects"))
    if not (isinstance(backbone, str) and isinstance(holistic, str)):
        raise RecipeError(f"{own}: 'backbone' and 'holistic' name the initial policy and the holistic reward model")
    if not (isinstance(aspects, list) and aspects and all(isinstance(name, str) for name in aspects)):
        raise RecipeError(f"{own}: 'aspects' must list names of entries of params/scales/<scale>/aspects.yaml")
    if len(set(aspects)) != len(aspects):
        raise RecipeError(f"{own}: 'aspects' names one of {aspects} twice")
    return SelectionSpec(paper, name, own, backbone, _model(root, own, paper, holistic), tuple(aspects))


def _compared(root: Path, paper: str, where: str, values: Mapping[str, Any]) -> tuple[RowSpec, ...]:
    """The rows whose policies a row compares, the one that is judged first."""
    names, known = [values.get("policy"), *values.get("against", [])], row_addresses(root, paper)
    for name in names:
        if name not in known:
            raise RecipeError(f"{where}: no row '{name}' for 'policy' or 'against'. {nearest(str(name), known)}")
    rows = tuple(load_row(root, paper, known[name]) for name in names)
    for row in rows:
        if row.kind not in ("reward", "supervised"):
            raise RecipeError(f"{where}: row '{row.name}' is of kind '{row.kind}', which trains no policy")
    if len(rows) < 2:
        raise RecipeError(f"{where}: 'against' names no row")
    return rows


def _solutions(
    root: Path, where: str, paper: str, values: Mapping[str, Any], models: tuple[ModelSpec, ...]
) -> tuple[tuple[str, ...], ModelSpec | None]:
    """What a row reads of sampled solutions, and its generative reward model."""
    optimiser = dict(values["optimiser"])
    kind = optimiser.pop("kind")
    components = [part for part in values.get("components", [values]) if isinstance(part, Mapping)]
    named = [values.get("rewrites"), *(part.get("generative_reward_model") for part in components)]
    name = next((str(name) for name in named if name is not None), None)
    generative = None if name is None else _model(root, where, paper, name, "generative_reward_model")
    if kind in SUPERVISED:
        needed = set(needs_of(kind, optimiser)) - {PREFERENCE}
    else:
        sampled = generative is not None or any(model.samples for model in models)
        needed = {SAMPLES, TEACHER} if sampled else set()
        needed |= set() if generative is None else {GENERATED}
    if GENERATED in needed and generative is None:
        raise RecipeError(f"{where}: 'rewrites' must name the generative reward model whose rewrites are learned")
    return tuple(name for name in (SAMPLES, TEACHER, GENERATED) if name in needed), generative


def load_row(root: Path, paper: str, where: Address) -> RowSpec:
    """The row at an address, which is relative to the root."""
    values, name = read_settings(where.under(root)), where.name
    kind, backbone = values.get("kind", "reward"), values.get("backbone")
    if kind not in KINDS:
        raise RecipeError(f"{where}: kind is '{kind}'; it must be {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    if kind in SETTINGS:
        _refuse_other_settings(where, kind, values)
    if not isinstance(backbone, str):
        raise RecipeError(f"{where}: 'backbone' is missing; it names an entry of {BACKBONES}")
    known = backbone_names(root)
    if backbone not in known:
        raise RecipeError(f"{where}: unknown backbone '{backbone}'. {nearest(backbone, known)}")
    if kind == "raw":
        return RowSpec(paper, name, where, kind, backbone)
    if kind in MEASURING:
        (model,) = _models(root, where, paper, {"reward_model": values.get("reward_model")})
        entropies, segmenter = model.entropies, model.segmenter
        return RowSpec(paper, name, where, kind, backbone, "", (model,), entropies, segmenter)
    if kind in COMPARING:
        return RowSpec(paper, name, where, kind, backbone, policies=_compared(root, paper, where, values))
    optimiser = values.get("optimiser")
    if not isinstance(optimiser, Mapping) or not isinstance(optimiser.get("kind"), str):
        raise RecipeError(f"{where}: optimiser is '{optimiser}'; it must be a mapping, as in {{kind: ppo}}")
    settings = str(values.get("settings", optimiser["kind"]))
    models = _models(root, where, paper, values) if kind == "reward" else ()
    entropies = _cuts_by_entropy(values) or any(model.entropies for model in models)
    segmenter = _one_sat_model([*_sat_models(values), *(model.segmenter for model in models)], where)
    references = _referenced(where, values, models) if models else ()
    cut = entropies, segmenter
    evaluation = values.get("evaluation")
    selection = None
    if values.get("selection") is not None:
        selection = load_selection(root, where, paper, str(values["selection"]))
        if selection.backbone != backbone:
            raise RecipeError(
                f"{where}: backbone is '{backbone}' but selection '{selection.name}' is of '{selection.backbone}'"
            )
    solutions, generative = _solutions(root, where, paper, values, models)
    return RowSpec(
        paper, name, where, kind, backbone, settings, models, *cut, references, evaluation, selection,
        solutions=solutions, generative=generative,
    )  # fmt: skip


def load_rows(root: Path, paper: str) -> dict[str, RowSpec]:
    """Every row of a paper by name.

    Raises:
        RecipeError: an unknown backbone or reward model, or two that contradict each other.
    """
    return {name: load_row(root, paper, where) for name, where in sorted(row_addresses(root, paper).items())}


def raw_row(root: Path, paper: str, backbone: str) -> RowSpec:
    """The row of a backbone as it is, which its SFT stage measures."""
    scales = (scale_entries(root, scale, "backbones") for scale in (ROOT_SCALE, *scale_names(root)))
    nowhere = Address(f"params/scales/{ROOT_SCALE}/backbones.yaml:{backbone}")
    where = next((found[backbone] for found in scales if backbone in found), nowhere)
    return RowSpec(paper, backbone, where, "raw", backbone)


def row_named(root: Path, paper: str, name: str, rows: Mapping[str, RowSpec]) -> RowSpec:
    """A row by name; a backbone's name stands for the raw backbone."""
    if name in rows:
        return rows[name]
    backbones = backbone_names(root)
    if name in backbones:
        return raw_row(root, paper, name)
    raise RecipeError(f"unknown row '{name}' of {paper}. {nearest(name, {*rows, *backbones})}")
