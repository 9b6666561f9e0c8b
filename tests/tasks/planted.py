"""Planted changes: whether the golden values find a changed formula.

    python -m tests.tasks.planted               plants all of tests/tasks/planted_changes.yaml, one after the other
    python -m tests.tasks.planted rloo          those alone whose run is named so

Each change is made in a copy of the tree, where its run and all that it reads are run and compared with the golden
values. A run of all writes reference/planted_changes.json; the exit code is 1 where a run did not find its change.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tasks.graph.files import STAGES
from tests.tasks.golden_metrics import differences, stored
from tests.tasks.golden_runs import RUNS, SETTINGS, with_upstream
from tests.tasks.refresh_golden import measure_in

ROOT = Path(__file__).resolve().parents[2]
CHANGES = Path(__file__).parent / "planted_changes.yaml"
RECORD = ROOT / "reference" / "planted_changes.json"
SOURCES = ("rlhf_core", "tasks")


@dataclass(frozen=True)
class Planted:
    """A change of the source that the golden values must find; see planted_changes.yaml."""

    what: str
    text: str
    becomes: str
    run: str
    within: str = ""

    def place(self, root: Path) -> tuple[Path, int]:
        """Returns the file in which the text stands, and where in it.

        Raises:
            LookupError: the text stands nowhere, or in several places.
        """
        found = []
        for path in sorted(path for package in SOURCES for path in (root / package).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if self.within:
                start = source.find(self.within)
                found += [(path, place)] if start >= 0 and (place := source.find(self.text, start)) >= 0 else []
            else:
                found += [(path, place) for place in _places(source, self.text)]
        if len(found) != 1:
            where = ", ".join(path.relative_to(root).as_posix() for path, _ in found) or "nowhere"
            raise LookupError(f"'{self.what}': its text must stand in one place, but it is found in: {where}")
        return found[0]

    @contextmanager
    def applied(self, root: Path) -> Iterator[str]:
        """Changes a tree for the time being; yields the file's path in there."""
        path, place = self.place(root)
        before = path.read_text(encoding="utf-8")
        _replace(path, before[:place] + self.becomes + before[place + len(self.text) :])
        try:
            yield path.relative_to(root).as_posix()
        finally:
            _replace(path, before)


def _places(source: str, text: str) -> Iterator[int]:
    place = source.find(text)
    while place >= 0:
        yield place
        place = source.find(text, place + 1)


def _replace(path: Path, source: str) -> None:
    """Writes a module; no compiled one of the same second and length passes for it."""
    path.write_text(source, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def planted_changes() -> list[Planted]:
    return [Planted(**entry) for entry in yaml.safe_load(CHANGES.read_text(encoding="utf-8"))]


def copy_tree(root: Path) -> None:
    """Copies what golden runs import into an empty folder."""
    for package in (*SOURCES, "tests"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))


def left_golden(root: Path, names: list[str]) -> dict[str, str]:
    """Runs golden runs of a tree; returns the first difference of each that left its golden values."""
    found = measure_in(root, names)
    if isinstance(found, str):
        return dict.fromkeys(names[-1:], found)
    changes = {name: differences(stored(RUNS[name].stage)["runs"][name], found[name]) for name in names}
    return {name: several[0] for name, several in changes.items() if several}


def planted(change: Planted, root: Path) -> dict[str, Any]:
    """Plants a change in a copy of the tree; returns what the record says of it."""
    names, started = with_upstream([change.run]), time.monotonic()
    with change.applied(root) as file:
        left = left_golden(root, names)
    found = change.run in left
    print(
        f"{'found' if found else 'NOT FOUND'}: {change.what} ({change.run}, {time.monotonic() - started:.0f} s)",
        flush=True,
    )
    shown = {"what": change.what, "file": file, "run": change.run, "found": found}
    return {**shown, "difference": left.get(change.run), "left_golden": list(left)}


def not_planted(changes: list[Planted]) -> dict[str, list[str]]:
    """Returns the stages and the optimisers of no planted change's run."""
    planted_runs = [RUNS[change.run] for change in changes]
    entries = [SETTINGS[str(run.settings["row"])] for run in planted_runs if run.stage == "policy"]
    kinds = {SETTINGS[str(run.settings["row"])]["optimiser"]["kind"] for run in RUNS.values() if run.stage == "policy"}
    stages = [stage for stage in STAGES if stage not in {run.stage for run in planted_runs}]
    return {"stages": stages, "optimisers": sorted(kinds - {row["optimiser"]["kind"] for row in entries})}


def main(arguments: list[str]) -> int:
    every = planted_changes()
    changes = [change for change in every if not arguments or change.run in arguments]
    if not changes:
        sys.exit(f"no planted change has a run named {' or '.join(arguments)}; see {CHANGES.name}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        copy_tree(root)
        unchanged = left_golden(root, with_upstream([change.run for change in changes]))
        if unchanged:
            print(f"the tree itself has left its golden values: {unchanged}", file=sys.stderr)
            return 2
        results = [planted(change, root) for change in changes]
    found = sum(result["found"] for result in results)
    print(f"{found} of {len(results)} planted changes were found")
    if not arguments:
        record = {"planted": len(results), "found": found, "without_a_change": not_planted(changes), "changes": results}
        RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if found == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
