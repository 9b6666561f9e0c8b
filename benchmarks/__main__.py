"""Every comparison, in one table.

    python -m benchmarks [--repeats 3] [--only reward_model dpo_pairs]

Prints the table and writes `.work/benchmarks/comparisons.csv`; with `--record docs/measured/performance.csv` it changes
the rows of that file instead. `make bench-peers` installs the peers; a comparison whose peer is missing is not run, and
says so. Missed targets are bold. Surplus is the share of tokens that pass a model's layers in vain, which are padding,
and prompts that have passed with another answer; the target is at most 7 %.
"""

from __future__ import annotations

import argparse
import os
import platform
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import engines
from benchmarks.alternating import ROOT, Side, alternate
from benchmarks.rows import COLUMNS, Row, markdown, record_rows, speed_row
from benchmarks.workload import GROUPS, PAIRS, Shape, workload


@dataclass(frozen=True)
class Comparison:
    """A comparison with a peer.

    Attributes:
        module: has the two sides.
        what: is compared, with the trainer of TRL.
        unit: what there is an amount of.
        target: of the ratio.
        shape: of the work, the testbed's dialogue without one.
        options: of both sides.
        names: of the functions that are the two sides.
        version: of TRL.
    """

    module: str
    what: str
    unit: str
    target: float
    shape: Shape | None = None
    options: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, str] = ("ours", "peer")
    version: str = "1.16"

    def row(self, given: argparse.Namespace) -> Row:
        """Returns the row of both sides, which work on the same folder, the peer in its environment."""
        options = {"folder": str(workload(given.out, self.shape)), **self.options}
        ours, peer = (Side(f"benchmarks.{self.module}", name, options) for name in self.names)
        peer = replace(peer, python=str(given.peers / f"trl-{self.version}" / "bin" / "python"))
        ours_runs, peer_runs = alternate([ours, peer], given.repeats, given.out / "logs")
        return speed_row(self.what, self.unit, ours_runs, peer_runs, self.target)


COMPARISONS = {
    "reward_model": Comparison("reward_model", "reward model, dialogue", "pairs", 2.1, options={"batch": 16}),
    "dpo": Comparison("dpo", "DPO, dialogue", "pairs", 2.9, options={"batch": 16}),
    "grpo": Comparison("grpo", "GRPO, dialogue", "episodes", 2.4),
    "ppo": Comparison("ppo", "PPO, dialogue", "episodes", 2.8, version="1.12"),
    "reward_model_pairs": Comparison(
        "reward_model", "reward model, pairs 200 + 200", "pairs", 2.8, PAIRS, {"batch": 8}
    ),
    "dpo_pairs": Comparison("dpo", "DPO, pairs 200 + 200", "pairs", 2.8, PAIRS, {"batch": 8}),
    "grpo_groups": Comparison(
        "grpo", "GRPO's scoring and update, groups of 8", "episodes", 4.0, GROUPS, names=("ours_given", "peer_given")
    ),
}
#: The comparison within this project.
ENGINES = "engines"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="alternating repeats of each side")
    parser.add_argument("--peers", type=Path, default=ROOT / ".work" / "peers", help="folder of `make bench-peers`")
    parser.add_argument("--out", type=Path, default=ROOT / ".work" / "benchmarks")
    parser.add_argument("--record", type=Path, help="CSV whose rows are changed")
    parser.add_argument("--only", nargs="+", choices=[ENGINES, *COMPARISONS], default=[ENGINES, *COMPARISONS])
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load:.1f}", flush=True)
    if load > 0.5:
        print("note: other work runs on this machine, which disturbs processor seconds less than the time on the wall")
    rows: list[Row] = []
    print(markdown(COLUMNS), markdown("---" for _ in COLUMNS), sep="\n")
    for name in given.only:
        if name == ENGINES:
            found = engines.rows(given)
        elif (given.peers / f"trl-{COMPARISONS[name].version}").is_dir():
            found = [COMPARISONS[name].row(given)]
        else:
            print(f"{name}: not run, the peer trl-{COMPARISONS[name].version} is not installed (make bench-peers)")
            continue
        for row in found:
            print(markdown(row.cells), flush=True)
        rows += found
    record_rows(rows, given.record or given.out / "comparisons.csv")


if __name__ == "__main__":
    main()
