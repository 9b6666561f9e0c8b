"""The Segment paper: its stages, its report, its runs in MLflow.

    python -m flows.segment                              the demo-sized rows (the root dvc.yaml)
    python -m flows.segment --full                       every row of the paper, three seeds
    python -m flows.segment --rows segment --seeds 0     one row and what it needs

Without PREFECT_API_URL a temporary Prefect server is started for the run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from prefect import flow, get_run_logger

from flows.scheduler import RunFailed, follow_up, run_stale
from rlhf_core.errors import RewardsmithError
from tasks import plan

PAPER = "segment"


@flow(name="segment", persist_result=False)
def segment(
    full: bool = False,
    rows: list[str] | None = None,
    seeds: list[int] | None = None,
    scale: str = "testbed",
    report: bool = True,
    sync: bool = True,
    root: str = ".",
) -> str:
    """Brings the paper's results up to date and reports them.

    Args:
        full: every row and seed of the paper instead of the demo-sized set.
        rows: only these rows, with the models they need.
        seeds: only these seeds.
        scale: testbed, small or paper.
        report: write the report page afterwards.
        sync: mirror the results into MLflow afterwards.
        root: the repository.

    Returns:
        one line that says what became of the stages.
    """
    log = get_run_logger()
    folder = Path(root).resolve()
    files = plan.pipeline_files(folder, PAPER, scale=scale, full=full)
    summary = run_stale(folder, files, rows=rows or (), seeds=seeds or ())
    log.info("%s", summary.line())
    after = []
    if sync:
        after.append(follow_up.submit("tasks.tracking", ["--paper", PAPER, "--scale", scale, "--root", str(folder)]))
    made = [folder / "results" / scale / PAPER / name / "result" for name in ("tables", "tables-demo")]
    if report and not any(path.exists() for path in made) and (rows or seeds):
        log.info("no report: some rows alone make no tables; `python -m tasks.tables` makes them of what exists")
    elif report:
        results, out = str(folder / "results" / scale), str(folder / "report")
        after.append(follow_up.submit("tasks.report", ["--results", results, "--out", out]))
    problems = list(summary.failed.values())
    for future in after:
        future.wait()
        if not future.state.is_completed():
            problems.append(str(future.state.result(raise_on_failure=False)))
    if problems:
        raise RunFailed(f"{summary.line()}. " + "; ".join(problems))
    return summary.line()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.segment", description=__doc__.split("\n")[0])
    parser.add_argument("--full", action="store_true", help="every row and seed of the paper")
    parser.add_argument("--rows", nargs="*", metavar="ROW", help="only these rows and what they need")
    parser.add_argument("--seeds", nargs="*", type=int, metavar="N", help="only these seeds")
    parser.add_argument("--scale", default="testbed", help="testbed (default), hh, small or paper")
    parser.add_argument("--no-report", action="store_true", help="do not write the report page")
    parser.add_argument("--no-sync", action="store_true", help="do not mirror the results into MLflow")
    options = parser.parse_args(arguments)
    try:
        line = segment(
            full=options.full,
            rows=options.rows,
            seeds=options.seeds,
            scale=options.scale,
            report=not options.no_report,
            sync=not options.no_sync,
        )
    except RunFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except RewardsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
