"""The five papers: stages side by side, what papers share once, then MLflow and the report.

python -m flows.suite                     the demo-sized rows
python -m flows.suite --full              every row and seed of the five papers
python -m flows.suite --full --seeds 0    one seed
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_link_artifact

from flows.deployments import check_pinned
from flows.follow_ups import follow_ups
from flows.paper import command_line, page_link, runs_link, tables_so_far
from flows.run_notes import noted
from flows.scheduler import RunFailed, run_stale
from rlhf_core.errors import RecipeError
from tasks.dvc import plan
from tasks.dvc.ended_runs import Asked, code_at_work, ended_well
from tasks.graph.names import SUITE


def run_suite(
    root: Path,
    *,
    full: bool,
    scale: str,
    seeds: Sequence[int],
    report: bool,
    sync: bool,
    remote: str = "",
    pull: bool = True,
) -> str:
    """Brings all papers up to date and reports them. Call it inside a flow.

    Raises:
        RunFailed: at least one stage failed, or what follows them.
    """
    with noted(root):
        log, code = get_run_logger(), code_at_work()
        papers = plan.suite_papers(root, scale=scale, full=full)
        files = plan.suite_files(root, scale=scale, full=full)
        summary = run_stale(root, files, papers=papers, seeds=seeds, remote=remote, pull=pull)
        log.info("%s", summary.line())
        problems = list(summary.failed.values())
        if report:
            so_far = [call for paper in papers for call in tables_so_far(root, scale, paper, summary)]
            problems += follow_ups(root, *so_far)
        mirrored = papers if sync else ()
        problems += follow_ups(
            root, *(("tasks.tracking.mirror", ["--paper", paper, "--scale", scale]) for paper in mirrored)
        )
        for paper in mirrored:
            runs_link(create_link_artifact, root, paper)
        if report:  # after MLflow, whose runs it links
            call = ["--results", f"results/{scale}", "--out", "report"]
            problems += follow_ups(root, ("tasks.report", call))
        summary.times.write(root)
        if problems:
            raise RunFailed(f"{summary.line()}. " + "; ".join(problems))
        ended_well(root, Asked(SUITE, scale, full, (), tuple(seeds), report, sync), files, code)
        return summary.line()


@flow(name="suite", description="Every paper, shared work once, then the report.", persist_result=False)
def suite(
    full: bool = False,
    seeds: list[int] | None = None,
    scale: str = "testbed",
    report: bool = True,
    sync: bool = True,
    root: str = ".",
    remote: str = "",
    pull: bool = True,
) -> str:
    """Brings the five papers up to date. Other studies (the laboratory, mixed recipes, your own) run by name.

    Args:
        full: every row and seed of the five papers instead of the demo-sized set.
        seeds: only these seeds.
        scale: testbed, hh, feedback, reasoning, small or paper.
        report: write the report page afterwards.
        sync: mirror the results into MLflow afterwards.
        root: the repository.
        remote: a DVC remote by which this machine shares the work with others; empty for this machine alone.
        pull: bring the results of other machines here.
    """
    folder = Path(root).resolve()
    check_pinned(folder)
    page_link(create_link_artifact)
    return run_suite(
        folder, full=full, scale=scale, seeds=seeds or (), report=report, sync=sync, remote=remote, pull=pull
    )


def _suite(*, rows: Sequence[str], **options: Any) -> str:
    """Returns the suite behind the papers' command line: it has no rows to choose."""
    if rows:
        raise RecipeError("the suite takes no rows; run a paper for some of its rows")
    return suite(**options)


if __name__ == "__main__":
    sys.exit(command_line(_suite, "suite"))
