"""Output of `rewardsmith study`: the studies, the cost of one, and its findings."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from rlhf_core.errors import RewardsmithError
from tasks.params.studies import FOLDER, read_study, study_file
from tasks.studies.budgets import BUDGET_COLUMNS, core_hours, row_budgets
from tasks.studies.caveats import rows_at_kl
from tasks.studies.records import read_record, read_records
from tasks.studies.registration import RECORDS, registration
from tasks.studies.verdicts import StudyFinding, StudyState, load_study


def print_studies(root: Path) -> None:
    """Prints every study with its worlds and its primary finding, or why it is refused."""
    for file in sorted((root / FOLDER).glob("*.yaml")):
        try:
            state = load_study(root, file)
        except RewardsmithError as error:
            print(f"{file.stem:<14}{error}")
            continue
        worlds = f"{len(state.records)} of {state.spec.worlds} worlds"
        said = state.findings[0].text if state.findings else "no verdict before the last world"
        print(f"{file.stem:<14}{worlds:<18}{said}\n{'':<14}{state.spec.asks}")


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
    """Prints a study's findings with what must be known beside them, or how many of its worlds have run."""
    state = load_study(root, study_file(root, name))
    spec = state.spec
    print(f"{spec.title}: {spec.asks}")
    print(f"{len(state.records)} of {spec.worlds} worlds, {core_hours(state.records.values()):.1f} core-hours")
    for file in state.unused:
        print(f"not used: {file} is not a world of this study")
    if not state.findings:
        print("No verdict is shown before the last registered world has run: rewardsmith study run " + name)
        return
    for finding in state.findings:
        print(_lines(finding))
    _print_budgets(state)
    _print_at_kl(state)


def _lines(finding: StudyFinding) -> str:
    mark = "*" if finding.primary else " "
    lines = [f"{mark} {finding.hypothesis.says}", f"    {_number(finding)}{finding.text}"]
    return "\n".join([*lines, *(f"      {caveat}" for caveat in finding.caveats)])


def _number(finding: StudyFinding) -> str:
    if finding.effect is None:
        return ""
    interval = finding.effect.interval()
    shown = "" if interval is None else f" [{interval.lower:+.1f}, {interval.upper:+.1f}]"
    p = "" if finding.p is None else f", p = {finding.p:.3g}"
    return f"{finding.effect.estimate:+.2f}{shown}{p}: "


def _print_budgets(state: StudyState) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("row")
    for column in BUDGET_COLUMNS:
        table.add_column(column, justify="right")
    for row, budget in row_budgets(state.spec, state.records.values(), state.tuning).items():
        table.add_row(row, *budget.texts)
    print("\nBudgets")
    _print_whole(table)


def _print_at_kl(state: StudyState) -> None:
    found = rows_at_kl(state.spec, state.records.values())
    if not found:
        return
    targets = state.spec.kl_targets
    table = Table(box=None, pad_edge=False)
    for column in ("cell", "row"):
        table.add_column(column)
    for target in targets:
        table.add_column(f"{target:g}", justify="right")
    for first in range(0, len(found), len(targets)):
        line = found[first : first + len(targets)]
        values = ["" if one.value is None else f"{one.value:.1f}" for one in line]
        table.add_row(line[0].cell, line[0].row, *values)
    print(f"\n{state.spec.metric} at equal KL, nats per response")
    _print_whole(table)
    for one in found:
        if one.reason is not None:
            print(f"{one.cell}, {one.row} at {one.target:g}: {one.reason}")


def _print_whole(table: Table) -> None:
    """Prints a table with lines as long as they are."""
    console = Console()
    words = Measurement.get(console, console.options.update_width(1000), table).maximum
    Console(width=max(console.width, words)).print(table, crop=False)
