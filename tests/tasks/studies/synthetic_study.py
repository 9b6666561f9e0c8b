"""A study in a clone of its own, with records of chosen numbers."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tasks.params.studies import read_study
from tasks.studies.records import write_record
from tasks.studies.registration import Registration, registration_of

STUDY: dict[str, Any] = {
    "title": "Length and truth",
    "asks": "Do segment rewards help more in long responses?",
    "claim": {"paper": "segment", "id": "best", "tested_by": ["beats"], "differs": "True win rates, two of four rows"},
    "main": "bandit",
    "rows": {
        "bandit": {"like": "segment/bandit"},
        "segment": {"like": "segment/segment"},
        "token": {"like": "segment/token", "only": {"truth": "mean"}},
    },
    "dials": {
        "length": {"short": {}, "long": {"data": {"dialogue": {"seed": 3}}}},
        "truth": {"sum": {}, "mean": {"data": {"dialogue": {"follow_up_share": 0.2}}}},
    },
    "hypotheses": {
        "grows": {"says": "The advantage grows with length", "row": "segment", "over": "length"},
        "beats": {"says": "Segment rewards beat the bandit", "row": "segment"},
        "token": {"says": "Segments beat tokens", "row": "segment", "than": "token", "at": {"truth": "mean"}},
    },
    "metric": "win_rate_vs_sft",
    "worlds": 4,
    "margin": 3.0,
}  # fmt: skip

ABOVE = ("prepare/dialogue", "sft/phi3-mini")
#: The metric of a world by index, cell and row.
Numbers = Callable[[int, str, str], Any]


def git(root: Path, *words: str) -> str:
    call = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(root), *words]
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip()


def commit_study(root: Path, study: dict[str, Any], name: str = "credit") -> Registration:
    """Commits a study's file in a clone, made if there is none; returns its registration."""
    if not (root / ".git").exists():
        root.mkdir(parents=True, exist_ok=True)
        git(root, "init", "-q")
    file = root / "studies" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(study, sort_keys=False, allow_unicode=True), encoding="utf-8")
    git(root, "add", "studies", *(["reference/tuning"] if (root / "reference" / "tuning").exists() else []))
    git(root, "commit", "-qm", f"The study {name}")
    return registration_of(root, file)


def commit_records(root: Path, *words: str) -> None:
    """Commits the records as they are."""
    git(root, "add", "reference")
    git(root, "commit", "-q", "--allow-empty", *(words or ("-m", "Records")))


def write_worlds(
    root: Path, own: Registration, numbers: Numbers, worlds: int | None = None, *, commit: bool = True
) -> list[Path]:
    """Writes the records of a study's first worlds, all unless given, and commits them; returns their files."""
    spec = read_study(root / "studies" / f"{own.study}.yaml")
    files = []
    for index in range(spec.worlds if worlds is None else worlds):
        cells = {}
        for cell, levels in spec.cells.items():
            rows = {row: run(numbers(index, cell, row), f"{own.study} {index} {row}") for row in spec.rows_of(levels)}
            data, sft = (digest(f"{own.study} {index} {name}") for name in ABOVE)
            for row, made in rows.items():
                settings = digest(f"{cell} {row}")[:16]
                made["origin"] = {"stage": "policy", "settings": settings, "data": data, "sft": sft, "evaluation": "e"}
            above = {name: {"result": digest(f"{own.study} {index} {name}"), "seconds": 20.0} for name in ABOVE}
            cells[cell] = {"rows": rows, "above": above}
        record = {
            "study": own.study, "digest": own.digest, "commit": own.commit, "kind": "verdict",
            "world": own.world_seed(index), "machine": {"threads": 1}, "cells": cells,
        }  # fmt: skip
        files.append(write_record(root, record))
    if commit and files:
        commit_records(root)
    return [root / file for file in files]


def digest(text: str) -> str:
    """The digest of a result."""
    return hashlib.sha256(text.encode()).hexdigest()


def run(value: Any, name: str) -> dict[str, Any]:
    """A row's run with a metric, which it reached evenly at 1, 4 and 9 nats."""
    made: dict[str, Any] = {"result": digest(name), "seconds": 90.0}
    if isinstance(value, str) and value.startswith("stopped: "):
        return made | {"stopped": value.removeprefix("stopped: "), "training": {}, "curve": {}}
    sizes = {"iterations": 32, "updates": 64, "rollouts": 2048, "tokens": 90_000, "clip_fraction": 0.04}
    rate = value if isinstance(value, int | float) else 50.0
    points = [{"step": 8 * n, "kl": n * n, "win_rate_vs_sft": 50 + (rate - 50) * n / 3} for n in (1, 2, 3)]
    made["curve"] = {"temperature": 1.0, "top_p": 1.0, "points": points}
    metrics = {"kl": 9.0} if value is None else {"win_rate_vs_sft": value, "kl": 9.0}
    return made | {"metrics": metrics, "training": sizes}


def edit(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes a record as if its world had left it so: in the commit that added it."""
    record = json.loads(file.read_text(encoding="utf-8"))
    change(record)
    file.write_text(json.dumps(record), encoding="utf-8")
    commit_records(file.parents[3], "--amend", "--no-edit")
