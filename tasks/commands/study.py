"""Output of `rewardsmith study`: the studies, the cost of one, and its findings; and of `rewardsmith tune`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from rlhf_core.errors import RewardsmithError
from tasks.graph.expected import clock
from tasks.params.studies import FOLDER, StudySpec, read_study, study_file
from tasks.report.atlas import sentence
from tasks.studies.equal_kl import ASSUMED, WHAT_IS_ASSUMED, rows_at_kl
from tasks.studies.frame import BUDGET_COLUMNS, core_hours, frame_of, row_budgets
from tasks.studies.plan import check_study, design_of
from tasks.studies.records import read_record
from tasks.studies.registration import RECORDS
from tasks.studies.tuned import OPTIMISER, TunedRow, read_tuning, tuned_rows
from tasks.studies.twins import HEADINGS, twin_tests
from tasks.studies.verdicts import StudyFinding, StudyState, caveat_groups, claim_word, load_study, studied_claim

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
    """Prints a study's findings with what must be known beside them, or how many of its worlds have run."""
    state = load_study(root, study_file(root, name))
    spec = state.spec
    print(f"{spec.title}: {spec.asks}")
    print(f"{state.progress}, {core_hours(state.frame):.1f} core-hours")
    for note in state.notes:
        print(f"note: {note}")
    if not state.findings:
        print("No verdict is shown before the last registered world has run: rewardsmith study run " + name)
        return
    for finding in state.findings:
        print(_lines(finding))
    for group in caveat_groups(spec, state.findings):
        print("\n".join([f"\nCaveats of {group.of}", *(f"    {text}" for text in group.texts)]))
    for test in twin_tests(state):
        print("\n" + "\n".join(f"{name}: {said}" for name, said in zip(HEADINGS, test.texts, strict=True)))
    _print_claim(state)
    budgets = row_budgets(spec, state.frame, state.tuned)
    _print_table("\nBudgets", ["row"], BUDGET_COLUMNS, ([row, *budget.texts] for row, budget in budgets.items()))
    _print_at_kl(state)


def _lines(finding: StudyFinding) -> str:
    mark, number = "*" if finding.primary else " ", ""
    if finding.effect is not None:
        interval = finding.effect.interval()
        shown = "" if interval is None else f" [{interval.lower:+.1f}, {interval.upper:+.1f}]"
        p = "" if finding.p is None or finding.held_back else f", p = {finding.p:.3g}"
        number = f"{finding.effect.estimate:+.2f}{shown}{p}: "
    return f"{mark} {finding.hypothesis.says}\n    {number}{finding.text}"


def _print_claim(state: StudyState) -> None:
    """Prints what the study says of the claim that it names; the atlas has the verdict over all studies of it."""
    claim, says = state.spec.claim, studied_claim(state)
    if claim is None or says is None:
        return
    print(
        f"\nclaim ({claim.paper}, {claim.stated.source}): {claim.stated.says}\n    {claim_word([says])} by this study"
    )
    if claim.differs is not None:
        print(f"      differs: {claim.differs}")


def _print_at_kl(state: StudyState) -> None:
    found = rows_at_kl(state.spec, state.records)
    if not found:
        return
    targets = state.spec.kl_targets
    lines = [found[first : first + len(targets)] for first in range(0, len(found), len(targets))]
    rows = ([line[0].cell, line[0].row, *(one.text for one in line)] for line in lines)
    title = f"\n{state.spec.metric} at equal KL, nats per response"
    _print_table(title, ["cell", "row"], [f"{target:g}" for target in targets], rows)
    if any(one.assumed for one in found):
        print(f"{ASSUMED}: {WHAT_IS_ASSUMED}")
    for one in found:
        if one.reason is not None:
            print(f"{one.cell}, {one.row} at {one.target:g}: {one.reason}")


def _print_table(title: str, names: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table below its title, with lines as long as they are."""
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False)
    words = Measurement.get(console, console.options.update_width(1000), table).maximum
    print(title)
    Console(markup=False, width=max(console.width, words)).print(table, crop=False)


def print_tuning(rows: Mapping[str, TunedRow], record: Mapping[str, Any]) -> None:
    """Prints the rows with their trials and flags, then their best settings as a study's file has them."""
    numbers = ("trials", "chosen", record["metric"], "at its best", "its SFT", "core time")
    lines = [
        [row.row, row.kind, str(row.trials), "" if row.best is None else str(row.best)]
        + [_number(value) for value in (None if row.best is None else row.scores[row.best], row.at_best, row.sft)]
        + [clock(row.core_seconds)]
        for row in rows.values()
    ]
    title = f"{record['study']}, tuned on seeds {', '.join(map(str, record['seeds']))}"
    _print_table(title, ("row", "optimiser"), numbers, lines)
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
