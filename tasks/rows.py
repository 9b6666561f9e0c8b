"""Rows and reward models as the files of params/ state them, as far as the graph needs to know them.

params/<paper>/rows/<row>.yaml             one row of the paper each
params/<paper>/reward_models/<name>.yaml   reward models, shared by rows; another paper's is `<paper>/<name>`
params/<paper>/generative_reward_models/   the same of generative ones
params/scales/<scale>/backbones/<it>.yaml  what a row starts from, with the data and tokenizer that belong to it
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.shaping.specification import needs_references
from rlhf_core.supervised.recipes import GENERATED, PREFERENCE, SAMPLES, TEACHER, needs_of
from rlhf_core.supervised.recipes import RECIPES as SUPERVISED

ROOT_SCALE = "testbed"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
KINDS = ("reward", "supervised", "raw")


@dataclass(frozen=True)
class ModelSpec:
    """A reward-model file.

    Attributes:
        entropies: whether its segments are cut by the SFT model's entropies.
        segmenter: the SaT model that finds its sentences, None for segments of another kind.
        samples: whether it learns from pairs of sampled solutions instead of the data's preference pairs.
    """

    paper: str
    name: str
    path: str
    backbone: str
    entropies: bool
    segmenter: str | None = None
    samples: bool = False


@dataclass(frozen=True)
class RowSpec:
    """One row file.

    Attributes:
        kind: reward, supervised, or raw: the backbone itself, measured by its SFT stage.
        settings: names params/scales/<scale>/policy/<it>.yaml; the optimiser's kind unless the row says otherwise.
        reward_models: those that its components read, in order, each once.
        entropies: whether a read-out of its own needs entropies.
        segmenter: the SaT model behind its sentences, if any.
        references: those of its reward models whose reference rewards a shaping needs.
        solutions: what it reads of sampled solutions: samples, a teacher's rewrites, a generative reward model's with
            its token rewards.
        generative: that generative reward model.
    """

    paper: str
    name: str
    path: str
    kind: str
    backbone: str
    settings: str = ""
    reward_models: tuple[ModelSpec, ...] = ()
    entropies: bool = False
    segmenter: str | None = None
    references: tuple[ModelSpec, ...] = ()
    solutions: tuple[str, ...] = ()
    generative: ModelSpec | None = None


def load_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping; a missing, unreadable or differently shaped file is named."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("file does not exist", file=str(path)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"not valid YAML ({error})", file=str(path)) from None
    if not isinstance(value, dict):
        raise DataError("expected a mapping of settings", file=str(path))
    return value


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the known names nearest to an unknown one."""
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(repr(c) for c in close)}?" if close else f"Known: {', '.join(names)}"


def papers(root: Path) -> tuple[str, ...]:
    """The papers that have rows, the demo's first."""
    found = sorted(path.parent.name for path in (root / "params").glob("*/rows"))
    demo = [name for name in load_yaml(root / "params.yaml")["demo"]["rows"] if name in found]
    return tuple(dict.fromkeys([*demo, *found]))


def backbone_names(root: Path, scale: str = ROOT_SCALE) -> set[str]:
    """Backbones of a scale."""
    return {path.stem for path in (root / "params" / "scales" / scale / "backbones").glob("*.yaml")}


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
    path = root / "params" / owner / f"{kind}s" / f"{name}.yaml"
    if not path.exists():
        known = {
            p.stem if p.parts[-3] == paper else f"{p.parts[-3]}/{p.stem}" for p in root.glob(f"params/*/{kind}s/*.yaml")
        }
        raise RecipeError(f"{row}: unknown {kind} '{named}'. {nearest(named, known)}")
    values, where = load_yaml(path), path.relative_to(root).as_posix()
    declared = values.get("backbone")
    if not isinstance(declared, str):
        raise RecipeError(f"{where}: 'backbone' is missing; it names params/scales/<scale>/backbones/<it>.yaml")
    segmenter = _one_sat_model(_sat_models(values), where)
    samples = values.get("pairs") == SAMPLES
    return ModelSpec(owner, name, where, declared, _cuts_by_entropy(values), segmenter, samples)


def _models(root: Path, where: str, paper: str, values: Mapping[str, Any]) -> tuple[ModelSpec, ...]:
    """The reward models of a row's components, each once."""
    components = values.get("components", [values])
    others = {"function", "generative_reward_model"}
    parts = [part for part in components if isinstance(part, Mapping) and not others & set(part)]
    named = [part.get("reward_model") for part in parts]
    if not components or not all(isinstance(name, str) for name in named):
        raise RecipeError(f"{where}: a row of kind reward must name its 'reward_model', or that of each component")
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


def load_row(root: Path, paper: str, path: Path) -> RowSpec:
    """One row file."""
    values, where = load_yaml(path), path.relative_to(root).as_posix()
    if not NAME.fullmatch(path.stem):
        raise RecipeError(f"{where}: a row's name may hold small letters, digits, '-', '_' and '.' only")
    kind, backbone = values.get("kind", "reward"), values.get("backbone")
    if kind not in KINDS:
        raise RecipeError(f"{where}: kind is '{kind}'; it must be {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    if not isinstance(backbone, str):
        raise RecipeError(f"{where}: 'backbone' is missing; it names params/scales/<scale>/backbones/<it>.yaml")
    known = backbone_names(root)
    if backbone not in known:
        raise RecipeError(f"{where}: unknown backbone '{backbone}'. {nearest(backbone, known)}")
    if kind == "raw":
        return RowSpec(paper, path.stem, where, kind, backbone)
    optimiser = values.get("optimiser")
    if not isinstance(optimiser, Mapping) or not isinstance(optimiser.get("kind"), str):
        raise RecipeError(f"{where}: optimiser is '{optimiser}'; it must be a mapping, as in {{kind: ppo}}")
    settings = str(values.get("settings", optimiser["kind"]))
    models = _models(root, where, paper, values) if kind == "reward" else ()
    entropies = _cuts_by_entropy(values) or any(model.entropies for model in models)
    segmenter = _one_sat_model([*_sat_models(values), *(model.segmenter for model in models)], where)
    references = _referenced(where, values, models) if models else ()
    solutions, generative = _solutions(root, where, paper, values, models)
    return RowSpec(
        paper,
        path.stem,
        where,
        kind,
        backbone,
        settings,
        models,
        entropies,
        segmenter,
        references,
        solutions,
        generative,
    )


def load_rows(root: Path, paper: str) -> dict[str, RowSpec]:
    """Every row of a paper by name.

    Raises:
        RecipeError: an unknown backbone or reward model, or two that contradict each other.
    """
    return {
        path.stem: load_row(root, paper, path) for path in sorted((root / "params" / paper / "rows").glob("*.yaml"))
    }


def raw_row(paper: str, backbone: str) -> RowSpec:
    """The row of a backbone as it is, which its SFT stage measures."""
    return RowSpec(paper, backbone, f"params/scales/{ROOT_SCALE}/backbones/{backbone}.yaml", "raw", backbone)


def row_named(root: Path, paper: str, name: str, rows: Mapping[str, RowSpec]) -> RowSpec:
    """A row by name; a backbone's name stands for the raw backbone."""
    if name in rows:
        return rows[name]
    backbones = backbone_names(root)
    if name in backbones:
        return raw_row(paper, name)
    raise RecipeError(f"unknown row '{name}' of {paper}. {nearest(name, {*rows, *backbones})}")
