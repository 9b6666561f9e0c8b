"""Tables stage: what a paper prints beside what its rows measured, and the data of its figures.

    python -m tasks.tables --results results/testbed --paper segment --seeds 0 1 \\
        --out results/testbed/segment/tables-so-far

Reads the outputs of the rows that exist and writes `tables.json` (cells, see `tasks.report.measured`),
`metrics.json` (flat), `curves.csv` (row, seed, step, metric, value) and `figures.json`. Rows that were not
run stay "not run", those that stopped "stopped": nothing is filled in.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rlhf_core.published import registry
from rlhf_core.published.row_map import mapped_rows, rows_of_paper
from tasks.artifacts import check_version, read_json, stage_output, write_json
from tasks.report.measured import measured_table, stop_lines, verdict_counts
from tasks.report.measurements import JOINT_METRICS
from tasks.report.outputs import ResultTree
from tasks.report.printed_rows import ELSEWHERE, printed_lines
from tasks.settings import read_settings
from tasks.stage import command_line, run_stage

VERSION = 8
CURVE_METRICS = (
    "reward",
    "true_reward",
    "kl",
    "entropy",
    "response_length",
    "policy_loss",
    "value_loss",
)
MARKS = {"confirmed": "✓", "contradicted": "✗", "undecided": "·"}
#: Folders of a paper's tables: of the full matrix, of what was run of it so far, of the demo-sized rows.
FULL, SO_FAR, DEMO = "tables", "tables-so-far", "tables-demo"


def made_tables(results: Path, paper: str) -> Path | None:
    """The `result` folder of a paper's tables: the newer of the full ones and those so far, else the demo's.

    Args:
        results: the scale's results, such as `results/testbed`.
    """
    known = {name: results / paper / name / "result" for name in (FULL, SO_FAR, DEMO)}
    there = {name: path for name, path in known.items() if (path / "tables.json").exists()}
    newer = [there[name] for name in (FULL, SO_FAR) if name in there]
    if newer:
        return max(newer, key=lambda path: (path / "tables.json").stat().st_mtime)
    return there.get(DEMO)


def seeds_so_far(results: Path, paper: str) -> list[int]:
    """The seeds at which any stage of a paper has a result."""
    found = results.glob(f"{paper}/*/*/[0-9]*/result")
    return sorted({int(path.parent.name) for path in found if path.parent.name.isdigit()})


def paper_tables(paper_key: str, tree: ResultTree) -> list[dict[str, Any]]:
    """All tables of a paper with their measured cells."""
    return [measured_table(table, tree) for table in registry.paper(paper_key).tables]


def paper_figures(paper_key: str, tree: ResultTree) -> list[dict[str, Any]]:
    """The data of a paper's figures, from its module `tasks.report.figures_<paper>`; none without one."""
    module = f"tasks.report.figures_{paper_key}"
    if importlib.util.find_spec(module) is None:
        return []
    return [figure.to_json() for figure in importlib.import_module(module).figures(tree)]


def flat_metrics(tables: list[dict[str, Any]]) -> dict[str, float]:
    """'table-1/segment/alpaca_wr' -> mean, with '_se' beside it over several seeds; verdict counts.

    Rows that differ by evaluator alone carry it: 'table-1/alarm@holistic-reward/avg'. Of a test it is the p-value.
    '_unparsable' is how often a judge gave no verdict.
    Metrics that need all rows of a table and so stand in no run's own metrics are there per seed, too:
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
    return flat | {f"verdicts/{name}": count for name, count in verdict_counts(tables).items()}


def write_curves(path: Path, paper_key: str, tree: ResultTree) -> None:
    """Training curves of every row in long form, for DVC plots."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "seed", "step", "metric", "value"])
        for row in rows_of_paper(paper_key):
            for seed, output in tree.of(row).items():
                for entry in output.history:
                    for metric in CURVE_METRICS:
                        if entry.get(metric) is not None:
                            writer.writerow([row.name, seed, entry["step"], metric, entry[metric]])


def declared_inputs(graph: Path, paper_key: str) -> frozenset[str]:
    """The results that a graph file declares as inputs of a paper's tables."""
    return frozenset(read_settings(graph)["tables"][paper_key]["deps"])


def build(
    results: Path, paper_key: str, seeds: tuple[int, ...], out: Path, allowed: frozenset[str] | None = None
) -> None:
    """Runs the stage.

    Args:
        results: the scale's results, such as `results/testbed`.
        paper_key: a paper of the registry.
        seeds: the seeds to average over.
        out: the stage's output directory.
        allowed: `result` folders that may be read, None for all that exist.
    """
    paper = registry.paper(paper_key)
    tree = ResultTree(results, seeds, allowed)
    inputs = list(tree.stage_folders(rows_of_paper(paper.key)))
    with stage_output(out, stage="tables", version=VERSION, inputs=inputs) as folder:
        tables = paper_tables(paper.key, tree)
        header = {"paper": paper.key, "title": paper.title, "scale": results.name, "seeds": list(seeds)}
        write_json(folder / "tables.json", {**header, "counts": verdict_counts(tables), "tables": tables})
        write_json(folder / "figures.json", {**header, "figures": paper_figures(paper.key, tree)})
        write_json(folder / "metrics.json", flat_metrics(tables))
        write_curves(folder / "curves.csv", paper.key, tree)


def format_number(value: float, decimals: int) -> str:
    """A measured number with its column's decimals; -0.0 is 0.0."""
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def cell_text(cell: Mapping[str, Any], decimals: int) -> str:
    """A measured cell in short: mean, significance star, standard error and direction mark."""
    if cell["status"] == ELSEWHERE:
        return ""
    mark = f" {MARKS[cell['verdict']]}" if cell["verdict"] else ""
    lost = f" ({unparsable_text(cell)})" if cell.get("unparsable") else ""
    if cell["status"] != "measured":
        return f"{cell['status']}{lost}"
    if cell["outcome"] is not None:
        return f"{cell['outcome']}{mark}{lost}"
    text = format_number(cell["mean"], decimals) + ("*" if cell["significant"] else "")
    if cell["se"] is not None:
        text += f" ± {format_number(cell['se'], decimals)}"
    return f"{text}{mark}{lost}"


def unparsable_text(cell: Mapping[str, Any]) -> str:
    """How many prompts a judge left without a verdict, in words; '' where it left none."""
    return f"{cell['unparsable']} unparsable" if cell.get("unparsable") else ""


def print_table(tables_json: Path, name: str) -> None:
    """Prints one table ('segment/1') to the terminal, measured below published.

    Args:
        tables_json: the `tables.json` of the paper's tables stage; where the file does not exist, the
            published cells are printed alone.
        name: the table's name.

    Raises:
        RecipeError: an unknown paper or table.
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    for table in rich_tables(tables_json, name):
        # A narrow terminal may break the lines; fitting the table to it would take digits from its columns.
        words = Measurement.get(console, console.options.update_width(1000), table).minimum
        Console(width=max(console.width, words + len(table.columns) + 1)).print(table, crop=False)
    for line in _stops(tables_json, name):
        console.print(line, markup=False, highlight=False)
    if tables_json.exists():
        console.print(
            "Published, then measured: mean, standard error over seeds. * differs from the main row (bold), of a win "
            "rate over another row from 50 %, p < .05 corrected for the table's cells (Holm); ✓ confirms the paper's "
            "order, ✗ contradicts it, · leaves it undecided.",
            style="dim",
        )
    else:
        console.print(f"Published only: {tables_json} does not exist; run the paper first.", style="dim")


def _stops(tables_json: Path, name: str) -> list[str]:
    """What is to be said of a table's rows that stopped."""
    made = read_json(tables_json)["tables"] if tables_json.exists() else []
    rows = [row for table in made if table["name"] == registry.table(name).name for row in table["rows"]]
    return list(dict.fromkeys(f"{row['name']} {line}." for row in rows for line in stop_lines(row)))


def rich_tables(tables_json: Path, name: str) -> list[Any]:
    """The table as rich tables: the paper's columns, and apart from them what only the testbed measures."""
    published = registry.table(name)
    measured = read_json(tables_json)["tables"] if tables_json.exists() else []
    data = next((table for table in measured if table["name"] == published.name), None)
    if data is None:
        columns = [
            {"key": c.key, "printed": c.printed, "published": True, "benchmark": c.benchmark} for c in published.columns
        ]
        return [_rich_table(published, columns, None, f"{published.name}  {published.title}")]
    title = f"{published.name}  {published.title}"
    own = [column for column in data["columns"] if column["published"]]
    also = [column for column in data["columns"] if not column["published"]]
    tables = [_rich_table(published, own, data, title)]
    return [*tables, _rich_table(published, also, data, "Also measured on the testbed")] if also else tables


def _rich_table(
    published: registry.Table, columns: list[dict[str, Any]], data: Mapping[str, Any] | None, title: str
) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 1, 0))
    several = len({row.backbone for row in published.rows}) > 1
    evaluators = {row.extra.get("evaluator") for row in published.rows} - {None}
    table.add_column("", min_width=14)
    for header in _headers(columns):
        table.add_column(header, justify="right")

    def label(condition: str, backbone: str | None, extra: Mapping[str, Any]) -> str:
        name = " · ".join(part for part in (condition, backbone if several else None) if part)
        return name + (f"\nby {extra['evaluator']}" if len(evaluators) > 1 else "")

    if data is None:
        mapped = mapped_rows(published)
        firsts = mapped[:: max(1, len(mapped) // max(1, len(published.rows)))]
        for printed, first in zip(published.rows, firsts, strict=True):
            cells = [str(printed.values.get(column["key"], "")) for column in columns]
            table.add_row(label(first.printed_condition, printed.backbone, printed.extra), *cells)
        return table
    for line in printed_lines(data, columns):
        shown = []
        for column in columns:
            own, cell = line.cells[column["key"]]
            shown.append(_rich_cell(cell["published"] or "", column, own, data["is_result"]))
        name = label(line.label, line.rows[0]["backbone"], line.rows[0]["extra"])
        table.add_row(name, *shown, style="bold" if line.is_main else None)
    return table


def _headers(columns: list[dict[str, Any]]) -> list[str]:
    """The columns' printed names; where they are of several benchmarks, under the first of each its name."""
    if len({column["benchmark"] for column in columns}) < 2:
        return [column["printed"] for column in columns]
    headers: list[str] = []
    for benchmark, run in itertools.groupby(columns, key=lambda column: column["benchmark"]):
        first, *others = (column["printed"] for column in run)
        headers += [f"{benchmark or ''}\n{first}", *(f"\n{other}" for other in others)]
    return headers


def _rich_cell(printed: str, column: Mapping[str, Any], row: Mapping[str, Any], is_result: bool) -> Any:
    """Published number, measured mean with marks, standard error: one line each."""
    from rich.text import Text

    if not is_result:
        return Text(printed)
    text = Text(f"{printed}\n" if column["published"] else "", style="dim")
    cell = row["cells"][column["key"]]
    if cell["status"] == ELSEWHERE:
        return text
    lost = f"\n{unparsable_text(cell)}" if cell.get("unparsable") else ""
    if cell["status"] != "measured":
        return text.append(f"{cell['status']}{lost}", style="dim italic")
    mark = f" {MARKS[cell['verdict']]}" if cell["verdict"] else ""
    colour = {"confirmed": "green", "contradicted": "red"}.get(cell["verdict"], "cyan")
    star = "*" if cell["significant"] else ""
    shown = cell["outcome"] or f"{format_number(cell['mean'], column['decimals'])}{star}"
    text.append(f"{shown}{mark}", style=f"not dim {colour}")
    if cell["se"] is not None:
        text.append(f"\n±{format_number(cell['se'], column['decimals'])}", style="dim")
    return text.append(lost, style="dim")


def make_tables(
    results: Annotated[Path, "results of one scale"],
    paper: Annotated[str, "paper of the registry: segment, sentence, ..."],
    seeds: Annotated[tuple[int, ...], "seeds to average over"],
    out: Path,
    graph: Annotated[Path | None, "graph file whose declared inputs alone are read"] = None,
    version: int | None = None,
) -> None:
    """Writes a paper's tables, metrics, curves and figures beside what was published."""
    check_version("tables", VERSION, version)
    build(results, paper, seeds, out, declared_inputs(graph, paper) if graph else None)


main = command_line(make_tables)


if __name__ == "__main__":
    run_stage(main)
