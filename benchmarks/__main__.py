"""Every comparison, one table and one figure.

    python -m benchmarks [--repeats 3] [--only reward_model dpo]

Writes comparisons.csv and benchmarks.png into `.work/benchmarks`. The peers are
installed by `make bench-peers`; a comparison whose peer is missing is not run, and says so.
"""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path

from benchmarks import engines
from benchmarks.alternating import Row, against_peer, print_rows, write_rows
from benchmarks.workload import ROOT

#: Comparisons with a peer: what is compared, in which unit, the version of TRL, and the target of the ratio.
PEERS = {
    "reward_model": ("reward model (RewardTrainer)", "pairs/s", "1.16", 2.0),
    "dpo": ("DPO (DPOTrainer)", "pairs/s", "1.16", 1.5),
    "grpo": ("GRPO (GRPOTrainer)", "episodes/s", "1.16", 2.0),
    "ppo": ("PPO (PPOTrainer)", "episodes/s", "1.12", 3.0),
}
#: The comparison within this project.
ENGINES = "engines"


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
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="alternating repeats of each side")
    parser.add_argument("--threads", type=int, default=1, help="threads of each side")
    parser.add_argument("--peers", type=Path, default=ROOT / ".work" / "peers", help="folder of `make bench-peers`")
    parser.add_argument("--out", type=Path, default=ROOT / ".work" / "benchmarks")
    parser.add_argument("--only", nargs="+", choices=[ENGINES, *PEERS], default=[ENGINES, *PEERS])
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load:.1f}", flush=True)
    if load > 0.5:
        print("note: other work runs on this machine; the ratio of processor seconds (CPU) is the steadier one")
    rows: list[Row] = []
    for name in given.only:
        if name == ENGINES:
            rows += engines.rows(given)
        elif (given.peers / f"trl-{PEERS[name][2]}").is_dir():
            rows += against_peer(name, *PEERS[name], given)
        else:
            print(f"{name}: not run, the peer trl-{PEERS[name][2]} is not installed (make bench-peers)")
    if rows:
        print_rows(rows)
        write_rows(rows, given.out / "comparisons.csv")
    draw(rows, given.out / "benchmarks.png")
    print(f"wrote {given.out / 'benchmarks.png'}")


if __name__ == "__main__":
    main()
