"""Origin of a result: the report's details of the run behind a measured cell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.running.artifacts import read_json


@dataclass(frozen=True)
class Run:
    """One row at one seed.

    Attributes:
        anchor: id on the page.
        row, seed: whose run it is.
        path: the stage's folder, as given to the tables stage.
        record: `record/record.json`; empty for a result that was restored without its record.
    """

    anchor: str
    row: str
    seed: str
    path: str
    record: dict[str, Any]

    @property
    def digest(self) -> str:
        return str(self.record.get("result_digest", ""))

    @property
    def commit(self) -> str:
        commit = str(self.record.get("commit", ""))[:12]
        return f"{commit} (with changes)" if commit and self.record.get("dirty") else commit


def record_of(out: Path) -> dict[str, Any]:
    """Returns `record/record.json` of a stage's folder; empty where there is none."""
    path = out / "record" / "record.json"
    return dict(read_json(path)) if path.exists() else {}


def run_anchor(group: str, kind: str, name: str, seed: str) -> str:
    return f"run-{group}-{kind}-{name}-{seed}".replace(".", "_")


def read_run(root: Path, anchor: str, row: str, seed: str, path: str) -> Run:
    """Returns the run with outputs in `path`, a path relative to the tree's root."""
    return Run(anchor, row, seed, path, record_of(root / path))


def runs_of(root: Path, tables: Iterable[dict[str, Any]]) -> dict[str, Run]:
    """Returns every run behind a table's cells, by anchor, in the order of the tables."""
    found: dict[str, Run] = {}
    for table in tables:
        for row in table["rows"]:
            for seed, path in row["runs"].items():
                anchor = run_anchor(row["group"], row["kind"], row["name"], seed)
                if anchor not in found:
                    found[anchor] = read_run(root, anchor, row["name"], seed, path)
    return found


@dataclass(frozen=True)
class Provenance:
    """The page's header: from which commits, devices and days the results are."""

    commits: list[str]
    devices: list[str]
    first: str
    last: str
    minutes: float


def provenance(runs: Iterable[Run]) -> Provenance:
    records = [run.record for run in runs if run.record]
    days = sorted(str(record["started"])[:10] for record in records if record.get("started"))
    commits = [f"{r['commit'][:12]}{'+' if r.get('dirty') else ''}" for r in records if r.get("commit")]
    return Provenance(
        commits=list(dict.fromkeys(commits)),
        devices=list(dict.fromkeys(str(r["device"]) for r in records if r.get("device"))),
        first=days[0] if days else "",
        last=days[-1] if days else "",
        minutes=sum(float(r.get("seconds", 0)) for r in records) / 60,
    )
