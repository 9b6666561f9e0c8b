"""A paper's flow: its stages brought up to date, its report, its runs in MLflow.

    python -m flows.paper my-study    your own rows, params/my-study/rows.yaml, which have no module here

Without PREFECT_API_URL a temporary Prefect server is started for the run.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from prefect import Flow, flow, get_run_logger, tags
from prefect.artifacts import create_link_artifact
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort, MissingResult

from flows.deployments import refuse_edited_tree
from flows.follow_ups import Call, follow_ups
from flows.fork_server import preloading_fork_server
from flows.run_notes import host_tag, note_running_process
from flows.same_code import require_prefect_server
from flows.scheduler import RunFailed, RunSummary, completed_state, run_stale
from flows.working_tree import mark_processes_for_clean_up
from rlhf_core.errors import RewardsmithError
from rlhf_core.published import printed_tables
from tasks.dvc import plan
from tasks.dvc.ended_runs import RunRequest, loaded_code_digest, mark_request_done
from tasks.graph.names import DEMO_ALL, DEMO_PAPER, SUITE, TABLES_SO_FAR, seeds_so_far
from tasks.graph.stages import modules_of_files_never_run
from tasks.params.settings import DEFAULT_SCALE
from tasks.tracking.searches import experiment_link_written_since, link_to_runs

#: Exit status of a run that Ctrl-C ended.
INTERRUPTED = 128 + signal.SIGINT


def link_page_and_report(create: Callable[..., object]) -> None:
    """Links the run to the platform's page and its report, where there is a platform."""
    if link := os.environ.get("REWARDSMITH_PAGE", ""):
        create(key="page", link=link, link_text="page")
        create(key="report", link=f"{link.rstrip('/')}/report/index.html", link_text="report")


def link_mlflow_runs(create: Callable[..., object], root: Path, paper: str) -> None:
    """Links the run to a paper's runs in MLflow, once they are there."""
    if link := link_to_runs(root, paper):
        key = re.sub("[^a-z0-9]+", "-", f"mlflow-{paper}".lower())  # all that Prefect allows in one
        create(key=key, link=link, link_text=f"runs of {paper} in MLflow")


def tables_calls(root: Path, scale: str, paper: str, summary: RunSummary) -> list[Call]:
    """Returns the call that makes a paper's tables of what is there, where its tables stage, which waits for every row
    and seed, was not asked for or did not finish. A study that no paper published has no tables."""
    if paper not in printed_tables.PAPERS:
        return []
    stage, finished = f"tables-{paper}", {*summary.current, *summary.done}
    left = {*summary.failed, *summary.skipped}
    if not _named(stage, left) and _named(stage, finished):
        return []
    results = Path("results", scale)
    seeds = seeds_so_far(root / results, paper)
    call = ["--results", str(results), "--paper", paper, "--out", str(results / paper / TABLES_SO_FAR), "--seeds"]
    return [("tasks.tables", [*call, *map(str, seeds)])] if seeds else []


def report_page_calls(request: RunRequest, log: Any) -> list[Call]:
    """Returns the call that writes the report's page, if it was asked for and there is one."""
    if not request.report:
        return []
    # the demo is asked for without a name (SUITE) or by the name of its rows (DEMO_PAPER); the laboratory has a page of
    # its own, `tasks.report.hackability`
    whole = request.paper in (*printed_tables.PAPERS, SUITE, DEMO_ALL, DEMO_PAPER)
    module = "tasks.report" if whole else f"tasks.report.{request.paper}"
    if importlib.util.find_spec(module) is None:
        log.info(
            "no report page of %s; `rewardsmith table %s` sets its rows side by side", request.paper, request.paper
        )
        return []
    return [(module, ["--results", f"results/{request.scale}", "--out", "report"])]


def _named(stage: str, addresses: Collection[str]) -> bool:
    """Returns whether a stage is among addresses, in whichever file."""
    return any(address.rpartition(":")[2] == stage for address in addresses)


def run_request(root: Path, request: RunRequest, *, pool: str = "", remote: str = "") -> State[str]:
    """Brings the results of a paper, or of the suite's papers, up to date and reports them. Call it inside a flow.

    Args:
        root: the repository.
        request: what is brought up to date, and what follows: report (with the tables so far), runs in MLflow.
        pool: the Prefect work pool that runs the stages; empty for this machine alone.
        remote: the DVC remote by which the pool's results come.

    Returns:
        the run's state, with one line that says what became of the stages, and a line for each stage with an alarm.

    Raises:
        RunFailed: at least one stage failed, or what follows them.
    """
    with note_running_process(root):
        log, code, began = get_run_logger(), loaded_code_digest(), time.time()
        name, scale = request.paper, request.scale
        papers = plan.asked_papers(root, name, scale=scale, full=request.full)
        dvc_files = plan.asked_files(root, name, scale=scale, full=request.full, rows=request.rows, seeds=request.seeds)
        selected: dict[str, Any] = {"papers": papers, "rows": request.rows, "seeds": request.seeds}
        # stages that several papers share are shown in the first one's experiment while they run
        live_experiment = next(iter(papers), "") if request.sync else ""
        summary = run_stale(root, dvc_files, **selected, pool=pool, remote=remote, live_experiment=live_experiment)
        log.info("%s", summary.line())
        problems = list(summary.failed.values())
        if request.report:
            problems += follow_ups(root, *(call for one in papers for call in tables_calls(root, scale, one, summary)))
        mirror_calls: list[Call] = [
            ("tasks.tracking.mirror", ["--paper", one, "--scale", scale]) for one in (papers if request.sync else ())
        ]
        report_calls = report_page_calls(request, log)
        # calls of one `follow_ups` run side by side, and the report needs the link to each experiment, a file in the
        # tree: mirror before it where live tracking has not written this file in this run
        if not all(experiment_link_written_since(root, one, began) for one in papers):
            problems += follow_ups(root, *mirror_calls)
            mirror_calls = []
        problems += follow_ups(root, *mirror_calls, *report_calls)
        if request.sync:
            for one in papers:
                link_mlflow_runs(create_link_artifact, root, one)
        summary.stage_times.write(root)
        if problems:
            raise RunFailed(f"{summary.line()}. " + "; ".join(problems))
        # from here on the same request ends at once, while code and files are these
        mark_request_done(root, request, dvc_files, code)
        return completed_state(summary)


def begin(root: Path, request: RunRequest, *, pool: str, remote: str) -> State[str]:
    """Runs the request, linked to the platform's page; refuses an edited tree where the deployment names a commit."""
    refuse_edited_tree(root)
    link_page_and_report(create_link_artifact)
    return run_request(root, request, pool=pool, remote=remote)


def run_name() -> str:
    """Returns the name of the present flow run: the rows and seeds that it was asked for."""
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
    ) -> Any:  # Prefect hands on the text of the state
        """Brings the paper's results up to date.

        Args:
            full: every row and seed of the paper instead of its headline rows.
            rows: only these rows, with the models they need.
            seeds: only these seeds.
            scale: size of models and data.
            report: write the report page afterwards (and, of some rows or seeds, the tables so far).
            sync: mirror the results into MLflow afterwards.
            root: the repository.
            pool: the Prefect work pool that runs the stages; empty for this machine alone.
            remote: the DVC remote by which the pool's results come.
        """
        request = RunRequest(paper, scale, full, tuple(rows or ()), tuple(seeds or ()), report, sync)
        return begin(Path(root).resolve(), request, pool=pool, remote=remote)

    return run


def end_on_signal(number: int, _: object) -> None:
    """Ends the process in order, so that the temporary server ends, too; Prefect hands the signal on to here."""
    sys.exit(128 + number)


def interrupted() -> int:
    """Says what an interrupted command does next; returns its exit status."""
    print("interrupted: the same command goes on, a stage with a checkpoint from there", file=sys.stderr)
    return INTERRUPTED


def command_line(run_flow: Callable[..., str], paper: str, arguments: list[str] | None = None) -> int:
    """Runs a paper's flow from its arguments; returns the exit status: 1 for a run that failed or was cancelled, 2 for
    a user's error."""
    module = f"flows.{paper}" if importlib.util.find_spec(f"flows.{paper}") else f"flows.paper {paper}"
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=f"The flow of the paper {paper}")
    parser.add_argument("--full", action="store_true", help="every row and seed of the paper")
    parser.add_argument("--rows", nargs="*", metavar="ROW", default=[], help="only these rows and what they need")
    parser.add_argument("--seeds", nargs="*", type=int, metavar="N", default=[], help="only these seeds")
    parser.add_argument("--scale", default="testbed", help="testbed (default), hh, feedback, reasoning, small or paper")
    parser.add_argument("--no-report", action="store_true", help="do not write the report page")
    parser.add_argument("--no-sync", action="store_true", help="do not mirror the results into MLflow")
    parser.add_argument("--pool", default="", help="run the stages in this Prefect work pool")
    parser.add_argument("--remote", default="", help="the DVC remote by which the pool's results come")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, end_on_signal)
    mark_processes_for_clean_up(Path.cwd())  # if this run is killed, the next one ends what it has started
    try:
        if options.pool:
            require_prefect_server()
        # before its first run the demo's dvc.yaml, still without a lock, tells which modules its stages will need, to
        # import them while Prefect starts; of other requests `run_stale` knows the files, and begins the imports
        files_to_scan = [] if options.pool or paper != SUITE or options.full else [plan.ROOT_FILE]
        with (
            preloading_fork_server(Path.cwd(), modules_of_files_never_run(Path.cwd(), files_to_scan)),
            tags(host_tag()),
        ):
            line = run_flow(
                full=options.full,
                rows=options.rows,
                seeds=options.seeds,
                scale=options.scale,
                report=not options.no_report,
                sync=not options.no_sync,
                pool=options.pool,
                remote=options.remote,
            )
    except (RunFailed, Abort) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except RewardsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return interrupted()
    except MissingResult:  # Prefect sent the final state twice, as the server answered late; the second lacks its text
        line = "the run ended well; its stages are above"
    print(line)
    return 0


if __name__ == "__main__":
    paper_folder, *given = sys.argv[1:] or [""]
    sys.exit(command_line(paper_flow(paper_folder, f"The rows of {paper_folder}"), paper_folder, given))
