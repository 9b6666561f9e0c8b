"""Planted changes: whether the golden values find a changed formula.

    python -m tests.tasks.planted               plants all of tests/tasks/planted_changes.yaml, one after the other
    python -m tests.tasks.planted rloo          those alone whose run is named so
    python -m tests.tasks.planted --open        those alone that are new, or that no run has found yet
    python -m tests.tasks.planted --jobs 4      four at a time, each in a copy of its own

Each change is made in a copy of the tree, where its run and all that it reads are run and compared with the golden
values. Each result updates its entry in reference/planted_changes.json at once, so a run that is stopped keeps what it
found; the exit code is 1 where a run did not find its change.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import yaml

from tests.tasks.golden_metrics import differences, stored
from tests.tasks.golden_runs import COMPUTING, RUNS, SETTINGS, with_upstream
from tests.tasks.refresh_golden import measure_in

ROOT = Path(__file__).resolve().parents[2]
CHANGES = Path(__file__).parent / "planted_changes.yaml"
RECORD = ROOT / "reference" / "planted_changes.json"
SOURCES = ("rlhf_core", "tasks")


@dataclass(frozen=True)
class Planted:
    """A change of the source that the golden values must find; see planted_changes.yaml.

    An `equivalent` one changes no behaviour, for the reason that it states; it is listed and not planted.
    """

    what: str
    text: str
    becomes: str
    run: str
    within: str = ""
    equivalent: str = ""

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
    stages = [stage for stage in COMPUTING if stage not in {run.stage for run in planted_runs}]
    return {"stages": stages, "optimisers": sorted(kinds - {row["optimiser"]["kind"] for row in entries})}


def in_copies(changes: Sequence[Planted], jobs: int) -> Iterator[Any]:
    """Plants changes, `jobs` at a time; yields what an unchanged tree has left, then the result of each change."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copy_tree(Path(folder) / str(number))
            free.put(Path(folder) / str(number))

        def in_copy(change: Planted | None) -> Any:
            root = free.get()
            try:
                names = with_upstream([each.run for each in changes])
                return left_golden(root, names) if change is None else planted(change, root)
            finally:
                free.put(root)

        yield from pool.map(in_copy, [None, *changes])


def recorded() -> dict[str, dict[str, Any]]:
    """Returns the entries of the record by what was changed."""
    before = json.loads(RECORD.read_text(encoding="utf-8"))["changes"] if RECORD.exists() else []
    return {entry["what"]: entry for entry in before}


def record(every: Sequence[Planted], results: Sequence[dict[str, Any]]) -> None:
    """Writes the results into the record; changes that were not planted this time keep theirs."""
    known = recorded() | {entry["what"]: entry for entry in results}
    equivalent = [{"what": each.what, "why": each.equivalent} for each in every if each.equivalent]
    entries = [known[each.what] for each in every if each.what in known and not each.equivalent]
    whole = {
        "planted": len(entries),
        "found": sum(entry["found"] for entry in entries),
        "not_yet": [each.what for each in every if each.what not in known and not each.equivalent],
        "without_a_change": not_planted([each for each in every if not each.equivalent]),
        "equivalent": equivalent,
        "changes": entries,
    }
    RECORD.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tasks.planted", description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="*", metavar="RUN", help="plant the changes of these golden runs alone")
    parser.add_argument("--open", action="store_true", help="plant those alone that the record does not have as found")
    parser.add_argument("--jobs", type=int, default=1, help="changes planted at a time")
    given = parser.parse_args(arguments)
    every = planted_changes()
    changes = [each for each in every if not each.equivalent and (not given.runs or each.run in given.runs)]
    if not changes:
        sys.exit(f"no planted change has a run named {' or '.join(given.runs)}; see {CHANGES.name}")
    if given.open:
        done = {what for what, entry in recorded().items() if entry["found"]}
        changes = [each for each in changes if each.what not in done]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    of_copies = in_copies(changes, given.jobs)
    if unchanged := next(of_copies):
        print(f"the tree itself has left its golden values: {unchanged}", file=sys.stderr)
        return 2
    results: list[dict[str, Any]] = []
    for result in of_copies:
        results.append(result)
        record(every, results)
    found = sum(result["found"] for result in results)
    print(f"{found} of {len(results)} planted changes were found")
    return 0 if found == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
