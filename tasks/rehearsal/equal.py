"""Stages of a rehearsal that compute the same: one of them runs, and the others have a copy of its result.

Small, settings that differ by size alone become equal, and so do models of one architecture class. Two stages are equal
if their modules, their settings without names and titles, and all stages above them are.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from tasks.graph.items import Item, result_of
from tasks.params.pages import Address, read_settings
from tasks.rehearsal.stand_ins import HUB
from tasks.running.artifacts import digest

#: Settings that name another entry, whose identity is that of the stage behind it.
NAMES = (
    "backbone", "data", "tokenizer", "evaluation", "reward_model", "rewrites", "generative_reward_model", "selection",
    "holistic", "references", "settings", "merge", "policy", "against",
)  # fmt: skip
#: Settings for people.
WORDS = ("title",)


class Identities:
    """Digests of stages by what they compute.

    Args:
        tree: the rehearsal's folder.
    """

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._results: dict[str, str] = {}
        self._folders: dict[str, str] = {}

    def add(self, items: Iterable[Item]) -> str:
        """Returns the identity of the last of some stages, each after those that it reads."""
        found = ""
        for item in items:
            if item.module == "check":
                continue
            if result_of(item) not in self._results:
                self._results[result_of(item)] = self._identity(item)
            found = self._results[result_of(item)]
        return found

    def of(self, item: Item) -> str:
        """Returns the identity of a stage that was added."""
        return self._results[result_of(item)]

    def _identity(self, item: Item) -> str:
        parts: dict[str, Any] = {"module": item.module, "seed": item.seed}
        for name, value in item.arguments.items():
            values = value if isinstance(value, tuple) else (value,)
            parts[name] = [self._value(one) for one in values]
        return sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    def _value(self, value: Any) -> Any:
        if isinstance(value, Address):
            return self._plain(read_settings(value.under(self.tree)), {})
        return self._results.get(str(value), value)

    def _plain(self, value: Any, names: dict[str, int], key: str = "") -> Any:
        """Returns settings without words for people, names replaced by the order in which they appear."""
        if isinstance(value, Mapping):
            return {one: self._plain(own, names, one) for one, own in value.items() if one not in WORDS}
        if isinstance(value, list | tuple):
            return [self._plain(own, names, key) for own in value]
        if key in NAMES and isinstance(value, str):
            return f"#{names.setdefault(value, len(names))}"
        if isinstance(value, str) and value.startswith(f"{HUB}/"):
            if value not in self._folders:
                self._folders[value] = digest(self.tree / value)
            return self._folders[value]
        return value


def equal_rows(identities: Identities, rows: Mapping[str, list[Item]]) -> dict[str, str]:
    """Returns, for each row that computes what an earlier one does, the name of the earlier one.

    Args:
        identities: that the stages are added to.
        rows: stages of each row, the row's own last.
    """
    first, equal = dict[str, str](), dict[str, str]()
    for name, items in rows.items():
        identity = identities.add(items)
        if identity in first:
            equal[name] = first[identity]
        else:
            first[identity] = name
    return equal


def copy_results(identities: Identities, rows: Iterable[list[Item]]) -> int:
    """Copies results of stages to equal ones that have none, and tells DVC; returns how many were copied.

    Args:
        identities: of the stages.
        rows: stages of each row.
    """
    tree, copied = identities.tree, dict[str, None]()
    every = {item.out: item for items in rows for item in items if item.module != "check"}
    made = {identities.of(item): item.out for item in every.values() if (tree / item.out / "result").exists()}
    for item in every.values():
        source = made.get(identities.of(item))
        if source is None or (tree / item.out / "result").exists():
            continue
        shutil.copytree(tree / source, tree / item.out, dirs_exist_ok=True)
        copied[item.stage] = None
    if copied:
        _commit(tree, list(copied))
    return len(copied)


def _commit(tree: Path, stages: list[str]) -> None:
    """Writes copied results of stages into DVC's lock files."""
    files = sorted((tree / "pipelines").glob("*/*/dvc.yaml"))
    addresses = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        addresses += [f"{file.relative_to(tree)}:{stage}" for stage in stages if f"\n  {stage}:\n" in text]
    subprocess.run([sys.executable, "-m", "dvc", "commit", "-q", "-f", *addresses], cwd=tree, check=True)
