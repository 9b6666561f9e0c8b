"""Provenance of a world's stages: the code, commit, versions and processor that each ran with.

A record lists each distinct environment once; its stages name theirs by its place in the list.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError
from tasks.graph.dvc_files import stage_version
from tasks.params.pages import read_settings
from tasks.params.studies import FOLDER
from tasks.running.artifacts import PROJECT
from tasks.running.commit import changed_since, commit_of, listed
from tasks.studies.origins import DRAWN, WORDS
from tasks.studies.tree import WorldTree

#: Fields on each stage's process that a record takes from the stage's own record.
ENVIRONMENT = (
    "commit", "dirty", "sources", "threads", "device", "host_cpu", "cpu_capability", "python", "versions",
)  # fmt: skip
#: Fields in which worlds are compared.
COMPARED = ("sources", "threads", "device", "cpu_capability", "python")


def environment_of(stage_record: Mapping[str, Any], known: list[dict[str, Any]]) -> int:
    """Returns the place of a stage's environment in a list, to which a new one is added."""
    own = {name: stage_record[name] for name in ENVIRONMENT}
    if own not in known:
        known.append(own)
    return known.index(own)


def settings_digest(world: WorldTree) -> str:
    """Returns a digest of the settings and versions of all stages of a world, without the world's number."""
    parts = []
    for cell in world.spec.cells:
        for item in world.items(cell):
            read = (read_settings(address.under(world.tree)) for address in item.addresses)
            left = (*WORDS, DRAWN.get(item.module))
            own = [{name: value for name, value in one.items() if name not in left} for one in read]
            parts.append([cell, item.module, item.name, stage_version(world.tree, item.module), own])
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def uncommitted_code(root: Path) -> list[str]:
    """Returns files of code, settings and studies that differ from the commit's, in a repository and in that of the
    code that runs."""
    found = changed_since(root, "HEAD", (FOLDER.as_posix(),))
    if root.resolve() != PROJECT and commit_of(PROJECT):
        found += [f"{PROJECT}/{name}" for name in changed_since(PROJECT, "HEAD")]
    return found


def refuse_uncommitted_code(root: Path) -> None:
    """Refuses to run a registered world with code or settings that no commit has.

    Raises:
        RecipeError: names files that are not committed, or the other folder whose code would run.
    """
    if (root / "rlhf_core").is_dir() and root.resolve() != PROJECT:
        raise RecipeError(
            f"the code that runs is that of {PROJECT}, not of {root}, whose commit the record would name; run it by "
            f"`python -m tasks.command_line` in {root}"
        )
    if files := uncommitted_code(root):
        raise RecipeError(
            f"{listed(files)} differ from the commit; worlds of a study run from committed code and settings. "
            "Commit or undo the changes, or run a pilot"
        )


def refuse_record_of_uncommitted_code(file: str, record: Mapping[str, Any], remedy: str = "Remove the record") -> None:
    """Refuses a record of which a stage ran with code that no commit has.

    Args:
        file: of the record.
        record: its content.
        remedy: what to do then.

    Raises:
        DataError: names the commit.
    """
    for name in record["dirty"]:
        raise DataError(f"the world ran with {name} changed", file=file, field="dirty", remedy=remedy)
    for environment in record["environments"]:
        if environment["dirty"]:
            problem = f"a stage ran at commit {environment['commit'][:10]} with changes that were not committed"
            raise DataError(problem, file=file, field="environments", remedy=remedy)


def _values(environment: Mapping[str, Any]) -> dict[str, str]:
    """Returns what worlds are compared by, without what a stage without models does not know."""
    found = {name: str(environment[name]) for name in COMPARED if environment[name] != ""}
    found |= {name: str(version) for name, version in environment["versions"].items()}
    return found | {"sources": found["sources"][:12]}


def differences(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns in what the environments of worlds differ, in words.

    Two worlds differ in a value if their stages have other sets of it: stages without models run on one thread.
    """
    worlds: dict[str, dict[tuple[str, ...], list[int]]] = {}
    found = []
    for record in records:
        found += _within(record)
        sets = {"settings": {record["settings"][:12]}}
        for environment in record["environments"]:
            for name, value in _values(environment).items():
                sets.setdefault(name, set()).add(value)
        for name, values in sets.items():
            worlds.setdefault(name, {}).setdefault(tuple(sorted(values)), []).append(record["world"])
    for name, groups in worlds.items():
        if len(groups) > 1:
            said = "; ".join(f"{' and '.join(values)} in {_named(numbers)}" for values, numbers in groups.items())
            found.append(f"{name} of the worlds differ: {said}")
    return found


def _within(record: Mapping[str, Any]) -> list[str]:
    """Returns differing sources and versions of one world's stages, which was continued with other code."""
    found = []
    names = dict.fromkeys(name for environment in record["environments"] for name in environment["versions"])
    for name in ("sources", *names):
        commits: dict[str, list[str]] = {}
        for environment in record["environments"]:
            at = commits.setdefault(_values(environment).get(name, "none"), [])
            at += [environment["commit"][:10]] if environment["commit"][:10] not in at else []
        if len(commits) > 1:
            said = "; ".join(f"{value} at commit {', '.join(at)}" for value, at in commits.items())
            found.append(f"{name} of the stages of world {record['world']} differ: {said}")
    return found


def _named(numbers: Sequence[int]) -> str:
    return f"world{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def code_of_starts(starts: Iterable[Mapping[str, Any]], worlds: Iterable[int]) -> list[str]:
    """Returns the worlds that were started with several codes, in words.

    Args:
        starts: lines of the log of one study.
        worlds: the study's.
    """
    found, lines = [], list(starts)
    for number in sorted(worlds):
        own = [line for line in lines if number in line["worlds"]]
        if len({line.get("code", line["commit"]) for line in own}) > 1:
            said = ", ".join(f"{line['commit'][:10]} on {line['time'][:10]}" for line in own)
            found.append(f"world {number} was started {len(own)} times with different code: at commit {said}")
    return found
