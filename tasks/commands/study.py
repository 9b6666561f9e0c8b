"""Output of `rewardsmith study`: the studies, the plan of one, and its findings; and of `rewardsmith tune`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.errors import RewardsmithError
from tasks.commands.options import print_table
from tasks.graph.times import clock
from tasks.params.studies import FOLDER, read_study, study_file
from tasks.studies.frame import core_hours, frame_of
from tasks.studies.plan import check_study, design_of
from tasks.studies.records import RECORDS, read_record
from tasks.studies.tuned import OPTIMISER, TunedRow
from tasks.studies.twins import HEADINGS, twin_tests
from tasks.studies.verdicts import load_study

#: Width of the list of studies.
LINE = 80


def print_studies(root: Path) -> None:
    """Prints every study with its worlds and its primary finding, or why it is refused."""
    from tasks.report.atlas import finding_text

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
        print(f"{file.stem:<14}{state.progress:<16}  {word}")
        for line in [state.spec.asks, *([] if primary is None else [finding_text(state.spec, primary)])]:
            print(textwrap.fill(line, LINE, initial_indent=" " * 14, subsequent_indent=" " * 14))


def print_plan(root: Path, name: str) -> None:
    """Checks a study, and prints its design, what it trains, and core-hours: of a world that has run, and of all that
    are left; those that its file expects before any has."""
    file = study_file(root, name)
    spec = read_study(file)
    counts = check_study(root, file.stem, spec)
    cells = {cell: spec.rows_of(levels) for cell, levels in spec.cells.items()}
    print(f"{spec.title}: {spec.asks}", *(f"  {cell}: {', '.join(rows)}" for cell, rows in cells.items()), sep="\n")
    print(*design_of(spec), sep="\n")
    policies = sum(map(len, cells.values()))
    print(f"{spec.worlds} worlds of {policies} rows: {spec.worlds * policies} runs")
    print("stages of a world: " + ", ".join(f"{count} {module}" for module, count in counts.items()))
    if files := sorted((root / RECORDS / file.stem).glob("*.json")):
        records = [read_record(root, one.relative_to(root)) for one in files]
        each = core_hours(frame_of(spec, dict(enumerate(records)))) / len(files)
        left = max(0, spec.worlds - sum(record["kind"] == "verdict" for record in records))
        print(f"{each:.2f} core-hours a world; {left} worlds left, {left * each:.1f} core-hours")
    elif spec.hours is not None:
        print(f"expected: {spec.hours:g} core-hours for all worlds")


def print_study(root: Path, name: str) -> None:
    """Prints a study's part of the atlas, or how many of its worlds have run: drawn on a terminal, else Markdown; of
    rows against themselves, their test."""
    from rich.console import Console
    from rich.markdown import Markdown

    from tasks.report.atlas import AtlasStudy, study_section
    from tasks.report.page import markdown_of

    file = study_file(root, name)
    state = load_study(root, file)
    study = AtlasStudy(file.stem, state.spec, state)
    text, console = "\n".join(markdown_of(study_section(study))), Console()
    console.print(Markdown(text)) if console.is_terminal else print(text)
    if tests := twin_tests(state):
        print_table(HEADINGS, [test.texts for test in tests], right=HEADINGS[1:])
    if study.primary is None:
        print(f"No verdict is shown before the last registered world has run: rewardsmith study run {name}")


def print_tuning(rows: Mapping[str, TunedRow], record: Mapping[str, Any]) -> None:
    """Prints the rows with their trials and flags, then their best settings as a study's file has them."""
    numbers = ("trials", "chosen", record["metric"], "at its best", "its SFT", "core time")
    lines = []
    for row in rows.values():
        scores = (None if row.best is None else row.scores[row.best], row.at_best, row.sft)
        texts = ["" if score is None else f"{score:.2f}" for score in scores]
        chosen = "" if row.best is None else str(row.best)
        lines.append([row.row, row.kind, str(row.trials), chosen, *texts, clock(row.core_seconds)])
    print(f"{record['study']}, tuned on seeds {', '.join(map(str, record['seeds']))}")
    print_table(("row", "optimiser", *numbers), lines, right=numbers)
    for row in rows.values():
        for flag in row.flags:
            print(f"{row.row}: {flag}")
    for row in rows.values():
        if row.best is not None:
            text = yaml.safe_dump({OPTIMISER: row.point}, default_flow_style=True, width=1000).strip()
            print(f"  {row.row}: {text}")
