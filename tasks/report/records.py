"""Origin of a result: the report's details of the run behind a measured cell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.running.artifacts import read_jsonl, read_object
from tasks.running.result_digests import exists_or_raise_if_lost
from tasks.tracking.searches import Search, run_search

#: Answers that are shown of each run.
ANSWERS = 3


@dataclass(frozen=True)
class ShownAnswer:
    """An answer of a run to a test prompt; `true_reward` is None where the data has none."""

    prompt: str
    text: str
    true_reward: float | None


@dataclass(frozen=True)
class Run:
    """One row at one seed.

    Attributes:
        anchor: id on the page.
        row, seed: whose run it is.
        path: the stage's folder, as given to the tables stage.
        record: `record/record.json`; empty for a result that was restored without its record.
        answers: the first `ANSWERS` answers to test prompts, which are the same for rows of one world.
        search: of its runs in MLflow; None where they were never mirrored.
    """

    anchor: str
    row: str
    seed: str
    path: str
    record: dict[str, Any]
    answers: tuple[ShownAnswer, ...] = ()
    search: Search | None = None

    @property
    def digest(self) -> str:
        return str(self.record.get("result_digest", ""))

    @property
    def commit(self) -> str:
        commit = str(self.record.get("commit", ""))[:12]
        return f"{commit} (with changes)" if commit and self.record.get("dirty") else commit


def stage_record(out: Path) -> dict[str, Any]:
    """Returns `record/record.json` of a stage's folder; empty where there is none."""
    path = out / "record" / "record.json"
    return dict(read_object(path)) if path.exists() else {}


def run_anchor(group: str, kind: str, name: str, seed: str) -> str:
    """Returns the id that a run has on the report's page, which measured cells link to."""
    return f"run-{group}-{kind}-{name}-{seed}".replace(".", "_")


def read_run(root: Path, paper: str, anchor: str, row: str, seed: str, path: str) -> Run:
    """Returns the run of a paper or study with outputs in `path`, a path relative to the tree's root."""
    answers = _first_answers(root / path)
    return Run(anchor, row, seed, path, stage_record(root / path), answers, run_search(root, paper, path))


def _first_answers(out: Path) -> tuple[ShownAnswer, ...]:
    """Returns the first answers of a stage's folder; empty where it has none, as a measured reward model has."""
    path = out / "result" / "generations.jsonl"
    rows = read_jsonl(path) if exists_or_raise_if_lost(path) else []
    answers = [row for row in rows[:ANSWERS] if "response" in row]
    return tuple(ShownAnswer(str(row["prompt"]), str(row["response"]), row.get("true_reward")) for row in answers)


def runs_of(root: Path, tables: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Run]:
    """Returns every run behind a table's cells, by anchor, in the order of the tables, each given with its paper."""
    found: dict[str, Run] = {}
    for paper, table in tables:
        for row in table["rows"]:
            for seed, path in row["runs"].items():
                anchor = run_anchor(row["group"], row["kind"], row["name"], seed)
                if anchor not in found:
                    found[anchor] = read_run(root, paper, anchor, row["name"], seed, path)
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
