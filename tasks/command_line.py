"""The command line `rewardsmith`; `rewardsmith --help` lists its commands.

Commands are functions in the modules `tasks/commands/*_app.py`, in groups. They import heavy libraries inside the
function, so that help and errors come at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import typer

from rlhf_core.errors import RewardsmithError, path_error
from tasks.commands import platform_app, project_app, results_app, reward_app, run_app, study
from tasks.commands.options import InProject
from tasks.running.machine import disk_problem
from tasks.running.variables import refuse_bad_environment, unset_misleading_variables

USER_ERROR = 2

commands = typer.Typer(
    name="rewardsmith",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="""Reward design for RLHF: train, compare and report reward recipes.

A **row** is one recipe of a paper's table (an entry of `params/<paper>/rows.yaml`). Running it trains the models it
needs, once, and shares them with every other row; a second run does nothing. Start with `rewardsmith doctor`,
then `rewardsmith plan`, then `rewardsmith run`.
""",
)


#: The commands in the order of `rewardsmith --help`.
COMMANDS: tuple[Callable[..., None], ...] = (
    project_app.init,
    run_app.run,
    run_app.worker,
    run_app.plan,
    run_app.rehearse,
    results_app.table,
    results_app.compare,
    results_app.rows,
    results_app.report,
    results_app.atlas,
    reward_app.hackability,
    reward_app.try_reward,
    platform_app.sync,
    reward_app.explain,
    reward_app.bench_reward,
    results_app.export,
    project_app.doctor,
    results_app.verify,
    study.tune,
    project_app.graph,
    platform_app.up,
    platform_app.down,
    platform_app.promote,
    platform_app.adopt,
)
#: Commands that run in any folder.
ANYWHERE = {
    project_app.init, project_app.doctor, results_app.table, results_app.export,
    reward_app.explain, reward_app.bench_reward, reward_app.try_reward,
}  # fmt: skip
for command in COMMANDS:
    commands.command(cls=None if command in ANYWHERE else InProject)(command)
commands.add_typer(study.studies, name="study")


def app() -> None:
    """Runs the command line: an error of the user's prints one line and exits with 2."""
    unset_misleading_variables()
    try:
        here = Path.cwd()
    except FileNotFoundError:
        print("error: the working folder was deleted; change to the project's folder (cd)", file=sys.stderr)
        sys.exit(USER_ERROR)
    try:
        refuse_bad_environment()
        commands()
    except (RewardsmithError, OSError) as error:
        problem: str | None = str(error)
        if isinstance(error, OSError):
            problem = disk_problem(error, here) or (str(path_error(error)) if error.filename is not None else None)
        if problem is None:
            raise
        print(f"error: {problem.replace(f'{here}/', '')}", file=sys.stderr)
        sys.exit(USER_ERROR)


if __name__ == "__main__":
    app()
