"""The report of a scale: the demo's rows, every paper's tables, figures and claims, and the run behind each number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.published import printed_tables
from tasks.graph.names import DEMO_PAPER, made_tables
from tasks.params.scales import DEFAULT_SCALE, is_rehearsal
from tasks.params.stages import RUNS, run_settings
from tasks.report.cells import verdict_counts
from tasks.report.comparison import curves, numbers
from tasks.report.figure_parts import figure_section
from tasks.report.figures import recorded_figures
from tasks.report.outputs import ResultTree, provenance
from tasks.report.page import Bullets, Fold, ReportPage, Section, Text, Tiles, code, counted, label, link
from tasks.report.paper_tables import paper_table, printed_rows, run_anchor, shown_columns, table_notes, was_run
from tasks.report.row_runs import RowsCompared, compare_rows
from tasks.report.table import VERDICTS, ShownTable, TableCell, TableColumn, TableRow, simple_table
from tasks.running.artifacts import read_object, stage_record
from tasks.running.doubtful_numbers import alarm_text, alarms_of

REHEARSED = (
    "Rehearsal. Tiny random models, a few rows, two updates and a judge that draws lots: no number on this page is a "
    "result."
)
READING = (
    "Published and measured numbers come from different models, data and judges: what can be compared is the ordering "
    "of the rows. A mark says whether a row is on the paper's side of the table's main row: ✓ confirmed, if the "
    "difference is significant and on the same side; ✗ contradicted, if it is significant and on the other; = "
    "equivalent, if it is within the table's margin; · undecided otherwise. Each table has one primary column, and "
    "only its cells have verdicts: a t-test of the differences of worlds, a run's seed being its world, with p < .05 "
    "corrected for the table's rows (Holm), with the smallest effect that these worlds see at 80 %. Measured numbers "
    "are means ± standard errors over worlds; other columns are descriptive, and so are tests in words (win, tie, "
    "lose). A number leads to its run. Nothing is filled in: what was not run says so."
)


@dataclass(frozen=True)
class PaperResults:
    """Files of a paper's tables stage, with the figures of its runs' records."""

    key: str
    content: dict[str, Any]
    figures: list[dict[str, Any]]

    @property
    def tables(self) -> list[dict[str, Any]]:
        """Returns the tables with measurements."""
        return [table for table in self.content["tables"] if table["is_result"]]


@dataclass(frozen=True)
class ShownRun:
    """A row at one seed; `path` is the stage's folder, relative to the repository."""

    row: str
    seed: str
    path: str
    record: Mapping[str, Any]
    alarms: str


def read_papers(results: Path) -> list[PaperResults]:
    """Returns the papers that have tables, in the order of `PAPERS`."""
    found = []
    for key in printed_tables.PAPERS:
        if (folder := made_tables(results, key)) is not None:
            content = read_object(folder / "tables.json")
            figures = read_object(folder / "figures.json")["figures"]
            recorded = recorded_figures(key, ResultTree(results, tuple(content["seeds"])))
            found.append(PaperResults(key, content, [*figures, *(figure.to_json() for figure in recorded)]))
    return found


def _demo(root: Path, results: Path) -> RowsCompared | None:
    """Returns the demo's rows beside the plain reward; None where one has no result, or of another scale."""
    if results.name != DEFAULT_SCALE or not (root / RUNS).exists():
        return None
    demo = run_settings(root).demo.get(DEMO_PAPER)
    try:
        names = [f"{DEMO_PAPER}/{row}" for row in demo.rows] if demo else []
        return compare_rows(root, results.name, names, seeds=demo.seeds) if demo and names else None
    except RecipeError:
        return None


def report_page(results: Path) -> ReportPage:
    """Returns the report of a scale.

    Raises:
        DataError: no paper has its tables yet, and the demo is not finished.
    """
    root = results.resolve().parents[1]
    papers, demo = read_papers(results), _demo(root, results)
    if not papers and demo is None:
        raise DataError(
            "no tables stage has finished here",
            file=str(results),
            remedy="Run the rows of a published paper, then `python -m tasks.tables`; of other rows, "
            "`rewardsmith compare ROW ROW` writes a page",
        )
    runs, rehearsal = dict(_runs(root, papers)), is_rehearsal(results.name)
    sections = [_paper_section(results.name, paper) for paper in papers]
    if demo:
        shown = curves(demo, "demo")
        parts = [*numbers(demo), *([shown] if shown else [])]
        sections.insert(0, Section("The demo: rows beside the plain reward", "demo", parts, short="Demo"))
    if runs:
        sections.append(_runs_section(runs))
    heading = "Measured beside published" if papers else "What was run"
    return ReportPage(
        f"{'REHEARSAL · ' if rehearsal else ''}Rewardsmith report · {results.name}",
        f"{'Rehearsal: ' if rehearsal else ''}{heading}",
        [*([Text(REHEARSED, "rehearsal")] if rehearsal else []), *_lead(results.name, papers, runs)],
        sections,
        f"Rewardsmith · {results.name} scale",
    )


def _lead(scale: str, papers: list[PaperResults], runs: Mapping[str, ShownRun]) -> Iterator[Any]:
    if not papers:
        text = Markup("No paper's rows have run here. {} trains the headline rows of all five, {} those of one.")
        yield Text(text.format(code("rewardsmith run demo-all"), code("rewardsmith run par")))
        return
    counts = {name: sum(paper.content["counts"][name] for paper in papers) for name in VERDICTS}
    alarms = [link(f"#{anchor}", run.path) + f": {run.alarms}" for anchor, run in runs.items() if run.alarms]
    yield Text(
        f"{counts['confirmed']} of {sum(counts.values())} comparisons confirm what the papers print, "
        f"{counts['contradicted']} contradict it, {counts['equivalent']} find no difference that matters, "
        f"{counts['undecided']} are undecided.",
        "headline",
    )
    yield Tiles([*_tiles(counts), (str(len(alarms)), "runs with an alarm", "contradicted" if alarms else "")])
    if alarms:
        yield Fold(f"Hacking alarms ({len(alarms)})", (Bullets(alarms),))
    yield Fold("How to read the verdicts", (Text(READING),))
    seeds = {f"seeds, {label(paper.key)}": ", ".join(map(str, paper.content["seeds"])) for paper in papers}
    facts = {"scale": scale, **seeds, **provenance([run.record for run in runs.values()])}
    yield Fold("Scale, seeds and commit", (simple_table(["", ""], facts.items()),))


def _tiles(counts: Mapping[str, int]) -> list[tuple[str, str, str]]:
    return [(str(counts[name]), name, name if counts[name] else "") for name in VERDICTS]


def _anchor(paper: str, name: str) -> str:
    return f"{paper}-{name.lower().replace(' ', '-')}"


def _paper_section(scale: str, paper: PaperResults) -> Section:
    """Returns a paper's verdicts, claims, tables and figures."""
    counts, option = paper.content["counts"], "" if scale == DEFAULT_SCALE else f" --scale {scale}"
    of = counts["measured"] + counts["not run"]
    tiles = [*_tiles(counts), (f"{counts['measured']} of {of}", "published cells measured", "")]
    shown = [figure for figure in paper.figures if figure["status"] != "not run"]
    absent = [figure["title"].split(".")[0] for figure in paper.figures if figure["status"] == "not run"]
    parts: list[Any] = [Tiles(tiles), _overview(paper)]
    parts += [figure_section(paper.key, figure) for figure in shown if figure["kind"] == "claims"]
    parts += [_table_section(paper.key, table, option) for table in paper.tables]
    parts += [figure_section(paper.key, figure) for figure in shown if figure["kind"] != "claims"]
    if absent:
        command = code(f"rewardsmith run {paper.key} --full{option}")
        parts.append(Text(Markup("Not run: {}. {}").format(", ".join(absent), command), "absent"))
    folded = ", ".join(f"{counts[name]} {name}" for name in VERDICTS)
    return Section(paper.content["title"], paper.key, parts, short=label(paper.key), folded=folded)


def _overview(paper: PaperResults) -> ShownTable:
    names = (*VERDICTS, "not run")
    rows = []
    for table in paper.tables:
        counts = verdict_counts([table])
        cells = tuple(TableCell(str(counts[name])) for name in names)
        rows.append(TableRow(link(f"#{_anchor(paper.key, table['id'])}", table["id"]), cells))
    return ShownTable(tuple(map(TableColumn, names)), tuple(rows), "table")


def _table_section(paper: str, table: dict[str, Any], option: str) -> Section:
    own, also = shown_columns(table)
    own = sorted(own, key=lambda column: not column["primary"])
    rows = printed_rows(table, own)
    ran, absent = ([row for row in rows if was_run(row) == run] for run in (True, False))
    parts: list[Any] = [paper_table(table, own, ran)] if ran else []
    if absent:
        names = dict.fromkeys(name for row in absent for name in (row["name"] or "").split())
        command = Markup(": ") + code(f"rewardsmith run {paper} {' '.join(names)}{option}") if names else Markup()
        summary = Markup("{} without results{}").format(counted(len(absent), "row"), command)
        parts.append(Fold(summary, (paper_table(table, own, absent),)))
    parts += [Text(note, "key") for note in table_notes(table)]
    if also:
        known = f"Also measured on {table['id']}: what only a testbed with known rewards can say"
        parts.append(Fold(known, (paper_table(table, also, filter(was_run, table["rows"])),)))
    return Section(f"{table['id']}. {table['title']}", _anchor(paper, table["id"]), parts, 3, table["id"])


def _runs(root: Path, papers: Iterable[PaperResults]) -> Iterator[tuple[str, ShownRun]]:
    """Yields every run behind a number of a table with its anchor."""
    for row in (row for paper in papers for table in paper.tables for row in table["rows"]):
        for seed, path in row["runs"].items():
            alarms = alarm_text(alarms_of(root / path / "result"))
            run = ShownRun(row["name"], seed, path, stage_record(root / path), alarms)
            yield run_anchor(row["group"], row["kind"], row["name"], seed), run


def _runs_section(runs: Mapping[str, ShownRun]) -> Section:
    rows = []
    for anchor, run in runs.items():
        digest, commit = str(run.record.get("result_digest", "")), str(run.record.get("commit", ""))[:12]
        changed = " (with changes)" if commit and run.record.get("dirty") else ""
        texts = (run.seed, run.path, digest[:12], f"{commit}{changed}", str(run.record.get("started", ""))[:16])
        rows.append(TableRow(run.row, tuple(TableCell(text or "not recorded") for text in texts), anchor=anchor))
    columns = [TableColumn(name, numeric=False) for name in ("seed", "stage", "result digest", "commit", "started")]
    return Section("Runs", "runs", (ShownTable(tuple(columns), tuple(rows)),), folded=str(len(runs)))
