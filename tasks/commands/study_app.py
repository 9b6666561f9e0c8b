"""Commands of registered studies: `rewardsmith study` and `rewardsmith tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tasks.commands.options import InProject, Verbose
from tasks.commands.processes import run_flow

studies = typer.Typer(no_args_is_help=True, help="Registered questions, answered over independent worlds.")
StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="The name of studies/STUDY.yaml.")]


@studies.command(name="list", cls=InProject)
def list_studies() -> None:
    """List the studies with their worlds and primary findings."""
    from tasks.commands.study import print_studies

    print_studies(Path.cwd())


@studies.command(name="plan", cls=InProject)
def plan_study(name: StudyName) -> None:
    """Show the cells, rows and worlds of a study and what they should cost."""
    from tasks.commands.study import print_plan as print_study_plan

    print_study_plan(Path.cwd(), name)


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
    from tasks.commands.study import print_study

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
