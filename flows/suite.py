"""The demo, or in full or at another scale those of the five papers that have rows there; then the report and MLflow.

python -m flows.suite                     the demo
python -m flows.suite --full              every row and seed of the five papers
python -m flows.suite --full --seeds 0    one seed
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow

from flows.paper import command_line, run_name, run_request_with_links
from rlhf_core.errors import RecipeError
from tasks.dvc.ended_runs import RunRequest
from tasks.graph.names import SUITE


@flow(
    name="suite",
    description="The demo, or in full the five papers with shared stages run once, then the report.",
    flow_run_name=run_name,
    persist_result=False,
)
def suite(
    full: bool = False,
    seeds: list[int] | None = None,
    scale: str = "testbed",
    report: bool = True,
    sync: bool = True,
    root: str = ".",
    pool: str = "",
    remote: str = "",
) -> Any:  # returns a State; Prefect gives the caller its data, the text
    """Brings the demo, or the five papers, up to date. Other folders of params/, such as your own, run by name.

    Args:
        full: every row and seed of the five papers instead of the demo.
        seeds: only these seeds.
        scale: size of models and data; at another than testbed those of the five papers run that have rows there.
        report: write the report page afterwards, and the tables so far of papers whose tables stage did not finish.
        sync: write the results into MLflow afterwards.
        root: the repository.
        pool: the Prefect work pool that runs the stages; empty for this machine alone.
        remote: the DVC remote by which the pool's results come.
    """
    request = RunRequest(SUITE, scale, full, rows=(), seeds=tuple(seeds or ()), report=report, sync=sync)
    return run_request_with_links(Path(root).resolve(), request, pool=pool, remote=remote)


def _suite(*, rows: Sequence[str], **options: Any) -> str:
    """Runs the suite from the papers' command line, whose --rows it refuses."""
    if rows:
        raise RecipeError("the suite takes no rows; run a paper for some of its rows")
    return suite(**options)


if __name__ == "__main__":
    sys.exit(command_line(_suite, "suite"))
