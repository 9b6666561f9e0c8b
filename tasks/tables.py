"""Tables stage: what a paper prints beside what its rows measured, and the data of its figures.

    python -m tasks.tables --results results/testbed --paper segment --seeds 0 1 \\
        --out results/testbed/segment/tables-so-far

Reads the outputs of the rows that exist and writes `tables.json` (cells, see `tasks.report.cells`),
`metrics.json` (flat), `curves.csv` (row, seed, step, metric, value) and `figures.json`. Rows that were not
run stay "not run", those that stopped "stopped": nothing is filled in.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Any

from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import rows_of_paper
from tasks.graph.matrix import results_of_rows
from tasks.params.scales import is_rehearsal
from tasks.report import figures
from tasks.report.cells import measured_table, verdict_counts
from tasks.report.numbers import JOINT_METRICS
from tasks.report.outputs import ResultTree
from tasks.running.artifacts import stage_output, write_json
from tasks.running.stage import stage

VERSION = 14
CURVE_METRICS = (
    "reward",
    "true_reward",
    "kl",
    "entropy",
    "response_length",
    "policy_loss",
    "value_loss",
)


def flat_metrics(tables: list[dict[str, Any]]) -> dict[str, float]:
    """Returns 'table-1/segment/alpaca_wr' -> mean, with '_se' beside it over several seeds; verdict counts.

    Rows that differ by evaluator alone carry it: 'table-1/alarm@holistic-reward/avg'. Of a test it is the p-value.
    '_unparsable' is how often a judge gave no verdict, '_one_sided' how often in one of two orders only.
    Metrics that are computed here and so are in no run's own metrics are there per seed, too:
    'table-1/segment/0/alpaca_lc'.
    """
    flat: dict[str, float] = {}
    for table in tables:
        anchor = table["id"].lower().replace(" ", "-")
        joint = {column["key"]: column["metric"] for column in table["columns"] if column["metric"] in JOINT_METRICS}
        for row in table["rows"]:
            for key, cell in row["cells"].items():
                if cell["status"] == "measured":
                    flat[f"{anchor}/{row['key']}/{key}"] = cell["mean"]
                    if cell["se"] is not None:
                        flat[f"{anchor}/{row['key']}/{key}_se"] = cell["se"]
                    if key in joint:
                        flat |= {f"{anchor}/{row['key']}/{s}/{joint[key]}": v for s, v in cell["seeds"].items()}
                if cell["unparsable"] is not None:
                    flat[f"{anchor}/{row['key']}/{key}_unparsable"] = cell["unparsable"]
                if cell["one_sided"]:
                    flat[f"{anchor}/{row['key']}/{key}_one_sided"] = cell["one_sided"]
    return flat | {f"verdicts/{name}": count for name, count in verdict_counts(tables).items()}


def write_curves(path: Path, paper_key: str, tree: ResultTree) -> None:
    """Writes the training curves of every row in long form, for DVC plots."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "seed", "step", "metric", "value"])
        for row in rows_of_paper(paper_key):
            for seed, output in tree.of(row).items():
                for entry in output.history:
                    for metric in CURVE_METRICS:
                        if entry.get(metric) is not None:
                            writer.writerow([row.name, seed, entry["step"], metric, entry[metric]])


def build(
    results: Path, paper_key: str, seeds: tuple[int, ...], out: Path, allowed: frozenset[str] | None = None
) -> None:
    """Runs the stage.

    Args:
        results: the scale's results, such as `results/testbed`.
        paper_key: a paper with printed tables.
        seeds: the seeds to average over.
        out: the stage's output directory.
        allowed: `result` folders that may be read, None for all that exist.
    """
    paper, rehearsal = printed_tables.paper(paper_key), "Rehearsal: " if is_rehearsal(results.name) else ""
    tree = ResultTree(results, seeds, allowed)
    inputs = list(tree.stage_folders(rows_of_paper(paper.key)))
    with stage_output(out, stage="tables", version=VERSION, inputs=inputs) as folder:
        tables = [measured_table(table, tree) for table in paper.tables]
        drawn = [figure.to_json() for figure in figures.paper_figures(paper.key, tree)]
        drawn = [{**one, "title": f"{rehearsal}{one['title']}"} for one in drawn]
        title = f"{rehearsal}{paper.title}"
        header = {"paper": paper.key, "title": title, "scale": results.name, "seeds": list(seeds)}
        write_json(folder / "tables.json", {**header, "counts": verdict_counts(tables), "tables": tables})
        write_json(folder / "figures.json", {**header, "figures": drawn})
        write_json(folder / "metrics.json", flat_metrics(tables))
        write_curves(folder / "curves.csv", paper.key, tree)


def make_tables(
    results: Annotated[Path, "results of one scale"],
    paper: Annotated[str, "paper with printed tables: segment, sentence, ..."],
    seeds: Annotated[tuple[int, ...], "seeds to average over"],
    out: Path,
    rows: Annotated[tuple[str, ...], "rows whose results, and what they were made from, alone are read"] = (),
) -> None:
    """Writes a paper's tables, metrics, curves and figures beside what was published."""
    # the results that the graph declares as inputs of the tables of some rows
    allowed = frozenset(results_of_rows(Path(), results.name, paper, rows, seeds)) if rows else None
    build(results, paper, seeds, out, allowed)


main = stage(make_tables)
