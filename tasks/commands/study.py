"""Output of `rewardsmith study`: the studies, the cost of one, and its findings."""

from __future__ import annotations

import textwrap
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from rlhf_core.errors import RewardsmithError
from tasks.params.studies import FOLDER, StudySpec, read_study, study_file
from tasks.report.atlas_words import sentence
from tasks.studies.budgets import BUDGET_COLUMNS, core_hours, row_budgets
from tasks.studies.caveat_groups import caveat_groups
from tasks.studies.caveats import ASSUMED, WHAT_IS_ASSUMED, rows_at_kl
from tasks.studies.checks import check_study
from tasks.studies.claim_verdicts import claim_word, studied_claim
from tasks.studies.committed import read_records
from tasks.studies.design import design_of
from tasks.studies.record_format import read_record
from tasks.studies.registration import RECORDS, registration_of
from tasks.studies.shared_stages import SharedStage
from tasks.studies.start_log import abandoned
from tasks.studies.trial_records import read_tuning
from tasks.studies.tuned import tuned_rows
from tasks.studies.twins import HEADINGS, twin_tests
from tasks.studies.verdicts import StudyFinding, StudyState, load_study

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
    for study in abandoned(root):
        print(f"{study.study:<14}{study.text}")


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
    if planned.without_kl:
        print(f"blank at kl_targets, not sampled at temperature 1: {', '.join(planned.without_kl)}")
    _print_cost(root, file, spec, planned.shared)


def _print_cost(root: Path, file: Path, spec: StudySpec, shared: list[SharedStage]) -> None:
    """Prints core-hours: those of tuning and worlds that have run, of what is left, and of shared trainings."""
    paths = sorted((root / RECORDS / file.stem).glob("pilot-*.json"))
    pilots = [read_record(root, path.relative_to(root)) for path in paths]
    try:
        found = read_records(root, registration_of(root, file), spec)
        done = [*found.committed.values(), *found.uncommitted.values()]
    except RewardsmithError as error:
        print(f"not yet registered: {error}")
        done = []
    for one in shared:
        hours = one.saved_hours([*done, *pilots])
        about = "" if hours is None else f", up to {spec.worlds * hours:.2f} core-hours in all worlds"
        print(f"{one.stage} is trained once for {', '.join(one.cells)}: saves {one.saved} trainings a world{about}")
    if known := done or pilots:
        each = core_hours(known) / len(known)
        left = spec.worlds - len(done)
        print(f"{each:.2f} core-hours a world; {left} worlds left, {left * each:.1f} core-hours")
    elif spec.hours is not None:
        print(f"expected: {spec.hours:g} core-hours for all worlds")
    if (tuning := read_tuning(root, file.stem)) is not None:
        spent = sum(row.core_seconds for row in tuned_rows(tuning).values()) / 3600
        print(f"tuning: {spent:.2f} core-hours for the trials that have run")
    elif spec.tuning_hours is not None:
        print(f"expected: {spec.tuning_hours:g} core-hours for tuning")


def print_study(root: Path, name: str) -> None:
    """Prints a study's findings with what must be known beside them, or how many of its worlds have run."""
    state = load_study(root, study_file(root, name))
    spec = state.spec
    print(f"{spec.title}: {spec.asks}")
    print(f"{state.progress}, {core_hours(state.records.values()):.1f} core-hours")
    for file in state.unused:
        print(f"not used: {file} is not a world of this study")
    for file in state.uncommitted:
        print(f"not committed yet, so not counted: {file}")
    for note in state.notes:
        print(f"note: {note}")
    if not state.findings:
        print("No verdict is shown before the last registered world has run: rewardsmith study run " + name)
        return
    for finding in state.findings:
        print(_lines(finding))
    for group in caveat_groups(spec, state.findings):
        print("\n".join([f"\nCaveats of {group.of}", *(f"    {text}" for text in group.texts)]))
    _print_twins(state)
    _print_claim(state)
    _print_budgets(state)
    _print_at_kl(state)


def _lines(finding: StudyFinding) -> str:
    mark = "*" if finding.primary else " "
    return f"{mark} {finding.hypothesis.says}\n    {_number(finding)}{finding.text}"


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


def _number(finding: StudyFinding) -> str:
    if finding.effect is None:
        return ""
    interval = finding.effect.interval()
    shown = "" if interval is None else f" [{interval.lower:+.1f}, {interval.upper:+.1f}]"
    p = "" if finding.p is None or finding.held_back else f", p = {finding.p:.3g}"
    return f"{finding.effect.estimate:+.2f}{shown}{p}: "


def _print_twins(state: StudyState) -> None:
    """Prints whether differences between equal rows are as large as their standard errors say, of a study of twins."""
    for test in twin_tests(state):
        print("\n" + "\n".join(f"{name}: {said}" for name, said in zip(HEADINGS, test.texts, strict=True)))


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
        table.add_row(line[0].cell, line[0].row, *(one.text for one in line))
    print(f"\n{state.spec.metric} at equal KL, nats per response")
    _print_whole(table)
    if any(one.assumed for one in found):
        print(f"{ASSUMED}: {WHAT_IS_ASSUMED}")
    for one in found:
        if one.reason is not None:
            print(f"{one.cell}, {one.row} at {one.target:g}: {one.reason}")


def _print_whole(table: Table) -> None:
    """Prints a table with lines as long as they are."""
    console = Console(markup=False)
    words = Measurement.get(console, console.options.update_width(1000), table).maximum
    Console(markup=False, width=max(console.width, words)).print(table, crop=False)
