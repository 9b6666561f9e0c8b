"""The Sentence paper.

python -m flows.sentence --full                        every row of the paper, three seeds
python -m flows.sentence --rows sentence --seeds 0     one row and what it needs
"""

from __future__ import annotations

import sys

from prefect import flow

from flows.paper import command_line, run_paper

PAPER = "sentence"


@flow(name=PAPER, persist_result=False)
def sentence(
    full: bool = False,
    rows: list[str] | None = None,
    seeds: list[int] | None = None,
    scale: str = "testbed",
    report: bool = True,
    sync: bool = True,
    root: str = ".",
) -> str:
    """Sentence-level Reward Model: trains and evaluates what is not up to date, and reports it.

    Args:
        full: every row and seed of the paper instead of the demo-sized set.
        rows: only these rows, with the models they need.
        seeds: only these seeds.
        scale: testbed, hh, small or paper.
        report: write the report page afterwards.
        sync: mirror the results into MLflow afterwards.
        root: the repository.
    """
    return run_paper(
        PAPER, full=full, rows=rows or (), seeds=seeds or (), scale=scale, report=report, sync=sync, root=root
    )


if __name__ == "__main__":
    sys.exit(command_line(sentence, PAPER))
