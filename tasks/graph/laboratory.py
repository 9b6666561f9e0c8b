"""The hacking laboratory's rows: every mitigation under every reward, from one page of variants.

params/hackability/rows.yaml            `each`: the rewards with a known flaw; `variants`: the mitigations
params/hackability/reward_models.yaml   the rewards: models of annotators with a known flaw; and in
                                        reward_models_mitigations.yaml those that a mitigation trains another way
params/hackability/rows_<name>.yaml     what is written here: the rows of a reward of the user's own

A reward of the user's own is a function or a folder with a trained model. What does not fit (a centered shaping over a
function, which has no reference rewards) is left out, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError, hint
from rlhf_core.models.folders import is_hub_classifier
from tasks.graph.items import result_of
from tasks.graph.scale import Scale
from tasks.params.pages import NAME, NAME_RULE, Page, entries, merge, page_files, read_page, read_settings
from tasks.params.yaml_files import page_text

LABORATORY = "hackability"
FOLDER = Path("params") / LABORATORY
HEADER = f"Written by `rewardsmith {LABORATORY}` from the variants of {FOLDER}/rows.yaml."


@dataclass(frozen=True)
class OwnReward:
    """A reward of the user's own.

    Args:
        name: in row names and on the page.
        function: a callable as `package.module:name`; or
        model: a folder with a trained reward model in `model/`, or with a Hugging Face classifier.
        gives: what the function gives, 'sequence' or 'tokens'.
    """

    name: str
    function: str | None = None
    model: Path | None = None
    gives: str = "sequence"

    def __post_init__(self) -> None:
        if (self.function is None) == (self.model is None):
            raise RecipeError("your own reward is either a function or the folder of a reward model")
        if not NAME.fullmatch(self.name):
            raise RecipeError(f"name is '{self.name}'; it may have {NAME_RULE}")


@dataclass(frozen=True)
class RewardRows:
    """The rows of one reward.

    Attributes:
        rows: name of the row by mitigation.
        left_out: the reason why a row is missing, by mitigation.
    """

    reward: str
    rows: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)


def laboratory_page(root: Path) -> Page:
    """Returns the page of the known flaws (`each`) and the mitigations (`entries`).

    Raises:
        RecipeError: not this repository's root, or a page of another form.
    """
    path = root / FOLDER / "rows.yaml"
    if not path.is_file():
        raise RecipeError(
            f"no {FOLDER}/rows.yaml in {root}: run rewardsmith in the repository, whose worlds have planted flaws; "
            "`rewardsmith try-reward` tries a reward on pairs of your own"
        )
    page = read_page(path)
    if not page.each:
        raise RecipeError(f"{path}: it must have 'each', a list of rewards, and 'variants', the mitigations")
    return page


def mitigation_titles(root: Path) -> dict[str, str]:
    """Returns the title of each mitigation by name, in the page's order: its rows' title without the reward."""
    page = laboratory_page(root)
    of_reward = re.compile(rf",?\s*(?:\b{page.word}\s+)?{{{page.word}}}")
    rows = {name: merge(page.base, own) for name, own in page.entries.items()}
    return {name: of_reward.sub("", str(row.get("title", name))).strip() for name, row in rows.items()}


def chosen(names: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """Returns the named ones in the order of the known, all without a name."""
    for name in names:
        if name not in known:
            raise RecipeError(f"unknown {what} '{name}'{hint(name, sorted(known), more=3)}")
    return [name for name in known if name in names or not names]


def row_of(page: Page, mitigation: str, own: OwnReward) -> dict[str, Any]:
    """Returns the row of one mitigation under a reward of the user's own.

    Raises:
        RecipeError: the mitigation does not fit a function.
    """
    row = Page(page.file, page.base, page.entries, (own.name,), page.word).entry(f"{own.name}-{mitigation}")
    if own.function is not None:
        if row["reward_model"] != own.name:
            raise RecipeError("it is a way to train a reward model, and a function is not trained")
        for name in ("reward_model", "readout", "normaliser"):
            row.pop(name, None)
        row |= {"function": own.function, "gives": own.gives}
    return row


def rows_of(root: Path, reward: str, names: Sequence[str], own: OwnReward | None = None) -> RewardRows:
    """Returns the rows of a reward; those of a reward of the user's own are written to a page of their own.

    Args:
        root: the repository.
        reward: a flaw, or the name of the user's own reward.
        names: mitigations.
        own: where it is the user's.
    """
    from rlhf_core.recipe import parse_recipe

    page, rows, left_out = laboratory_page(root), {}, {}
    if own is None:
        return RewardRows(reward, {name: f"{reward}-{name}" for name in names})
    if own.model is not None:
        _write(root / FOLDER / f"reward_models_{reward}.yaml", {reward: _given(root, own, page)})
    models, written = entries(root, FOLDER, "reward_models"), {}
    for name in names:
        stem = f"{reward}-{name}"
        try:
            row = row_of(page, name, own)
            parse_recipe(row, stem)
        except RecipeError as error:
            left_out[name] = str(error).removeprefix(f"{stem}: ")
            continue
        if row.get("reward_model", reward) not in models and own.function is None:
            left_out[name] = f"there is no reward model '{row['reward_model']}'"
            continue
        rows[name], written[stem] = stem, row
    _write(root / FOLDER / f"rows_{reward}.yaml", written)
    return RewardRows(reward, rows, left_out)


def known_rows(root: Path) -> list[RewardRows]:
    """Returns every reward that has rows, the known flaws first."""
    page = laboratory_page(root)
    found = [RewardRows(reward, {name: f"{reward}-{name}" for name in page.entries}) for reward in page.each]
    for file in page_files(root / FOLDER, "rows"):
        reward = file.stem.removeprefix("rows_")
        own = {row.removeprefix(f"{reward}-"): row for row in read_page(file).names if row.startswith(f"{reward}-")}
        found += [RewardRows(reward, own)] if own and file != page.file else []
    return found


def _write(path: Path, written: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes a page with some entries and those that it had; leaves it alone where it says the same already."""
    before = read_page(path) if path.exists() else Page(path, {}, {})
    known = {name: before.entry(name) for name in before.names}
    wanted = {**known, **written}
    if wanted != known:
        path.write_text(page_text(wanted, header=HEADER), encoding="utf-8")


def _given(root: Path, own: OwnReward, page: Page) -> dict[str, Any]:
    """Returns the reward model's entry of a folder with a trained model or a Hugging Face classifier."""
    assert own.model is not None
    known = (own.model, own.model / "result")
    folder = next((path for path in known if (path / "model").is_dir() or is_hub_classifier(path)), None)
    if folder is None:
        raise DataError(
            "no reward model in this folder",
            file=str(own.model),
            remedy="Give the result of the stage reward_model: a folder that holds model/; or a folder with a Hugging "
            "Face classifier",
        )
    inside = folder.resolve().is_relative_to(root.resolve())
    given = folder.resolve().relative_to(root.resolve()).as_posix() if inside else folder.resolve().as_posix()
    return {
        "title": f"Reward model {own.name}",
        "backbone": page.base["backbone"],
        "given": given,
        "references": LABORATORY,
    }


def check_words(root: Path, scale: str, own: OwnReward, seeds: Sequence[int] = (0,)) -> None:
    """Refuses a given reward model that reads other tokens than the policies of the seeds write."""
    where = entries(root, FOLDER, "reward_models")[own.name]
    spec, here = read_settings(where.under(root)), Scale(root, scale)
    read = root / str(spec["given"]) / "model" / "tokenizer.json"
    for seed in seeds:
        tokenizer = here.backbone(str(spec["backbone"]), seed, str(where)).item("tokenizer")
        written = root / result_of(tokenizer) / "tokenizer.json"
        if written.exists() and read.exists() and _vocabulary(written) != _vocabulary(read):
            raise RecipeError(
                f"{own.model}: the reward model's vocabulary differs from the tokenizer of the policies of seed "
                f"{seed}; give a reward model that was trained with that tokenizer, or ask for the seed of this one"
            )


def _vocabulary(tokenizer: Path) -> Any:
    return json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]


def own_name(function: str | None, model: Path | None) -> str:
    """Returns a name for a reward of the user's own: `own-brevity` of `own_rewards:brevity`, `own-bandit` of
    `.../bandit/0`."""
    if function is not None:
        word = function.rpartition(":")[2]
    else:
        assert model is not None
        parts = [part for part in model.resolve().parts if part not in ("result", "model") and not part.isdigit()]
        word = parts[-1] if parts else "model"
    return "own-" + re.sub(r"[^a-z0-9_-]+", "-", word.lower()).strip("-")
