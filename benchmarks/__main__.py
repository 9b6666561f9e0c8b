"""Every comparison, one table and one figure.

    python -m benchmarks [--repeats 3] [--only reward_model dpo]

Writes comparisons.csv and benchmarks.png into `.work/benchmarks`. The peers are
installed by `make bench-peers`; a comparison whose peer is missing is not run, and says so.
"""

from __future__ import annotations

import importlib
import os
import platform
from pathlib import Path
from typing import Any

from benchmarks.alternating import Row, options, print_rows, write_rows

#: Comparison -> the peer's folder, None where it needs none.
COMPARISONS = {
    "token_statistics": None,
    "engines": None,
    "reward_model": "trl-1.16",
    "dpo": "trl-1.16",
    "grpo": "trl-1.16",
    "ppo": "trl-1.12",
}


def draw(rows: list[Row], path: Path) -> None:
    """Draws the ratios against their targets."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 0.3 * len(rows) + 3), layout="constrained")
    for i, row in enumerate(rows):
        spread = [[row.ratio - row.low], [row.high - row.ratio]]
        axes.barh(i, row.ratio, xerr=spread, color="C0" if row.reached else "C1")
        axes.plot([row.target] * 2, [i - 0.4, i + 0.4], color="black")
    axes.set_yticks(range(len(rows)), [row.what for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="ours against the peer; the line is the target, orange misses it")
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(COMPARISONS), default=list(COMPARISONS))
    given: Any = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load:.1f}", flush=True)
    if load > 0.5:
        print("note: other work runs on this machine; the ratio of processor seconds (CPU) is the steadier one")
    rows: list[Row] = []
    for name, peer in COMPARISONS.items():
        if name not in given.only:
            continue
        if peer and not (given.peers / peer).is_dir():
            print(f"{name}: not run, the peer {peer} is not installed (make bench-peers)")
            continue
        rows += importlib.import_module(f"benchmarks.{name}").rows(given)
    if rows:
        print_rows(rows)
        write_rows(rows, given.out / "comparisons.csv")
    draw(rows, given.out / "benchmarks.png")
    print(f"wrote {given.out / 'benchmarks.png'}")


if __name__ == "__main__":
    main()
