"""The report of a scale: the demo's rows, all policies side by side, every paper's tables, figures and claims, and the
run behind each number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.published import printed_tables
from rlhf_core.rewards.zero_shot import FIGURE_5
from tasks.graph.items import data_name, sft_name
from tasks.graph.names import DEMO_PAPER, made_tables
from tasks.graph.rows import row_addresses
from tasks.graph.times import by_kind, clock, last_run
from tasks.params.pages import read_settings
from tasks.params.scales import is_rehearsal
from tasks.params.settings import DEFAULT_SCALE
from tasks.params.stages import RUNS, run_settings
from tasks.params.yaml_files import read_mapping
from tasks.report.charts import panels_svg
from tasks.report.comparison import curves, numbers
from tasks.report.figure_data import FigureData, Panel, Series
from tasks.report.figure_parts import figure_section
from tasks.report.figures import recorded_figures
from tasks.report.measured import verdict_counts
from tasks.report.outputs import ResultTree, StageOutput, provenance, stage_record
from tasks.report.page import (
    Bullets,
    FactList,
    Fold,
    Picture,
    ReportPage,
    Section,
    Text,
    Tiles,
    Verbatim,
    code,
    counted,
    link,
)
from tasks.report.paper_tables import (
    paper_table,
    printed_alone,
    printed_lines,
    run_anchor,
    shown_columns,
    table_notes,
)
from tasks.report.rows_compared import RowRuns, RowsCompared, compare_rows
from tasks.report.table import ShownTable, TableCell, TableColumn, TableRow, format_number, number_cell, simple_table
from tasks.running.artifacts import read_object
from tasks.running.doubtful_numbers import alarm_text, alarms_of
from tasks.tracking.searches import Search, run_search, table_search

VERDICTS = ("confirmed", "contradicted", "equivalent", "undecided")
#: Papers whose short name is an acronym.
ACRONYMS = ("par", "alarm", "rlmec")
#: Rows of the picture at most, and answers that are shown of each run.
MOST_ROWS, ANSWERS = 24, 3
#: Of the table across papers: metric -> heading, decimals. Rows are sorted by the first one.
ACROSS = {
    "win_rate_vs_sft": ("win rate over SFT", 1),
    "ood_win_rate_vs_sft": ("out of distribution", 1),
    "true_reward": ("true reward", 2),
    "kl": ("KL", 2),
    "alpaca_tokens": ("tokens per answer", 0),
}
WIN_RATE = next(iter(ACROSS))
#: PAR's Table 2, and what its symbols are called here.
NOTATION = printed_tables.FOLDER / "settings_map" / "tables" / "par_2.yaml"
#: A study whose annotators are biased on purpose and which has a page of its own.
LEFT_OUT = "hackability"
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


def label(key: str) -> str:
    """Returns a paper's or study's short name: acronyms in capitals."""
    return key.upper() if key in ACRONYMS else key.capitalize()


@dataclass(frozen=True)
class PaperResults:
    """Files of a paper's tables stage, with the figures of its runs' records."""

    key: str
    content: dict[str, Any]
    figures: list[dict[str, Any]]

    @property
    def results(self) -> list[dict[str, Any]]:
        """Returns the tables with measurements."""
        return [table for table in self.content["tables"] if table["is_result"]]


@dataclass(frozen=True)
class ShownRun:
    """A row at one seed.

    Attributes:
        out: the stage's folder.
        path: the same relative to the root of the tree.
    """

    paper: str
    row: str
    seed: str
    out: Path
    path: str

    @property
    def record(self) -> dict[str, Any]:
        return stage_record(self.out)


def read_papers(results: Path) -> list[PaperResults]:
    """Returns the papers that have tables, in the order of `PAPERS`."""
    found = []
    for key in printed_tables.PAPERS:
        if (folder := made_tables(results, key)) is not None:
            content = read_object(folder / "tables.json")
            figures = read_object(folder / "figures.json")["figures"]
            recorded = recorded_figures(key, ResultTree(results, tuple(content["seeds"])))
            figures += [figure.to_json() for figure in recorded]
            found.append(PaperResults(key, content, figures))
    return found


def policy_rows(results: Path) -> dict[str, list[RowRuns]]:
    """Returns the rows whose win rate over the SFT model is measured in every world, by SFT model, the best first.

    Rows of the demo are left out, unless another row starts from its SFT model.
    """
    found: dict[str, list[RowRuns]] = {}
    for folder in sorted(results.glob("*/policy/*")):
        group, name = folder.parts[-3], folder.parts[-1]
        seeds = tuple(sorted(int(path.name) for path in folder.glob("[0-9]*")))
        runs = ResultTree(results, seeds).outputs(group, "policy", name) if group != LEFT_OUT and seeds else {}
        row = RowRuns(f"{group}/{name}", _title(results, group, name), runs)
        if not runs or not row.has(WIN_RATE):
            continue
        inputs = stage_record(next(iter(runs.values())).path).get("inputs", {})
        model = next((sft_name(Path(path)) for path in inputs if "/shared/sft/" in path), None)
        if model is not None:
            found.setdefault(model, []).append(row)
    beside = {model: rows for model, rows in sorted(found.items()) if any(row.paper != DEMO_PAPER for row in rows)}
    return {model: sorted(rows, key=_falling) for model, rows in beside.items()}


def _falling(row: RowRuns) -> float:
    mean = row.mean(WIN_RATE)
    return 0.0 if mean is None else -mean[0]


def _title(results: Path, group: str, name: str) -> str:
    root = results.parent.parent
    address = row_addresses(root, group).get(name)
    return name if address is None else str(read_settings(address.under(root)).get("title", name))


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
    papers, demo, across = read_papers(results), _demo(root, results), policy_rows(results)
    if not papers and demo is None:
        raise DataError(
            "no tables stage has finished here",
            file=str(results),
            remedy="Run the rows of a published paper, then `python -m tasks.tables`; of other rows, "
            "`rewardsmith compare ROW ROW` writes a page",
        )
    runs = dict(_runs(root, papers, across, demo))
    rehearsal = is_rehearsal(results.name)
    lead = [Text(REHEARSED, "rehearsal")] if rehearsal else []
    sections = [
        *([_demo_section(demo)] if demo else []),
        *([_across_section(across)] if across else []),
        *(_paper_section(root, results, paper) for paper in papers),
        _time_section(root, results),
        _runs_section(root, runs),
    ]
    heading = "Measured beside published" if papers else "What was run"
    return ReportPage(
        f"{'REHEARSAL · ' if rehearsal else ''}Rewardsmith report · {results.name}",
        f"{'Rehearsal: ' if rehearsal else ''}{heading}",
        (*lead, *_lead(results, papers, across, runs)),
        tuple(sections),
        f"Rewardsmith · {results.name} scale",
    )


def _lead(
    results: Path, papers: list[PaperResults], across: Mapping[str, list[RowRuns]], runs: Mapping[str, ShownRun]
) -> Iterator[Any]:
    counts = {name: sum(paper.content["counts"][name] for paper in papers) for name in VERDICTS}
    alarms = [(anchor, run, alarm_text(alarms_of(run.out / "result"))) for anchor, run in runs.items()]
    alarms = [each for each in alarms if each[2]]
    if papers:
        yield Text(
            f"{counts['confirmed']} of {sum(counts.values())} comparisons confirm what the papers print, "
            f"{counts['contradicted']} contradict it, {counts['equivalent']} find no difference that matters, "
            f"{counts['undecided']} are undecided.",
            "headline",
        )
        tiles = [(str(count), name, name if count else "") for name, count in counts.items()]
        yield Tiles((*tiles, (str(len(alarms)), "runs with an alarm", "contradicted" if alarms else "")))
    else:
        yield Text(
            Markup("No paper's rows have run here. {} trains the headline rows of all five, {} those of one.").format(
                code("rewardsmith run demo-all"), code("rewardsmith run par")
            )
        )
    if across:
        yield _win_rates(across)
    if alarms:
        items = (link(f"#{anchor}", run.path) + f": {text}" for anchor, run, text in alarms)
        yield Fold(f"Hacking alarms ({len(alarms)})", (Bullets(tuple(items)),))
    if papers:
        yield Fold("How to read the verdicts", (Text(READING),))
    yield Fold("Scale, seeds, commit and data", (FactList(_facts(results, papers, runs.values())),))


def _facts(results: Path, papers: list[PaperResults], runs: Iterable[ShownRun]) -> dict[str, str]:
    """Returns where the results are from, and the facts of their data."""
    made = provenance([run.record for run in runs])
    data_sets = results / "shared" / "data"
    files = sorted([*data_sets.glob("*/result/data.json"), *data_sets.glob("*/[0-9]*/result/data.json")])
    data = flat_facts({data_name(path.parent): read_object(path) for path in files})
    return {
        "scale": results.name,
        **{f"seeds, {label(paper.key)}": ", ".join(map(str, paper.content["seeds"])) for paper in papers},
        "commit": ", ".join(made["commits"]) or "not recorded",
        "run on": ", ".join(made["devices"]) or "not recorded",
        "date": " to ".join(filter(None, dict.fromkeys((made["first"], made["last"])))) or "not recorded",
        "time of all stages": clock(sum(kind.seconds for kind in by_kind(results))),
        **{name: format_number(value, 3) if isinstance(value, float) else str(value) for name, value in data.items()},
    }


def flat_facts(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the facts of data sets by dotted name: world version, Bayes ceilings, numbers of rows, limits."""
    flat: dict[str, Any] = {}
    for name, value in sorted(facts.items()):
        flat |= flat_facts(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _win_rates(across: Mapping[str, list[RowRuns]]) -> Picture:
    """Returns the rows with the highest win rates over the SFT model, coloured by paper."""
    rows = sorted((row for rows in across.values() for row in rows), key=_falling)[:MOST_ROWS]
    series = []
    for slot, group in enumerate(dict.fromkeys(row.paper for row in rows)):
        own = {row.address: row.mean(WIN_RATE) or (0.0, None) for row in rows if row.paper == group}
        means, errors = [mean for mean, _ in own.values()], [error or 0.0 for _, error in own.values()]
        series.append(Series(group, means, [*own], [*errors], style="intervals", colour=slot))
    series.append(Series("SFT model", [50.0], [0], style="guide"))
    panel = Panel("", "true win rate over the SFT model, %", "", series)
    figure = FigureData("win-rates", "Win rates over the SFT model", "", panels=[panel])
    caption = "Each policy's win rate over the SFT model that it started from, with its standard error over worlds."
    return Picture(panels_svg(figure), caption)


def _demo_section(demo: RowsCompared) -> Section:
    shown = curves(demo, "demo")
    parts = (*numbers(demo), *([shown] if shown else []))
    return Section("The demo: rows beside the plain reward", "demo", parts, short="Demo")


def _across_section(across: Mapping[str, list[RowRuns]]) -> Section:
    columns = (*(TableColumn(heading) for heading, _ in ACROSS.values()), TableColumn("worlds"))
    rows = []
    for model, row in ((model, row) for model, own in across.items() for row in own):
        anchor = f"#{run_anchor(row.paper, 'policy', row.name, str(next(iter(row.runs))))}"
        means = ((row.mean(metric) if row.has(metric) else None, decimals) for metric, (_, decimals) in ACROSS.items())
        cells = (number_cell(mean and mean[0], mean and mean[1], decimals, anchor) for mean, decimals in means)
        worlds = TableCell(str(len(row.runs)))
        rows.append(TableRow(row.title, (*cells, worlds), (row.address,), (f"from {model}",)))
    reading = (
        "Every policy beside every other that started from the same SFT model, whatever paper or study it is from: the "
        "same gold judge, in each world the same prompts, the best true win rate first. 50 is the SFT model itself."
    )
    return Section("Across papers", "across", (Text(reading), ShownTable(columns, tuple(rows))), short="Across")


def _anchor(paper: str, name: str) -> str:
    return f"{paper}-{name.lower().replace(' ', '-')}"


def _paper_section(root: Path, results: Path, paper: PaperResults) -> Section:
    """Returns a paper's verdicts, claims, tables, figures, and what it prints without measurements."""
    counts = paper.content["counts"]
    tiles = [(str(counts[name]), name, name if counts[name] else "") for name in VERDICTS]
    of = counts["measured"] + counts["not run"]
    tiles.append((f"{counts['measured']} of {of}", "published cells measured", ""))
    claims = [figure for figure in paper.figures if figure["kind"] == "claims"]
    figures = [figure for figure in paper.figures if figure["kind"] != "claims"]
    shown = [figure for figure in figures if figure["status"] != "not run"]
    absent = [figure["title"].split(".")[0] for figure in figures if figure["status"] == "not run"]
    scale = "" if results.name == DEFAULT_SCALE else f" --scale {results.name}"
    parts: list[Any] = [Tiles(tuple(tiles)), _overview(paper)]
    parts += [figure_section(paper.key, figure) for figure in claims if figure["status"] != "not run"]
    for table in paper.results:
        parts.append(_table_section(paper.key, table, table_search(root, paper.key, table["id"], results.name), scale))
    parts += [figure_section(paper.key, figure) for figure in shown]
    if absent:
        command = code(f"rewardsmith run {paper.key} --full{scale}")
        parts.append(Text(Markup("Not run: {}. {}").format(", ".join(absent), command), "absent"))
    if others := _others(results, paper.key):
        parts.append(Fold(f"Settings, statistics and prompts as printed ({len(others)})", tuple(others)))
    notes = [note["text"] for note in printed_tables.paper(paper.key).notes if note["type"] == "disagreement"]
    if notes:
        parts.append(Fold(f"Where the paper's own parts disagree ({len(notes)})", (Bullets(tuple(notes)),)))
    folded = ", ".join(f"{counts[name]} {name}" for name in VERDICTS)
    return Section(paper.content["title"], paper.key, tuple(parts), short=label(paper.key), folded=folded)


def _overview(paper: PaperResults) -> ShownTable:
    names = (*VERDICTS, "not run")
    rows = []
    for table in paper.results:
        counts = verdict_counts([table])
        cells = tuple(TableCell(str(counts[name])) for name in names)
        rows.append(TableRow(table["id"], cells, link=f"#{_anchor(paper.key, table['id'])}"))
    return ShownTable(tuple(map(TableColumn, names)), tuple(rows), "table")


def _table_section(paper: str, table: dict[str, Any], search: Search | None, scale: str) -> Section:
    own, also = shown_columns(table)
    own = sorted(own, key=lambda column: not column["primary"])
    lines = printed_lines(table, own)
    ran, absent = ([line for line in lines if line.was_run == run] for run in (True, False))
    parts: list[Any] = [paper_table(table, own, ran)] if ran else []
    if absent:
        names = dict.fromkeys(name for line in absent for name in line.names)
        command = Markup(": ") + code(f"rewardsmith run {paper} {' '.join(names)}{scale}") if names else Markup()
        summary = Markup("{} without results{}").format(counted(len(absent), "row"), command)
        parts.append(Fold(summary, (paper_table(table, own, absent),)))
    if search:
        there = link(search.link, "Compare its runs in MLflow") if search.link else code(search.filter)
        parts.append(Text(there if search.link else Markup("Its runs in MLflow: {}").format(there), "key"))
    parts += [Text(note, "key") for note in table_notes(table)]
    if also:
        measured = [line for line in printed_lines(table, also) if line.was_run]
        known = f"Also measured on {table['id']}: what only a testbed with known rewards can say"
        parts.append(Fold(known, (paper_table(table, also, measured),)))
    return Section(f"{table['id']}. {table['title']}", _anchor(paper, table["id"]), tuple(parts), 3, table["id"])


def _others(results: Path, paper: str) -> list[Any]:
    """Returns a paper's tables without measurements: settings, notation and statistics as printed, prompts as asked."""
    parts: list[Any] = []
    for table in printed_tables.paper(paper).tables:
        if table.is_result:
            continue
        if prompts := _prompts(table.name):
            parts += [Verbatim(f"{table.id}. {name}", text) for name, text in prompts.items()]
        elif table.name == "par/2":
            notation = read_mapping(NOTATION)
            rows = ([name, words["printed"], words["ours"]] for name, words in notation.items())
            made = simple_table(["notation", "meaning", "here"], rows, text=(1, 2))
            parts.append(replace(made, title=f"{table.id}. {table.title}"))
        elif table.columns:
            parts.append(printed_alone(table, f"{table.id}. {table.title}"))
    if paper == "alarm":
        figure = printed_tables.figure("alarm/5")
        parts.append(Verbatim(f"{figure.id}. {figure.title}", FIGURE_5))
    return parts


def _prompts(table: str) -> dict[str, str]:
    """Returns the words that this project asks with in place of a table of prompts; empty for other tables."""
    from rlhf_core.reasoning.templates import PAPER, TEACHER

    asked = {"rlmec/5": TEACHER, "rlmec/6": PAPER}.get(table)
    return {"Error Locating": asked.locate, "Solution Rewriting": asked.rewrite} if asked else {}


def _time_section(root: Path, results: Path) -> Section:
    """Returns seconds of each kind of stage."""
    kinds, run = by_kind(results), last_run(root)
    reading = "Seconds of the stages' own work, evaluation included, by their records."
    if run:
        shares = ", ".join(f"{name} {100 * part:.1f} %" for name, part in run.parts().items())
        reading += f" {run.line()}: {shares}."
    rows = []
    for kind in kinds:
        memory = "" if kind.peak_memory_mb is None else f"{kind.peak_memory_mb:.0f}"
        share = TableCell(f"{100 * kind.share:.1f}")
        times = (TableCell(clock(seconds), value=seconds) for seconds in (kind.seconds, kind.each))
        cells = (TableCell(str(kind.stages)), *times, share, TableCell(memory))
        rows.append(TableRow(kind.kind, cells))
    headings = ("stages", "in all", "each", "share, %", "peak memory, MB")
    table = ShownTable(tuple(map(TableColumn, headings)), tuple(rows), "kind of stage")
    return Section("Where the time goes", "time", (Text(reading), table), short="Time")


def _runs(
    root: Path, papers: list[PaperResults], across: Mapping[str, list[RowRuns]], demo: RowsCompared | None
) -> Iterator[tuple[str, ShownRun]]:
    """Yields every run behind a number with its anchor: those of the papers' tables, of all policies, of the demo."""

    def below(out: Path) -> str:
        return out.resolve().relative_to(root).as_posix()

    found: dict[str, ShownRun] = {}
    for paper in papers:
        for row in (row for table in paper.content["tables"] for row in table["rows"]):
            for seed, path in row["runs"].items():
                anchor = run_anchor(row["group"], row["kind"], row["name"], seed)
                found.setdefault(anchor, ShownRun(paper.key, row["name"], seed, root / path, path))
    for row in (*(row for rows in across.values() for row in rows), *(row.row for row in (demo.rows if demo else ()))):
        for seed, output in row.runs.items():
            anchor = run_anchor(row.paper, "policy", row.name, str(seed))
            found.setdefault(anchor, ShownRun(row.paper, row.name, str(seed), output.path, below(output.path)))
    yield from found.items()


def _runs_section(root: Path, runs: Mapping[str, ShownRun]) -> Section:
    """Returns one row for each run: where its result is, its digest, the commit that made it, its first answers."""
    rows, searched = [], False
    for anchor, run in runs.items():
        record, search = run.record, run_search(root, run.paper, run.path)
        searched = searched or (search is not None and search.link is None)
        digest, commit = str(record.get("result_digest", "")), str(record.get("commit", ""))[:12]
        seconds, memory = record.get("seconds"), record.get("peak_memory_mb")
        cells = (
            TableCell(run.seed),
            TableCell(run.path),
            TableCell(digest[:12] or "not recorded", tip=digest),
            TableCell(f"{commit}{' (with changes)' if commit and record.get('dirty') else ''}" or "not recorded"),
            TableCell(str(record.get("started", "")).replace("T", " ").replace("Z", "")),
            TableCell("" if seconds is None else clock(seconds), value=seconds),
            TableCell("" if memory is None else f"{memory:.0f}"),
            TableCell("MLflow" if search and search.link else "", link=search.link if search and search.link else ""),
        )
        rows.append(TableRow(run.row, cells, anchor=anchor, detail=tuple(_answers(run))))
    headings = ("seed", "stage", "result digest", "commit", "started", "time", "memory, MB", "MLflow")
    columns = tuple(TableColumn(name, numeric=name in ("seed", "time", "memory, MB")) for name in headings)
    reading: str | Markup = (
        "One row for each run: where its result is, the digest of the result, the commit that made it, and its first "
        "answers to test prompts."
    )
    if searched:
        example = code(f"tags.path = '{next(iter(runs.values())).path}'")
        reading = Markup("{} In MLflow, search for {}.").format(reading, example)
    return Section("Runs", "runs", (Text(reading), ShownTable(columns, tuple(rows))), folded=str(len(runs)))


def _answers(run: ShownRun) -> Iterator[tuple[str, str]]:
    """Yields the first prompts of a run's benchmarks with its answers and their true rewards."""
    for row in StageOutput(run.out, int(run.seed)).generations[:ANSWERS]:
        if "response" in row:
            true = "" if row.get("true_reward") is None else f" (true reward {row['true_reward']:.2f})"
            yield f"{row.get('prompt', '')}{true}", str(row["response"])
