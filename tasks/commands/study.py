"""Output of `rewardsmith study`: the studies, the cost of one, and its findings; and of `rewardsmith tune`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.errors import RewardsmithError
from tasks.commands.options import print_table
from tasks.graph.times import clock
from tasks.params.studies import FOLDER, StudySpec, read_study, study_file
from tasks.report.atlas import sentence
from tasks.studies.frame import core_hours, frame_of
from tasks.studies.plan import check_study, design_of
from tasks.studies.records import read_record
from tasks.studies.registration import RECORDS
from tasks.studies.tuned import OPTIMISER, TunedRow, read_tuning, tuned_rows
from tasks.studies.verdicts import load_study

#: Width of the list of studies.
LINE = 80


def print_studies(root: Path) -> None:
    """Prints every study with its worlds and its primary finding, or why it is refused."""
    files = sorted((root / FOLDER).glob("*.yaml"))
    if not files:
        print(f"no study in {root / FOLDER}; write {FOLDER}/NAME.yaml, as studies.md of the documentation shows")
    for file in files:
        try:
            state = load_study(root, file)
        except RewardsmithError as error:
            print(f"{file.stem:<14}{error}")
            continue
        primary = state.findings[0] if state.findings else None
        word = "no verdict before the last world" if primary is None else f"primary hypothesis {primary.word}"
        lines = [state.spec.asks, *([] if primary is None else [sentence(state.spec, primary)])]
        print(f"{file.stem:<14}{state.progress:<16}  {word}")
        for line in lines:
            print(textwrap.fill(line, LINE, initial_indent=" " * 14, subsequent_indent=" " * 14))


def print_plan(root: Path, name: str) -> None:
    """Checks a study, and prints its design, what it trains, and what that should cost."""
    file = study_file(root, name)
    spec = read_study(file)
    planned = check_study(root, file.stem, spec)
    cells = {cell: spec.rows_of(levels) for cell, levels in spec.cells.items()}
    print(f"{spec.title}: {spec.asks}")
    for cell, rows in cells.items():
        print(f"  {cell}: {', '.join(rows)}")
    for part in design_of(spec):
        print(part.name)
        for line, said in part.lines.items():
            print(f"  {line}: {said}")
    policies = sum(map(len, cells.values()))
    print(f"{spec.worlds} worlds of {policies} rows: {spec.worlds * policies} runs")
    print("stages of a world: " + ", ".join(f"{count} {module}" for module, count in planned.counts.items()))
    for note in planned.notes:
        print(f"note: {note}")
    _print_cost(root, file.stem, spec)


def _print_cost(root: Path, study: str, spec: StudySpec) -> None:
    """Prints core-hours: of worlds that have run and of those left, and of tuning; those expected before any ran."""
    files = sorted((root / RECORDS / study).glob("*.json"))
    if files:
        records = [read_record(root, file.relative_to(root)) for file in files]
        each = core_hours(frame_of(spec, dict(enumerate(records)))) / len(files)
        left = max(0, spec.worlds - sum(record["kind"] == "verdict" for record in records))
        print(f"{each:.2f} core-hours a world; {left} worlds left, {left * each:.1f} core-hours")
    elif spec.hours is not None:
        print(f"expected: {spec.hours:g} core-hours for all worlds")
    if (tuning := read_tuning(root, study)) is not None:
        spent = sum(row.core_seconds for row in tuned_rows(tuning).values()) / 3600
        print(f"tuning: {spent:.2f} core-hours for the trials that have run")
    elif spec.tuning_hours is not None:
        print(f"expected: {spec.tuning_hours:g} core-hours for tuning")


def print_study(root: Path, name: str) -> None:
    """Prints a study's part of the atlas, or how many of its worlds have run: drawn on a terminal, else Markdown."""
    from rich.console import Console
    from rich.markdown import Markdown

    from tasks.report.atlas import AtlasStudy
    from tasks.report.atlas_page import study_section

    file = study_file(root, name)
    study = AtlasStudy(file.stem, read_study(file), load_study(root, file), None)
    text, console = "\n".join(study_section(study).markdown()), Console()
    console.print(Markdown(text)) if console.is_terminal else print(text)
    if study.spec is not None and study.spec.claim is not None and study.spec.claim.differs is not None:
        print(f"Differs from the paper: {study.spec.claim.differs}")
    if study.primary is None:
        print(f"No verdict is shown before the last registered world has run: rewardsmith study run {name}")


def print_tuning(rows: Mapping[str, TunedRow], record: Mapping[str, Any]) -> None:
    """Prints the rows with their trials and flags, then their best settings as a study's file has them."""
    numbers = ("trials", "chosen", record["metric"], "at its best", "its SFT", "core time")
    lines = [
        [row.row, row.kind, str(row.trials), "" if row.best is None else str(row.best)]
        + [_number(value) for value in (None if row.best is None else row.scores[row.best], row.at_best, row.sft)]
        + [clock(row.core_seconds)]
        for row in rows.values()
    ]
    print(f"{record['study']}, tuned on seeds {', '.join(map(str, record['seeds']))}")
    print_table(("row", "optimiser", *numbers), lines, right=numbers)
    for row in rows.values():
        for flag in row.flags:
            print(f"{row.row}: {flag}")
    chosen = {name: {OPTIMISER: dict(row.point)} for name, row in rows.items() if row.best is not None}
    if chosen:
        print(overrides_yaml(chosen), end="")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def overrides_yaml(chosen: Mapping[str, Any]) -> str:
    """Returns chosen settings as the `rows` of a study's file."""
    lines = [
        f"  {name}: {yaml.safe_dump(row, default_flow_style=True, width=1000).strip()}" for name, row in chosen.items()
    ]
    return "\n".join(["rows:", *lines]) + "\n"
