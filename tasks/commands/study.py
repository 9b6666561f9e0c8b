"""Commands of registered studies, `rewardsmith study` and `rewardsmith tune`, and what they print."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf_core.errors import RewardsmithError
from tasks.commands.options import InProject, Verbose, print_table
from tasks.commands.processes import run_flow

if TYPE_CHECKING:
    from tasks.studies.best_trials import TunedRow

studies = typer.Typer(no_args_is_help=True, help="Registered questions, answered over independent worlds.")
StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="The name of studies/STUDY.yaml.")]


@studies.command(name="list", cls=InProject)
def list_studies() -> None:
    """List the studies with their worlds and primary findings."""
    print_studies(Path.cwd())


@studies.command(name="plan", cls=InProject)
def plan_study(name: StudyName) -> None:
    """Check a study, and show the rows of its cells, the stages of a world and what the worlds should cost."""
    from tasks.params.studies import read_study, study_file
    from tasks.studies.numbers import numbers_of
    from tasks.studies.plan import check_study
    from tasks.studies.records import RECORDS, read_record

    root = Path.cwd()
    file = study_file(root, name)
    spec = read_study(file)
    counts = check_study(root, file.stem, spec)
    cells = {cell: spec.rows_of(levels) for cell, levels in spec.cells.items()}
    print(f"{spec.title}: {spec.asks}", *(f"  {cell}: {', '.join(rows)}" for cell, rows in cells.items()), sep="\n")
    policies = sum(map(len, cells.values()))
    print(f"{spec.worlds} worlds of {policies} rows: {spec.worlds * policies} runs")
    print("stages of a world: " + ", ".join(f"{count} {module}" for module, count in counts.items()))
    if files := sorted((root / RECORDS / file.stem).glob("*.json")):
        records = [read_record(root, one.relative_to(root)) for one in files]
        each = numbers_of(spec, dict(enumerate(records))).core_hours / len(files)
        left = max(0, spec.worlds - sum(record["kind"] == "verdict" for record in records))
        print(f"{each:.2f} core-hours a world; {left} worlds left, {left * each:.1f} core-hours")
    elif spec.hours is not None:
        print(f"expected: {spec.hours:g} core-hours for all worlds")


@studies.command(name="run", cls=InProject)
def run_study(
    name: StudyName,
    worlds: Annotated[int, typer.Option(min=1, help="How many of the worlds without a record.")] = 1,
    pilot: Annotated[
        list[int] | None, typer.Option(metavar="SEED", help="Seeds of tuning (100 to 199) instead.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the worlds' trees in .work/studies/.")] = False,
    verbose: Verbose = False,
) -> None:
    """Train the next worlds of a study, every row of every cell; interrupting is safe.

    A study must be committed first: the seeds of its worlds follow from its file. Each world leaves a record in
    `reference/studies/`; commit it. No verdict is shown before the last world.
    """
    from tasks.params.studies import study_file

    study_file(Path.cwd(), name)
    choice = {"name": name, "worlds": worlds, "pilots": pilot, "keep": keep}
    raise typer.Exit(run_flow("study", choice, verbose=verbose))


@studies.command(name="show", cls=InProject)
def show_study(name: StudyName) -> None:
    """Print the findings of a study, once all its worlds have run."""
    print_study(Path.cwd(), name)


def tune(
    study: Annotated[str, typer.Argument(help="The study: studies/<name>.yaml.")],
    trials: Annotated[int, typer.Option(min=1, help="Points at which each row is tried.")] = 16,
    seed: Annotated[list[int] | None, typer.Option(help="A tuning seed, 100 to 199 (may be repeated).")] = None,
    write: Annotated[bool, typer.Option("--write", help="Put each row's best settings into the study's file.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the trials' weights in .work/tuning/.")] = False,
    verbose: Verbose = False,
) -> None:
    """Tune the rows of a study before it is registered: the same points for each, on tuning seeds.

    Search spaces: `params/tuning.yaml`. What was tried: `reference/tuning/<study>.json`; it is not tried again.
    Example: `rewardsmith tune credit --trials 16 --seed 100 --seed 101`. Seed 100 unless given.
    """
    choice = {"name": study, "trials": trials, "seeds": seed or [100], "write": write, "keep": keep}
    raise typer.Exit(run_flow("tune", choice, verbose=verbose))


def print_studies(root: Path) -> None:
    """Prints every study with its worlds and its primary finding, or why it is refused."""
    from tasks.params.studies import FOLDER
    from tasks.report.atlas import finding_text
    from tasks.studies.verdicts import load_study

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
            print(textwrap.indent(textwrap.fill(line, 66), " " * 14))


def print_study(root: Path, name: str) -> None:
    """Prints a study's part of the atlas, or how many of its worlds have run: drawn on a terminal, else Markdown; of
    rows against themselves, their test."""
    from rich.console import Console
    from rich.markdown import Markdown

    from tasks.params.studies import study_file
    from tasks.report.atlas import AtlasStudy, study_section
    from tasks.report.page import markdown_of
    from tasks.studies.twins import HEADINGS, twin_tests
    from tasks.studies.verdicts import load_study

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
    import yaml

    from tasks.graph.times import clock

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
    for row in (row for row in rows.values() if row.best is not None):
        text = yaml.safe_dump({"optimiser": row.point}, default_flow_style=True, width=1000).strip()
        print(f"  {row.row}: {text}")
