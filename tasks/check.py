"""Stage `check`: names what is wrong with a paper's settings at a scale before its rows run.

    python -m tasks.check --results results/testbed --paper par --out results/testbed/par/check

Depends on every page of the paper and of the scale; its result is constant, so that a changed page runs this stage and
nothing else that does not read what changed. A row that is not valid is refused by its own stage
(`tasks.running.stage`) and stops no other.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from tasks.graph.check import check_rows
from tasks.graph.rows import row_addresses
from tasks.running.artifacts import stage_output, write_json
from tasks.running.stage import stage

STAGE = "check"
VERSION = 1


def check(
    results: Annotated[Path, "results of one scale"],
    paper: Annotated[str, "the paper whose settings are checked"],
    out: Path,
) -> None:
    """Checks every row of a paper with all that it reads at a scale, and warns of each problem."""
    for problem in check_rows(Path(), paper, row_addresses(Path(), paper), results.name):
        print(f"warning: {problem}", file=sys.stderr)
    with stage_output(out, stage=STAGE, version=VERSION, inputs=[]) as result:
        write_json(result / "checked.json", {"paper": paper, "scale": results.name})


main = stage(check)
