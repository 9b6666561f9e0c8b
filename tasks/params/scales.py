"""Pages of a scale, and those that it takes from another scale.

params/scales/<scale>/backbones.yaml    what rows start from, with the data, tokenizer and evaluation of each
params/scales/<scale>/policy.yaml       sizes of each optimiser; `<settings>-<data>` are those of one data set
params/scales/<scale>/stages.yaml       settings of the other stages by name; `<stage>-<name>` are those of one case,
                                        such as `reward_model-par` of a paper; `resources` is what stages need
params/scales/<scale>/data.yaml tokenizers.yaml evaluation.yaml aspects.yaml segmenters.yaml
params/scales/<scale>/scale.yaml        `extends: <scale>`

A scale that extends another has the other's page of each kind that it has no page of itself, and each stage's settings
that its own stages.yaml does not have.
"""

from __future__ import annotations

from pathlib import Path

from rlhf_core.errors import RecipeError, hint
from tasks.params.pages import Address, entries, page_files, read_settings
from tasks.params.yaml_files import folders_of

#: The scale of commands that name none; its demo rows are in the root dvc.yaml.
DEFAULT_SCALE = "testbed"
KINDS = ("backbones", "data", "tokenizers", "evaluation", "policy", "aspects", "segmenters", "stages")
STAGES = "stages"
RESOURCES = "resources"
#: Prefix of the name of a rehearsed scale; no number of such a scale is a result.
REHEARSAL = "rehearsal-"


def scale_folder(scale: str) -> Path:
    """Returns the folder of a scale's pages, relative to the root."""
    return Path("params") / "scales" / scale


def is_rehearsal(scale: str) -> bool:
    """Returns whether a scale is the rehearsal of another one."""
    return scale.startswith(REHEARSAL)


def scale_names(root: Path) -> list[str]:
    """Returns the scales that have pages."""
    return [path.name for path in folders_of(root / "params" / "scales")]


def extended(root: Path, scale: str) -> str | None:
    """Returns the scale that a scale extends, if any.

    Raises:
        RecipeError: scale.yaml says something else, or names no scale.
    """
    file = root / scale_folder(scale) / "scale.yaml"
    if not file.exists():
        return None
    values, where = read_settings(file), file.relative_to(root)
    for name in values:
        if name != "extends":
            raise RecipeError(f"{where}: unknown setting '{name}'; the only setting is 'extends'")
    other = values.get("extends")
    known = [name for name in scale_names(root) if name != scale]
    if other not in known:
        raise RecipeError(
            f"{where}: extends is {other!r}, which is not another scale{hint(other, sorted(known), more=3)}"
        )
    if (root / scale_folder(str(other)) / "scale.yaml").exists():
        raise RecipeError(f"{where}: '{other}' extends a scale itself; name that one, or repeat what is needed here")
    return str(other)


def scale_entries(root: Path, scale: str, kind: str) -> dict[str, Address]:
    """Returns addresses of a scale's entries of a kind by name, with those of the scale that it extends."""
    own, other = entries(root, scale_folder(scale), kind), extended(root, scale)
    if other is None or (own and kind != STAGES):
        return own
    of_other = entries(root, scale_folder(other), kind)
    taken = {name: at for name, at in of_other.items() if name != RESOURCES}
    return {**taken, **own}


def scale_pages(root: Path, scale: str) -> list[Path]:
    """Returns every page that a scale's settings are read from, relative to the root."""
    folders = [scale, *filter(None, [extended(root, scale)])]
    found = [file for name in folders for kind in KINDS for file in page_files(root / scale_folder(name), kind)]
    found += (root / scale_folder(scale)).glob("scale.yaml")
    return [file.relative_to(root) for file in found]
