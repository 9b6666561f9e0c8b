"""Commands of the platform: its servers, MLflow's runs and registry, and recipes of the Prefect form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tasks.commands.options import Scale
from tasks.commands.processes import run_quietly
from tasks.graph.names import known_paper, papers_of_repository
from tasks.running.platform_state import join_platform


def up(
    prefect_port: Annotated[int | None, typer.Option(help="Port of Prefect; else 4200 or a free one.")] = None,
    mlflow_port: Annotated[int | None, typer.Option(help="Port of MLflow; else 5000 or a free one.")] = None,
) -> None:
    """Start the platform on this machine: Prefect with a worker, and MLflow.

    Run again, it starts missing servers and cleans up after killed processes. `rewardsmith down` stops it. Servers
    listen on this machine only; user and password are generated (`.work/platform/credentials.json`).
    """
    papers_of_repository(Path.cwd())
    asked = {"prefect": prefect_port, "mlflow": mlflow_port}
    ports = [word for name, port in asked.items() if port for word in (f"--{name}-port", str(port))]
    raise typer.Exit(run_quietly("flows.servers", "up", *ports))


def down() -> None:
    """Stop the platform: worker first, then its runs, then the servers."""
    raise typer.Exit(run_quietly("flows.servers", "down"))


def sync(
    paper: Annotated[str | None, typer.Argument(help="Mirror the results of this paper only.")] = None,
    scale: Scale = "testbed",
) -> None:
    """Mirror stage outputs into MLflow (MLFLOW_TRACKING_URI, else mlflow.db here); repeating it changes nothing.

    Look at the runs with `mlflow ui --backend-store-uri sqlite:///mlflow.db`.
    """
    from tasks.tracking import mirror as tracking
    from tasks.tracking.databases import without_passwords

    names = papers_of_repository(Path.cwd()) if paper is None else [known_paper(Path.cwd(), paper)]
    join_platform(Path.cwd())
    print(without_passwords(f"MLflow: {tracking.tracking_uri(Path.cwd())}"))
    for name in (name for name in names if paper or Path("results", scale, name).is_dir()):
        print(f"{name}: {tracking.sync(Path.cwd(), name, scale).line()}")


def promote(
    name: Annotated[str, typer.Argument(help="A registered model, such as segment-policy-segment.")],
    seed: Annotated[int, typer.Option(help="Seed of its result.")] = 0,
    alias: Annotated[str, typer.Option(help="The alias to set.")] = "champion",
) -> None:
    """Point an alias of the model registry at a result; re-evaluation follows it."""
    from tasks.tracking import mirror as tracking

    join_platform(Path.cwd())
    found = tracking.open_registry(Path.cwd()).promote(name, alias, seed)
    print(f"{name}@{alias} is version {found.version}: {found.path} ({found.digest[:12]})")


def adopt(name: Annotated[str, typer.Argument(help="The recipe, as named in the form.")]) -> None:
    """Add a recipe that ran from the Prefect form to this tree as a row."""
    raise typer.Exit(run_quietly("flows", "adopt", json.dumps({"name": name})))
