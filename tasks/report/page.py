"""The report as one HTML file that needs nothing else: styles, script and figures are inside.

Everything that comes from models, data or judges is escaped by jinja2; the content-security policy allows no
network and no script but the page's own, by digest.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.util
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rlhf_core.errors import DataError
from rlhf_core.published import printed_tables
from tasks.graph.expected import clock
from tasks.graph.items import data_name
from tasks.graph.names import DEMO_PAPER, made_tables
from tasks.graph.times import KindTime, RunTimes, by_kind, last_run, run_line
from tasks.params.scales import is_rehearsal
from tasks.params.settings import DEFAULT_SCALE
from tasks.params.stages import RUNS
from tasks.report import rows_of_all_papers
from tasks.report.cells import effect_text, format_number, unparsable_text, verdict_lines
from tasks.report.colour import colour_scale, coloured_tokens, pieces, scale_legend
from tasks.report.drawing import panels_svg, theme_colour
from tasks.report.finding import NATS, DemoFinding, FindingRow, finding_cells, read_finding
from tasks.report.front import AlarmedRun, alarmed_runs, best_rates, rows_with_results, totals
from tasks.report.hacking_curves import Curve, curves_svg
from tasks.report.measured import stop_lines, table_notes, verdict_counts
from tasks.report.other_tables import OtherTable, other_tables
from tasks.report.outputs import ResultTree
from tasks.report.printed_rows import printed_lines, shown_columns
from tasks.report.records import Provenance, Run, provenance, read_run, run_anchor, runs_of
from tasks.running.artifacts import read_object
from tasks.tracking.searches import Search, table_search

TEMPLATES = Path(__file__).parent / "templates"


#: Papers whose short name is an acronym.
ACRONYMS = ("par", "alarm", "rlmec")


def label(key: str) -> str:
    """Returns a paper's or study's short name: acronyms in capitals."""
    return key.upper() if key in ACRONYMS else key.capitalize()


@dataclass(frozen=True)
class PaperReport:
    """Content of the report on one paper.

    Attributes:
        tables: parsed `tables.json` of its tables stage.
        figures: the figures of `figures.json`.
        others: tables that print no measurements.
    """

    key: str
    title: str
    seeds: list[int]
    counts: dict[str, int]
    tables: list[dict[str, Any]]
    figures: list[dict[str, Any]]
    others: list[OtherTable]

    @property
    def label(self) -> str:
        return label(self.key)

    @property
    def result_tables(self) -> list[dict[str, Any]]:
        return [table for table in self.tables if table["is_result"]]

    def counts_of(self, table: dict[str, Any]) -> dict[str, int]:
        return verdict_counts([table])

    @property
    def shown_figures(self) -> list[dict[str, Any]]:
        return [figure for figure in self.figures if figure["status"] != "not run"]

    @property
    def absent_figures(self) -> list[dict[str, Any]]:
        return [figure for figure in self.figures if figure["status"] == "not run"]

    @property
    def disagreements(self) -> list[str]:
        """Returns the places at which the paper contradicts itself."""
        return [note["text"] for note in printed_tables.paper(self.key).notes if note["type"] == "disagreement"]


@dataclass(frozen=True)
class Report:
    """Everything that the page and the Markdown show.

    Attributes:
        all_rows: rows of all papers and studies by the SFT model that they started from.
        runs: the run behind each measured cell, by anchor.
        times: seconds of each kind of stage.
        last_run: where the time of the tree's last run went; None where none was noted.
        searches: MLflow's search of the runs behind a table, by paper and table.
        alarmed: those of the runs with hacking alarms.
        finding: of the demo, None where it was not run to its end.
    """

    scale: str
    papers: list[PaperReport]
    all_rows: dict[str, list[rows_of_all_papers.RowOverWorlds]]
    runs: dict[str, Run]
    provenance: Provenance
    constants: dict[str, Any]
    times: list[KindTime]
    last_run: RunTimes | None
    searches: dict[tuple[str, str], Search]
    alarmed: list[AlarmedRun]
    finding: DemoFinding | None = None

    @property
    def seconds(self) -> float:
        """Returns the own seconds of all stages of the scale."""
        return sum(kind.seconds for kind in self.times)

    @property
    def verdicts(self) -> dict[str, int]:
        return totals(paper.counts for paper in self.papers)

    @property
    def rehearsal(self) -> bool:
        """Returns whether no number is a result."""
        return is_rehearsal(self.scale)


def read_report(results: Path) -> Report:
    """Collects each paper's tables (`made_tables`), in the order of `PAPERS`.

    Raises:
        DataError: no paper has its tables yet, and the demo is not finished.
    """
    papers, root = [], results.resolve().parents[1]
    for key in printed_tables.PAPERS:
        folder = made_tables(results, key)
        if folder is None:
            continue
        data = read_object(folder / "tables.json")
        figures = read_object(folder / "figures.json")["figures"] + recorded_figures(key, results, data["seeds"])
        others = other_tables(root, results, key)
        papers.append(PaperReport(key, data["title"], data["seeds"], data["counts"], data["tables"], figures, others))
    finding = read_finding(root) if results.name == DEFAULT_SCALE and (root / RUNS).exists() else None
    if not papers and finding is None:
        raise DataError(
            "no tables stage has finished here",
            file=str(results),
            remedy="Run the rows of a published paper, then `python -m tasks.tables`; of other rows, "
            "`rewardsmith compare ROW ROW` writes a page",
        )
    runs = runs_of(root, ((paper.key, table) for paper in papers for table in paper.tables))
    all_rows = rows_of_all_papers.rows_by_sft_model(results)
    for row in (row for rows in all_rows.values() for row in rows):
        for seed, path in row.runs.items():
            anchor = run_anchor(row.group, "policy", row.name, seed)
            runs.setdefault(anchor, read_run(root, row.group, anchor, row.name, seed, path))
    for trained in finding.rows if finding else ():
        for world, run in trained.runs.items():
            anchor = run_anchor(DEMO_PAPER, "policy", trained.name, str(world))
            place = rows_of_all_papers.relative_path(Path(run.path), results)
            runs.setdefault(anchor, read_run(root, DEMO_PAPER, anchor, trained.name, str(world), place))
    searches = {
        (paper.key, table["id"]): search
        for paper in papers
        for table in paper.result_tables
        if (search := table_search(root, paper.key, table["id"], results.name))
    }
    data_sets = results / "shared" / "data"
    facts = sorted([*data_sets.glob("*/result/data.json"), *data_sets.glob("*/[0-9]*/result/data.json")])
    return Report(
        scale=results.name,
        papers=papers,
        all_rows=all_rows,
        runs=runs,
        provenance=provenance(runs.values()),
        constants=flat_facts({data_name(path.parent): read_object(path) for path in facts}),
        times=by_kind(results),
        last_run=last_run(root),
        searches=searches,
        alarmed=alarmed_runs(root, runs.values()),
        finding=finding,
    )


def recorded_figures(paper: str, results: Path, seeds: list[int]) -> list[dict[str, Any]]:
    """Returns figures of how results were made, such as the time they took, which the tables stage does not read."""
    module = f"tasks.report.figures_{paper}"
    if importlib.util.find_spec(module) is None:
        return []
    make = getattr(importlib.import_module(module), "recorded_figures", None)
    return [figure.to_json() for figure in make(ResultTree(results, tuple(seeds)))] if make else []


def flat_facts(facts: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the facts of the data set by dotted name: world version, Bayes ceilings, numbers of rows, limits."""
    flat: dict[str, Any] = {}
    for name, value in facts.items():
        flat |= flat_facts(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def environment() -> Environment:
    """Returns the jinja2 environment of the report: escaping everywhere, an undefined name is an error."""
    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["clock"] = clock
    env.filters["number"] = format_number
    env.filters["printed_lines"] = printed_lines
    env.filters["rows_with_results"] = rows_with_results
    env.filters["shown_columns"] = shown_columns
    env.filters["stop_lines"] = stop_lines
    env.filters["table_notes"] = table_notes
    env.filters["unparsable_text"] = unparsable_text
    env.filters["runs_by_benchmark"] = runs_by_benchmark
    env.globals.update(
        all_row_columns=rows_of_all_papers.COLUMNS,
        best_rates=best_rates,
        coloured=_coloured,
        colour_limit=_limit,
        effect_text=effect_text,
        finding_cells=finding_cells,
        finding_curves=_finding_curves,
        finding_nats=NATS,
        label=label,
        p_value=p_value,
        scale_legend=scale_legend,
        row_colour=theme_colour,
        run_anchor=run_anchor,
        root_scale=DEFAULT_SCALE,
        run_line=run_line,
        svg=_svg,
        tip=_tip,
        verdict_lines=verdict_lines,
        worlds=worlds,
    )
    return env


def runs_by_benchmark(columns: list[dict[str, Any]]) -> list[tuple[str | None, list[dict[str, Any]]]]:
    """Returns the neighbouring columns of one benchmark, for the heading above them."""
    return [(name, list(run)) for name, run in itertools.groupby(columns, key=lambda column: column["benchmark"])]


def p_value(p: float | None) -> str:
    """'p < .001', 'p = .042'; 'no test' without one."""
    if p is None:
        return "no test"
    return "p < .001" if p < 0.001 else f"p = {p:.3f}".replace("0.", ".", 1)


def _coloured(model: dict[str, Any], limit: float) -> Markup:
    return coloured_tokens(
        model["tokens"], model["rewards"], model["segments"], scale=limit, marked=model.get("marked")
    )


def _limit(model: dict[str, Any]) -> float:
    return colour_scale(pieces(model["tokens"], model["rewards"], model["segments"]))


def _svg(figure: dict[str, Any]) -> Markup:
    return Markup(panels_svg(figure))


def _finding_curves(finding: DemoFinding) -> Markup:
    """Returns the curves of the demo's rows in one panel, in the colours of `rewardsmith compare`'s page."""

    def curve(place: int, row: FindingRow) -> Curve:
        hacking = row.as_hacking_row
        return Curve(row.title, theme_colour(place), hacking.proxy_gain_by_step, hacking.curve("win_rate"))

    curves = [curve(place, row) for place, row in enumerate(finding.rows)]
    return Markup(curves_svg("finding", "proxy reward and win rate of the demo's rows", curves))


def _tip(cell: dict[str, Any], decimals: int) -> str:
    """Returns the tooltip of a measured cell: seeds, difference and test, one per line."""
    lines = [f"seed {seed}: {format_number(value, decimals + 1)}" for seed, value in cell["seeds"].items()]
    if cell["difference"] is not None:
        lines.append(f"less {cell['against']}: {effect_text(cell, decimals + 1)} over {worlds(cell['worlds'])}")
        lines += [cell["missing"]] if cell["missing"] else []
    if cell["word"] is not None:
        lines.append(f"corrected for the table's rows: {p_value(cell['p'])}")
    lines += [text] if (text := unparsable_text(cell)) else []
    return "\n".join(lines)


def worlds(count: int) -> str:
    """'1 world', '3 worlds'."""
    return f"{count} world{'s' * (count != 1)}"


def template_text(name: str) -> Markup:
    """Returns a file of the templates as it stands."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def render_page(template: str, **values: Any) -> str:
    """Returns a page of a template, its style and script inside."""
    script = template_text("script.js.j2")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment().get_template(template)
    return page.render(style=template_text("style.css.j2"), script=script, script_digest=digest, **values)


def render(report: Report) -> str:
    """Returns the page as a string."""
    return render_page("page.html.j2", report=report)
