"""The hacking laboratory's rows: every mitigation under every reward, written from one file.

params/hackability/mitigations.yaml          what each mitigation changes in the common row
params/hackability/reward_models/<it>.yaml   the rewards: models of annotators with a known flaw; and what is written
                                             here for mitigations that train them another way
params/hackability/rows/<reward>-<it>.yaml   what is written here, plain rows like any other

A reward of the user's own is a function or a folder with a trained model; its rows are written beside the others. What
does not fit (a centered shaping over a function, which has no reference rewards) is left out, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.errors import DataError, RecipeError, hint
from tasks.graph.rows import NAME, load_yaml

LABORATORY = "hackability"
FOLDER = Path("params") / LABORATORY
#: In a mitigation's fields, the name of the reward.
PLACE = "{reward}"
#: What a merged reward model has in common with the flaw's; it is not trained, so nothing else.
OF_A_MERGED = ("title", "backbone", "data", "references")
HEADER = f"# Written by `rewardsmith {LABORATORY}` from {FOLDER}/mitigations.yaml; change that instead.\n"


@dataclass(frozen=True)
class OwnReward:
    """A reward of the user's own.

    Args:
        name: in row names and on the page.
        function: a callable as `package.module:name`; or
        model: a folder with a trained reward model in `model/`.
        gives: what the function gives, 'sequence' or 'tokens'.
    """

    name: str
    function: str | None = None
    model: Path | None = None
    gives: str = "sequence"

    def __post_init__(self) -> None:
        if (self.function is None) == (self.model is None):
            raise RecipeError("a reward of one's own is either a function or the folder of a reward model")
        if not NAME.fullmatch(self.name):
            raise RecipeError(f"name is '{self.name}'; it may hold small letters, digits, '-', '_' and '.' only")


@dataclass(frozen=True)
class RewardRows:
    """The rows of one reward.

    Attributes:
        rows: name of the row by mitigation.
        left_out: why there is none, by mitigation.
    """

    reward: str
    rows: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)


def mitigations(root: Path) -> dict[str, dict[str, Any]]:
    """Fields of each mitigation by name, over those of the common row, in the file's order.

    Raises:
        RecipeError: not this repository's root, or a file of another form.
    """
    path = root / FOLDER / "mitigations.yaml"
    if not path.is_file():
        raise RecipeError(f"no {FOLDER}/mitigations.yaml in {root}: run rewardsmith in the repository")
    values = load_yaml(path)
    common, named = values.get("row"), values.get("mitigations")
    if not isinstance(common, Mapping) or not isinstance(named, Mapping) or not named:
        raise RecipeError(f"{path}: it must hold a mapping 'row' and a mapping 'mitigations'")
    return {str(name): {**common, **(fields or {})} for name, fields in named.items()}


def flaws(root: Path) -> list[str]:
    """The known flaws: the reward models that were not written here."""
    files = sorted((root / FOLDER / "reward_models").glob("*.yaml"))
    return [path.stem for path in files if not path.read_text(encoding="utf-8").startswith(HEADER)]


def chosen(names: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """The named ones in the order of the known, all without a name.

    Raises:
        RecipeError: an unknown one, with the nearest known.
    """
    for name in names:
        if name not in known:
            raise RecipeError(f"unknown {what} '{name}'{hint(name, sorted(known), more=3)}")
    return [name for name in known if name in names or not names]


def _filled(value: Any, reward: str) -> Any:
    """The value with `PLACE` replaced by the reward's name everywhere."""
    if isinstance(value, Mapping):
        return {key: _filled(inner, reward) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, reward) for inner in value]
    return value.replace(PLACE, reward) if isinstance(value, str) else value


def row_of(fields: Mapping[str, Any], reward: str, own: OwnReward | None = None) -> dict[str, Any]:
    """The row of one mitigation under one reward.

    Raises:
        RecipeError: the mitigation does not fit a function.
    """
    row: dict[str, Any] = _filled({name: value for name, value in fields.items() if name != "models"}, reward)
    row["title"] = f"{row.get('title', '')}, reward {reward}"
    if own is not None and own.function is not None:
        if row["reward_model"] != reward:
            raise RecipeError("it is a way to train a reward model, and a function is not trained")
        for name in ("reward_model", "readout", "normaliser"):
            row.pop(name, None)
        row |= {"function": own.function, "gives": own.gives}
    return row


def rows_of(root: Path, reward: str, names: Sequence[str], own: OwnReward | None = None) -> RewardRows:
    """Writes the rows of a reward that are not there as they should be.

    Args:
        root: the repository.
        reward: a flaw, or the name of the user's own reward.
        names: mitigations.
        own: where it is the user's.
    """
    from rlhf_core.recipe import parse_recipe

    every, rows, left_out = mitigations(root), {}, {}
    if own is not None and own.model is not None:
        _write(root / FOLDER / "reward_models" / f"{reward}.yaml", _given(root, own, every))
    for name in names:
        stem = f"{reward}-{name}"
        if own is None:
            _write_models(root, reward, every[name].get("models", {}))
        try:
            row = row_of(every[name], reward, own)
            parse_recipe(row, stem)
        except RecipeError as error:
            left_out[name] = str(error).removeprefix(f"{stem}: ")
            continue
        model = row.get("reward_model")
        if model is not None and not (root / FOLDER / "reward_models" / f"{model}.yaml").exists():
            left_out[name] = f"there is no reward model '{model}'"
            continue
        _write(root / FOLDER / "rows" / f"{stem}.yaml", row)
        rows[name] = stem
    return RewardRows(reward, rows, left_out)


def _write_models(root: Path, flaw: str, models: Mapping[str, Mapping[str, Any]]) -> None:
    """The reward models that a mitigation trains on a flaw's data: their own fields over those of the flaw's."""
    folder = root / FOLDER / "reward_models"
    for name, fields in models.items():
        base = load_yaml(folder / f"{flaw}.yaml")
        if "merge" in fields:
            base = {key: base[key] for key in OF_A_MERGED if key in base}
        stem = str(_filled(name, flaw))
        _write(folder / f"{stem}.yaml", base | {"title": f"{base['title']}, {stem}"} | _filled(fields, flaw))


def known_rows(root: Path) -> list[RewardRows]:
    """Every reward that has row files, the known flaws first."""
    found: dict[str, dict[str, str]] = {name: {} for name in flaws(root)}
    names = sorted(mitigations(root), key=len, reverse=True)
    for path in sorted((root / FOLDER / "rows").glob("*.yaml")):
        for name in names:
            reward = path.stem.removesuffix(f"-{name}")
            if reward != path.stem:
                found.setdefault(reward, {})[name] = path.stem
                break
    return [RewardRows(reward, rows) for reward, rows in found.items() if rows]


def _write(path: Path, values: Mapping[str, Any]) -> None:
    """A settings file, left alone where it already says the same."""
    text = HEADER + yaml.safe_dump(dict(values), sort_keys=False, width=110)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _given(root: Path, own: OwnReward, every: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The reward-model file of a folder with a trained model.

    Raises:
        DataError: no model in it.
    """
    assert own.model is not None
    folder = next((path for path in (own.model, own.model / "result") if (path / "model").is_dir()), None)
    if folder is None:
        raise DataError(
            "no reward model in this folder",
            file=str(own.model),
            remedy="Give the result of the stage reward_model: a folder that holds model/",
        )
    inside = folder.resolve().is_relative_to(root.resolve())
    given = folder.resolve().relative_to(root.resolve()).as_posix() if inside else folder.resolve().as_posix()
    backbone = next(iter(every.values()))["backbone"]
    return {"title": f"Reward model {own.name}", "backbone": backbone, "given": given, "references": LABORATORY}


def check_words(root: Path, scale: str, own: OwnReward) -> None:
    """Refuses a given reward model that reads other tokens than the policies write.

    Raises:
        RecipeError: their vocabularies differ; nothing is said while the scale has no tokenizer yet.
    """
    spec = load_yaml(root / FOLDER / "reward_models" / f"{own.name}.yaml")
    backbone = load_yaml(root / "params" / "scales" / scale / "backbones" / f"{spec['backbone']}.yaml")
    written = root / "results" / scale / "shared" / "tokenizer" / str(backbone["tokenizer"]) / "result"
    read = root / str(spec["given"]) / "model"
    words = [
        json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
        for path in (written / "tokenizer.json", read / "tokenizer.json")
        if path.exists()
    ]
    if len(words) == 2 and words[0] != words[1]:
        raise RecipeError(f"{own.model}: the reward model's vocabulary is not that of the policies' tokenizer")


def own_name(function: str | None, model: Path | None) -> str:
    """A name for a reward of the user's own: `own-brevity` of `own_rewards:brevity`, `own-bandit` of `.../bandit/0`."""
    if function is not None:
        word = function.rpartition(":")[2]
    else:
        assert model is not None
        parts = [part for part in model.resolve().parts if part not in ("result", "model") and not part.isdigit()]
        word = parts[-1] if parts else "model"
    return "own-" + re.sub(r"[^a-z0-9._-]+", "-", word.lower()).strip("-")
