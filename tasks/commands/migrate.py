"""Converts an old tree, in which each row, reward model and setting is a file of its own, to pages.

    rewardsmith migrate

params/<paper>/rows/<row>.yaml becomes an entry of params/<paper>/rows.yaml, params/scales/<scale>/policy/ppo.yaml one
of params/scales/<scale>/policy.yaml, and so on. Bases are found: a page's base says what most of its entries have.
Comments above files and behind settings are kept. A name with a dot gets '_' in its place (`kl0.01` is `kl0_01`),
wherever it is named, and its results move with it. What a page has already, with the same settings, is not written
again.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError
from tasks.params.page_text import Comments, as_written, comments_of, page_text
from tasks.params.pages import entries as known_entries
from tasks.params.pages import page_files, present_name, read_settings
from tasks.params.yaml_files import read_mapping

#: Old folders of a paper; each became pages of its name.
OF_PAPER = ("rows", "reward_models", "generative_reward_models", "selections", "aspect_models")
#: Old folders of a scale that became pages of their name.
OF_SCALE = ("backbones", "data", "tokenizers", "evaluation", "policy", "aspects", "segmenters")
#: Old folders of a scale with a stage's settings for some papers or data, now entries `<stage>-<name>` of stages.yaml.
VARIANTS_OF_STAGE = ("reward_model", "generative_reward_model", "references", "selection")
STAGES = "stages"
#: The most entries and lines of a page.
ENTRIES, LINES = 25, 150
#: The beginning of files that an older `rewardsmith hackability` wrote.
_GENERATED = "# Written by `rewardsmith hackability`"


@dataclass(frozen=True)
class OldFile:
    """A settings file of an old tree.

    Attributes:
        path: relative to the root.
        folder, kind, name: the entry that it becomes: in `folder`, on pages called `kind`.
    """

    path: Path
    folder: Path
    kind: str
    name: str


@dataclass
class Migrated:
    """Changes of a conversion: pages written, files removed, results moved (old and new folder)."""

    pages: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    moved: list[tuple[Path, Path]] = field(default_factory=list)


def old_files(root: Path) -> Iterator[OldFile]:
    """Yields the settings files of an old tree, in a fixed order."""
    params = root / "params"
    for kind in OF_PAPER:
        for path in sorted(params.glob(f"*/{kind}/*.yaml")):
            yield OldFile(path.relative_to(root), path.relative_to(root).parents[1], kind, path.stem)
    for folder in sorted((params / "scales").glob("*/")):
        own = folder.relative_to(root)
        for path in sorted(folder.glob("*/*.yaml")):
            kind, name = path.parent.name, path.stem
            if kind in OF_SCALE:
                yield OldFile(path.relative_to(root), own, kind, name)
            elif kind in VARIANTS_OF_STAGE:
                yield OldFile(path.relative_to(root), own, STAGES, f"{kind}-{name}")
        for path in sorted(folder.glob("*.yaml")) if _is_old_scale(folder) else ():
            yield OldFile(path.relative_to(root), own, STAGES, path.stem)


def _is_old_scale(folder: Path) -> bool:
    return any((folder / kind).is_dir() for kind in (*OF_SCALE, *VARIANTS_OF_STAGE))


def migrate(root: Path) -> Migrated:
    """Converts the tree in place.

    Raises:
        DataError: a page has an entry of the same name that says something else.
    """
    done, files = Migrated(), list(old_files(root))
    renamed = {file.path.stem: present_name(file.path.stem) for file in files if "." in file.path.stem}
    groups: dict[tuple[Path, str], list[OldFile]] = {}
    for file in files:
        if not _is_known(root, file, renamed):
            groups.setdefault((file.folder, file.kind), []).append(file)
    for (folder, kind), group in groups.items():
        for name, part in _pages(root, kind, group, renamed):
            target = _free(root / folder, name)
            target.write_text(_text(root, part, renamed), encoding="utf-8")
            done.pages.append(target.relative_to(root))
    for file in files:
        (root / file.path).unlink()
        done.removed.append(file.path)
        if not any((root / file.path).parent.iterdir()):
            (root / file.path).parent.rmdir()
    done.moved = list(_move_results(root, renamed))
    _rename_in_demo(root, renamed)
    return done


def _is_known(root: Path, file: OldFile, renamed: Mapping[str, str]) -> bool:
    """Returns whether a page has the entry already."""
    known = {} if not page_files(root / file.folder, file.kind) else known_entries(root, file.folder, file.kind)
    address = known.get(present_name(file.name))
    if address is None:
        return False
    text = (root / file.path).read_text(encoding="utf-8")
    if read_settings(address.under(root)) != _renamed(read_mapping(root / file.path), renamed):
        if text.startswith(_GENERATED):
            return True
        remedy = f"{address} says something else under this name; delete one of the two"
        raise DataError("is an entry of a page already", file=str(file.path), remedy=remedy)
    return True


def _free(folder: Path, name: str) -> Path:
    """Returns a page's path that no file has."""
    path, number = folder / f"{name}.yaml", 2
    while path.exists():
        path, number = folder / f"{name}_{number}.yaml", number + 1
    return path


def _pages(
    root: Path, kind: str, files: list[OldFile], renamed: Mapping[str, str]
) -> Iterator[tuple[str, list[OldFile]]]:
    """Yields pages by name, with their entries: one, or one for each first word of the names where it would be long."""
    files = sorted(files, key=lambda file: _natural(file.name))
    if len(files) <= ENTRIES and len(_text(root, files, renamed).splitlines()) <= LINES:
        yield kind, files
        return
    parts: dict[str, list[OldFile]] = {}
    for file in files:
        parts.setdefault(re.split(r"[-_.]", file.name)[0], []).append(file)
    few = {name for name, part in parts.items() if len(part) < 4}
    parts = {"": [f for n in few for f in parts[n]]} | {n: part for n, part in parts.items() if n not in few}
    for name, part in parts.items():
        for number in range(0, len(part), ENTRIES):
            page = "_".join([kind, *filter(None, [name]), *([str(number // ENTRIES + 1)] if number else [])])
            if part:
                yield page, part[number : number + ENTRIES]


def _natural(name: str) -> list[Any]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _text(root: Path, files: list[OldFile], renamed: Mapping[str, str]) -> str:
    entries: dict[str, Mapping[str, Any]] = {}
    comments: dict[str, Comments] = {}
    for file in files:
        text = (root / file.path).read_text(encoding="utf-8")
        read_mapping(root / file.path)  # says what is wrong with it, and where
        name = present_name(file.name)
        entries[name] = _renamed(as_written(text), renamed)
        comments[name] = {} if text.startswith(_GENERATED) else comments_of(text)
    return page_text(entries, comments, base=None if file.kind != STAGES else {})


def _renamed(value: Any, renamed: Mapping[str, str]) -> Any:
    """Returns settings with the present names of what they name."""
    if isinstance(value, Mapping):
        return {name: _renamed(part, renamed) for name, part in value.items()}
    if isinstance(value, list):
        return [_renamed(part, renamed) for part in value]
    if isinstance(value, str):
        owner, slash, name = value.rpartition("/")
        return f"{owner}{slash}{renamed[name]}" if name in renamed else value
    return value


def _move_results(root: Path, renamed: Mapping[str, str]) -> Iterator[tuple[Path, Path]]:
    for path in sorted((root / "results").glob("*/*/*/*/")):
        target = path.with_name(renamed.get(path.name, path.name))
        if target != path and not target.exists():
            shutil.move(path, target)
            yield path.relative_to(root), target.relative_to(root)


def _rename_in_demo(root: Path, renamed: Mapping[str, str]) -> None:
    """Puts present names into params.yaml."""
    path = root / "params.yaml"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    new = text
    for old, present in renamed.items():
        new = re.sub(rf"(?<![\w.-]){re.escape(old)}(?![\w.-])", present, new)
    if new != text:
        path.write_text(new, encoding="utf-8")


def print_migration(root: Path) -> None:
    """Converts the tree and says what was done."""
    done = migrate(root)
    for path in done.pages:
        print(f"wrote {path}")
    for old, new in done.moved:
        print(f"moved {old} to {new}")
    if done.removed:
        print(f"removed {len(done.removed)} files of one entry each; look at the pages, then run `rewardsmith graph`")
    else:
        print("nothing to convert: params/ holds pages already")
