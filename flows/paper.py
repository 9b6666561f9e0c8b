"""A paper's flow: brings its stages up to date, then writes its tables, its MLflow runs and the report.

A paper is any folder of params/ with rows, such as one of the five papers, the demo, the laboratory or your own. The
suite is the demo; in full, or at another scale, it is those of the five papers that have rows there.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from prefect import Flow, flow, get_run_logger, task
from prefect.artifacts import create_link_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State

from flows.deployments import PAPER_TITLES, refuse_edited_tree
from flows.scheduler import RunFailed, RunSummary, completed_state, run_stale
from flows.stage_run import Command, RunningStages, StageFailed, run_command
from flows.worker import require_prefect_server
from rlhf_core.errors import RecipeError
from rlhf_core.published import printed_tables
from tasks.dvc.ended_runs import mark_request_done
from tasks.dvc.pipelines import Request
from tasks.graph.laboratory import LABORATORY
from tasks.graph.names import DEMO_ALL, DEMO_PAPER, SUITE, TABLES_SO_FAR, seeds_so_far
from tasks.params.scales import DEFAULT_SCALE
from tasks.tracking.mirror import link_to_runs

#: A module of the project and its arguments.
Call = tuple[str, Sequence[str]]


def run_modules(root: Path, *calls: Call) -> list[str]:
    """Runs modules side by side in a repository; returns what went wrong. Call it inside a flow."""
    running = RunningStages()
    futures = [run_module.submit(*call, number, root, running) for number, call in enumerate(calls)]
    try:
        for future in futures:
            future.wait()
    finally:  # also where the run is cancelled: each call leads a process group of its own, which no signal reaches
        running.end_all()
    ended = [future.state for future in futures if not future.state.is_completed()]
    return [str(state.result(raise_on_failure=False)) for state in ended]


@task(name="after-the-stages", task_run_name="{module}", persist_result=False, cache_policy=NO_CACHE)
def run_module(module: str, arguments: Sequence[str], number: int, root: Path, running: RunningStages) -> None:
    """Runs one module as a stage runs, with the code of this project; `number` is for its log.

    Raises:
        RunFailed: it failed.
    """
    words = shlex.join(["python", "-P", "-m", module, *arguments])
    command = Command(words, address=module, name=f"{module}-{number}", environment={})
    try:
        run_command(root, command, running=running, log=get_run_logger().info)
    except StageFailed as error:
        raise RunFailed(str(error).removeprefix("stage ")) from error


def tables_calls(root: Path, scale: str, paper: str, summary: RunSummary) -> list[Call]:
    """Returns the call that makes a paper's tables so far; none if its tables stage finished, or nothing has run.

    The tables stage waits for every row and seed, so a run of some of them does not ask for it, and it is skipped when
    a row fails. Several dvc.yaml files may have a stage of this name (tables of the headline rows, of the matrix); each
    one asked for must have finished. Papers other than the five have no tables.
    """
    if paper not in printed_tables.PAPERS:
        return []
    finished = {address.rpartition(":")[2] for address in (*summary.current, *summary.done)}
    missing = {address.rpartition(":")[2] for address in (*summary.failed, *summary.skipped)}
    if f"tables-{paper}" in finished - missing:
        return []
    results = Path("results", scale)
    seeds = seeds_so_far(root / results, paper)
    call = ["--results", str(results), "--paper", paper, "--out", str(results / paper / TABLES_SO_FAR), "--seeds"]
    return [("tasks.tables", [*call, *map(str, seeds)])] if seeds else []


def report_page_calls(request: Request) -> list[Call]:
    """Returns the call that writes the report's page, if it was asked for and there is one."""
    # the demo is asked for without a name (SUITE) or by the name of its rows (DEMO_PAPER)
    on_main_page, laboratory = (*printed_tables.PAPERS, SUITE, DEMO_ALL, DEMO_PAPER), request.paper == LABORATORY
    if not request.report or not (laboratory or request.paper in on_main_page):
        return []
    page = ["--laboratory"] if laboratory else []
    return [("tasks.report", ["--results", f"results/{request.scale}", "--out", "report", *page])]


def run_request(
    root: Path, request: Request, *, pool: str = "", remote: str = "", mirrored: Sequence[str] = ()
) -> State[str]:
    """Brings the results of a paper, or of the suite's papers, up to date and reports them. Call it inside a flow.

    Args:
        root: the repository.
        request: what is brought up to date, and what follows: the report with tables so far, runs in MLflow.
        pool: the Prefect work pool that runs the stages; empty for this machine alone.
        remote: the DVC remote by which the pool's results come.
        mirrored: the only rows that MLflow gets; empty for all, also while they train.

    Returns:
        the run's state; its data is a line with the number of stages by outcome, then one for each stage with alarms.

    Raises:
        RunFailed: a stage failed, or the report or MLflow after the stages.
    """
    began = time.time()
    papers, dvc_files, scale = request.papers(root), request.files(root), request.scale
    tracked = papers if request.sync else ()
    # while a stage that several papers share runs, the MLflow experiment of the first paper shows it
    live_paper = next(iter(tracked), "") if not mirrored else ""
    summary = run_stale(
        root,
        dvc_files,
        papers=papers,
        rows=request.rows,
        seeds=request.seeds,
        pool=pool,
        remote=remote,
        live_paper=live_paper,
    )
    get_run_logger().info("%s", summary.line())
    problems = list(summary.failed.values())
    if request.report:
        problems += run_modules(root, *(call for one in papers for call in tables_calls(root, scale, one, summary)))
    rows = ["--rows", *mirrored] if mirrored else []
    mlflow_calls: list[Call] = [("tasks.tracking.mirror", ["--paper", one, "--scale", scale, *rows]) for one in tracked]
    problems += run_modules(root, *mlflow_calls, *report_page_calls(request))  # side by side
    for one in tracked:
        if link := link_to_runs(root, one):
            key = re.sub("[^a-z0-9]+", "-", f"mlflow-{one}".lower())  # Prefect allows only these characters in a key
            with suppress(httpx.TransportError):  # the run ends without a server that has gone
                create_link_artifact(key=key, link=link, link_text=f"runs of {one} in MLflow")
    if problems:
        raise RunFailed(f"{summary.line()}. " + "; ".join(problems))
    # while code and files stay the same, `nothing_to_do` answers the same request without a run
    mark_request_done(root, request, dvc_files, began)
    return completed_state(summary)


def run_name() -> str:
    """Returns the name of the present flow run: paper, rows and seeds that it was asked for, and another scale than the
    testbed."""
    from prefect.runtime import flow_run

    request = flow_run.parameters
    words = [flow_run.flow_name, *(request.get("rows") or (["full"] if request.get("full") else []))]
    words += [f"seed {seed}" for seed in request.get("seeds") or ()]
    scale = request.get("scale", DEFAULT_SCALE)
    return " ".join([*words, *([] if scale == DEFAULT_SCALE else [f"at {scale}"])])


def paper_flow(paper: str, title: str) -> Flow[..., str]:
    """Returns the Prefect flow of a paper: `run_request` with typed parameters."""

    what = f"{title}: trains and evaluates what is not up to date, and reports it."

    @flow(name=paper, description=what, flow_run_name=run_name, persist_result=False)
    def run(
        full: bool = False,
        rows: list[str] | None = None,
        seeds: list[int] | None = None,
        scale: str = "testbed",
        report: bool = True,
        sync: bool = True,
        root: str = ".",
        pool: str = "",
        remote: str = "",
    ) -> Any:  # returns a State; Prefect gives the caller its data, the text
        """Brings the paper's results up to date.

        Args:
            full: every row and seed; without it, at testbed, only the paper's rows of the demo or demo-all, if any.
            rows: only these rows, with the models they need; the suite takes none.
            seeds: only these seeds.
            scale: size of models and data.
            report: write the report page afterwards, and the tables so far if the tables stage did not finish.
            sync: write the results into MLflow afterwards.
            root: the repository.
            pool: the Prefect work pool that runs the stages; empty for this machine alone.
            remote: the DVC remote by which the pool's results come.
        """
        tree = Path(root).resolve()
        refuse_edited_tree(tree)
        request = Request(paper, scale, full, tuple(rows or ()), tuple(seeds or ()), report, sync)
        return run_request(tree, request, pool=pool, remote=remote)

    return run


#: Titles of all flows that deployments have; a deployment loads its flow as an attribute of this module.
TITLES = {**PAPER_TITLES, SUITE: "The demo, or in full the five papers with shared stages run once"}
globals().update({name: paper_flow(name, title) for name, title in TITLES.items()})


def run_paper(paper: str, *, pool: str = "", **parameters: Any) -> str:
    """Runs a paper's flow from the command line; its parameters are those of `paper_flow`."""
    if pool:
        require_prefect_server()
    if paper == SUITE and parameters.get("rows"):
        raise RecipeError("the suite takes no rows; run a paper for some of its rows")
    return paper_flow(paper, TITLES.get(paper, f"The rows of {paper}"))(pool=pool, **parameters)
