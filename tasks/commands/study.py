"""What `rewardsmith study` prints: the studies, what one would cost, and what its worlds say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import RewardsmithError
from tasks.params.studies import FOLDER, read_study, study_file
from tasks.studies.records import read_record, read_records
from tasks.studies.registration import RECORDS, check_log, check_unchanged, registration
from tasks.studies.verdicts import StudyFinding, StudyState, state_of


def load(root: Path, name: str) -> StudyState:
    """Returns a registered study with its records.

    Raises:
        RewardsmithError: it is not registered, was changed after its start, or has a record that does not fit.
    """
    file = study_file(root, name)
    spec, own = read_study(file), registration(root, file)
    check_log(root)
    check_unchanged(root, own)
    return state_of(root, own, spec)


def core_hours(records: Iterable[Mapping[str, Any]]) -> float:
    """Returns core-hours of the stages behind some records, each stage once."""
    parts = (part for record in records for cell in record["cells"].values() for part in (cell["rows"], cell["above"]))
    return math.fsum(one["seconds"] for part in parts for one in part.values()) / 3600


def print_studies(root: Path) -> None:
    """Prints every study with its worlds and its primary finding."""
    for file in sorted((root / FOLDER).glob("*.yaml")):
        spec = read_study(file)
        try:
            state = load(root, file.stem)
            worlds = f"{len(state.records)} of {spec.worlds} worlds"
            said = state.findings[0].text if state.findings else "no verdict before the last world"
        except RewardsmithError as error:
            worlds, said = f"{spec.worlds} worlds", str(error)
        print(f"{file.stem:<14}{worlds:<18}{said}\n{'':<14}{spec.asks}")


def print_plan(root: Path, name: str) -> None:
    """Prints what a study trains and what it should cost."""
    file = study_file(root, name)
    spec = read_study(file)
    cells = {cell: spec.rows_of(levels) for cell, levels in spec.cells.items()}
    print(f"{spec.title}: {spec.asks}")
    for cell, rows in cells.items():
        print(f"  {cell}: {', '.join(rows)}")
    policies = sum(map(len, cells.values()))
    print(f"{spec.worlds} worlds of {policies} rows: {spec.worlds * policies} runs")
    pilots = [read_record(path) for path in sorted((root / RECORDS / file.stem).glob("pilot-*.json"))]
    try:
        done = [*read_records(root, registration(root, file), spec).values()]
    except RewardsmithError as error:
        print(f"not yet registered: {error}")
        done = []
    if known := done or pilots:
        each = core_hours(known) / len(known)
        left = spec.worlds - len(done)
        print(f"{each:.2f} core-hours a world; {left} worlds left, {left * each:.1f} core-hours")
    elif spec.hours is not None:
        print(f"expected: {spec.hours:g} core-hours in all")


def print_study(root: Path, name: str) -> None:
    """Prints a study's findings, or how many of its worlds have run."""
    state = load(root, name)
    spec = state.spec
    print(f"{spec.title}: {spec.asks}")
    print(f"{len(state.records)} of {spec.worlds} worlds, {core_hours(state.records.values()):.1f} core-hours")
    if not state.findings:
        print("No verdict is shown before the last registered world has run: rewardsmith study run " + name)
        return
    for finding in state.findings:
        print(_line(finding))


def _line(finding: StudyFinding) -> str:
    found, interval = finding.effect, finding.effect.interval()
    shown = "" if interval is None else f" [{interval.lower:+.1f}, {interval.upper:+.1f}]"
    p = "" if finding.p is None else f", p = {finding.p:.3g}"
    mark = "*" if finding.primary else " "
    return f"{mark} {finding.says}\n    {found.estimate:+.2f}{shown}{p}: {finding.text}"
