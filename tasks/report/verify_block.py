"""Block of the document of `rewardsmith verify`: planted faults that it finds, false alarms of re-runs."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from tasks.running.artifacts import read_json

FAULTS = Path("reference/verify_faults.json")
RE_RUNS = Path("reference/same_seed_variation.json")
WIDTH = 120


def verify_block(root: Path) -> str:
    """Returns how many planted faults are found, those that are not, and a table of re-runs with the same seeds."""
    faults = read_json(root / FAULTS)
    missed = [f"- not found: {one['fault']}" for one in faults["faults"].values() if not one["results"] + one["inputs"]]
    few = [f"- {one['fault']}" for one in faults["faults"].values() if one["few_computed"]]
    by_results, others = faults["found_by_results"], faults["found"] - faults["found_by_results"]
    found = (
        f"Of {faults['planted']} planted faults it finds **{faults['found']}**, {by_results} of them by what stages "
        + ("computed, the others by what their records say that they read." if others else "computed.")
    )
    alike = f"{len(few)} of them change so few numbers that they look as another processor might (exit status 3):"
    lines = [
        fill(found, WIDTH),
        *(["", *missed] if missed else []),
        *(["", alike, "", *few] if few else []),
        "",
        "False alarms of each re-run, with tolerances from the other re-runs in the record at that time:",
        "",
        "| re-run | stages | comparisons | not compared | false alarms |",
        "|---|---|---|---|---|",
    ]
    for name, one in read_json(root / RE_RUNS)["re-runs"].items():
        counts = (one["stages"], one["compared"], one["not_compared"], len(one["alarms"]))
        lines.append(f"| `{name}` | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)
