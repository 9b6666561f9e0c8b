"""Code and data of a user's own that settings name: the files that a stage reads beside its declared inputs.

Settings name code as `package.module:name` (`function: own_rewards:brevity`, `kind: my_aspects:Politeness`) and data by
path (`directory: my_data`, `source: models/mine`). Code of the project's folder counts with everything that it imports
from there, an installed package by its version. Rewardsmith's own packages count by the stages' versions.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

#: Packages whose changes show in the stages' versions.
OWN_PACKAGES = ("rlhf_core", "tasks", "flows")
#: `package.module:name`.
NAMED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):[A-Za-z_]\w*")
#: Settings whose value may be a file or folder of a plain name, such as `my_data`.
PLACES = ("directory", "source", "given", "path", "tokenizer", "alpaca_calibration")
#: Folders of the project that hold settings and results, which are declared inputs or no inputs.
OTHER_FOLDERS = ("params", "results", "pipelines", "report")


@dataclass(frozen=True)
class Reads:
    """Files and packages that settings name beside the declared inputs.

    Attributes:
        files: files and folders, relative to the project where they are below it.
        versions: installed packages, as `name==version`.
    """

    files: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()

    def __or__(self, other: Reads) -> Reads:
        """Returns the names of both, each once and in order."""
        files, versions = {*self.files, *other.files}, {*self.versions, *other.versions}
        return Reads(tuple(sorted(files)), tuple(sorted(versions)))


def reads(root: Path, settings: Mapping[str, Any]) -> Reads:
    """Returns the code and data that settings name.

    Args:
        root: the project's folder.
        settings: of a row, model, data set, aspect, judge or teacher.
    """
    values = list(_values(settings))
    files: set[str] = set()
    versions: set[str] = set()
    for key, value in values:
        if match := NAMED.fullmatch(value):
            module = match[1]
            found = module_files(root, module)
            files |= found
            versions |= set() if found else installed(module)
        elif key == "directory":
            files |= set(_sets(root, value, {name.split(".")[0] for _, name in values}))
        elif _is_place(root, key, value):
            files.add(value)
    return Reads(tuple(sorted(files)), tuple(sorted(versions)))


def _values(settings: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields every text anywhere in settings with the setting that holds it."""
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            yield from _values(value, str(name))
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _values(value, key)
    elif isinstance(settings, str) and settings:
        yield key, settings


def _is_place(root: Path, key: str, value: str) -> bool:
    """Returns whether a setting's text is a file or folder that exists: its form says so, or its setting does."""
    if key not in PLACES and ("/" not in value or "\n" in value or len(value) > 255):
        return False
    path = Path(value)
    if path in (Path(), Path("..")) or path.parts[0] in OTHER_FOLDERS:
        return False
    try:
        return (root / path).exists()
    except OSError:
        return False


def _sets(root: Path, directory: str, names: set[str]) -> Iterable[str]:
    """Returns the files of a data directory that belong to one of the named sets (`<set>.<split>.jsonl`)."""
    folder = root / directory
    if not folder.is_dir():
        return ()
    return (f"{directory.rstrip('/')}/{path.name}" for path in folder.iterdir() if path.name.split(".")[0] in names)


def module_files(root: Path, module: str) -> set[str]:
    """Returns a module's file and those that it imports from the project's folder, relative to the folder; none where
    the module is not there. Nothing is run: a file that is not Python imports nothing."""
    finder = ModuleFinder([str(root)], excludes=[*OWN_PACKAGES])
    found: set[str] = set()
    try:
        finder.import_hook(module)
    except ImportError:
        return set()
    except (SyntaxError, ValueError) as error:
        found.add(str(getattr(error, "filename", "")))
    found |= {str(one.__file__) for one in finder.modules.values() if one.__file__}  # type: ignore[attr-defined]
    return {Path(file).relative_to(root).as_posix() for file in found if file.endswith(".py")}


@cache
def installed(module: str) -> frozenset[str]:
    """Returns the installed packages that have a module, as `name==version`; none for Python's own and unknown ones."""
    top = module.split(".")[0]
    if top in OWN_PACKAGES or top in sys.stdlib_module_names:
        return frozenset()
    names = metadata.packages_distributions().get(top, [])
    return frozenset(f"{name}=={metadata.version(name)}" for name in names)
