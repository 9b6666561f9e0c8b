"""The report as Markdown: tables and verdicts for a reader without the page."""

from __future__ import annotations

from typing import Any

from tasks.graph.expected import clock
from tasks.report.cells import cell_text, format_number
from tasks.report.finding import NATS, DemoFinding, finding_cells
from tasks.report.measured import table_notes
from tasks.report.other_tables import OtherTable
from tasks.report.page import Report, label
from tasks.report.printed_rows import printed_lines, shown_columns
from tasks.report.rows_of_all_papers import COLUMNS

LEGEND = (
    "Each cell: published / measured (mean ± standard error over worlds; a run's seed is its world). Compared cells of "
    "a table's primary column also have the difference to the main row with its 95 % interval and a verdict (p < .05, "
    "corrected by Holm for the table's rows) with the smallest effect that these worlds see at 80 %; ✓ confirms, ✗ "
    "contradicts, = is equivalent, · leaves undecided the paper's ordering of row and main row. Other columns, and "
    "tests in words (win, tie, lose), are descriptive."
)


def escape(text: str) -> str:
    """Returns the text for a Markdown table cell: no pipes, no line breaks, no HTML."""
    for character, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("\n", " ")):
        text = text.replace(character, safe)
    return text


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"


def _table(table: dict[str, Any]) -> list[str]:
    own, also = shown_columns(table)
    lines = [f"### {table['id']}. {table['title']}", ""]
    lines += _grid(table, own)
    lines += [line for note in table_notes(table) for line in (escape(note), "")]
    return lines + (["Also measured on the testbed:", "", *_grid(table, also)] if also else [])


def _grid(table: dict[str, Any], columns: list[dict[str, Any]]) -> list[str]:
    lines = [_row(["row", *(_heading(column) for column in columns)]), "|" + " --- |" * (len(columns) + 1)]
    for line in printed_lines(table, columns):
        row = line.rows[0]
        by = row["extra"].get("evaluator")
        label = " · ".join(part for part in (line.label, row["backbone"], f"by {by}" if by else None) if part)
        cells = []
        for column in columns:
            _, cell = line.cells[column["key"]]
            parts = [cell["published"]] if cell["published"] is not None else []
            cells.append(" / ".join([*parts, cell_text(cell, column["decimals"])] if table["is_result"] else parts))
        lines.append(_row([label, *cells]))
    return [*lines, ""]


def _other(table: OtherTable) -> list[str]:
    """Returns a table without measurements."""
    lines = [f"### {table.id}. {table.title}", ""]
    if table.rows:
        lines += [_row(["row", *table.headings]), "|" + " --- |" * (len(table.headings) + 1)]
        lines += [*(_row([name, *cells]) for name, cells in table.rows), ""]
    for name, text in (table.prompts or {}).items():
        lines += [f"{escape(name)}:", "", *(f"    {line}" for line in text.split("\n")), ""]
    return [*lines, escape(table.note), ""] if table.note else lines


def _heading(column: dict[str, Any]) -> str:
    """Returns a column's printed name; the primary column says that it is."""
    return f"{column['printed']} (primary)" if column["primary"] else str(column["printed"])


def _claims(figure: dict[str, Any]) -> list[str]:
    """Returns a paper's claims in words, each with its verdict."""
    lines = [f"### {figure['title']}", "", _row(["the paper says", "where", "verdict"]), "| --- | --- | --- |"]
    for row in (row for block in figure["blocks"] for row in block["rows"]):
        why = f": {row['uneven']}" if row.get("uneven") else ""
        lines.append(_row([row["text"], row["where"], f"{row['verdict']}{why}"]))
    return [*lines, ""]


def _all_rows(report: Report) -> list[str]:
    """Returns rows of all papers by the SFT model that they started from."""
    headings = ["row", "from", "worlds", *(heading for heading, _ in COLUMNS.values())]
    lines = ["## Across papers", ""] if report.all_rows else []
    for sft_model, rows in report.all_rows.items():
        lines += [f"### From {escape(sft_model)}", "", _row(headings), "|" + " --- |" * len(headings)]
        for row in rows:
            cells = [row.title, label(row.group), str(len(row.runs))]
            for metric, (_, decimals) in COLUMNS.items():
                mean, error = row.cells[metric] or (None, None)
                text = "" if mean is None else format_number(mean, decimals)
                cells.append(text + ("" if error is None else f" ± {format_number(error, decimals)}"))
            lines.append(_row(cells))
        lines.append("")
    return lines


def _finding(found: DemoFinding) -> list[str]:
    """Returns the demo's finding."""
    headings = [
        "row",
        "win rate over SFT, %",
        "less plain, points",
        f"at {NATS:g} nats",
        "KL",
        "tokens",
        "alarm rang in",
    ]
    lines = [
        "## The demo's finding",
        "",
        f"{found.headline} {found.beside} {found.caveat}",
        "",
        _row(headings),
        "|" + " --- |" * len(headings),
    ]
    lines += [*(_row(finding_cells(row)) for row in found.rows), ""]
    lines += [f"- {escape(row.title)}: {row.sentence}" for row in found.rows]
    return [*lines, "", found.cause, "", f"{found.strength} {found.check}", ""]


def _times(report: Report) -> list[str]:
    """Returns seconds of each kind of stage."""
    if not report.times:
        return []
    headings = ["kind of stage", "stages", "in all", "each", "share"]
    lines = ["## Where the time goes", "", _row(headings), "|" + " --- |" * len(headings)]
    for kind in report.times:
        share = f"{100 * kind.share:.1f} %"
        lines.append(_row([kind.kind, str(kind.stages), clock(kind.seconds), clock(kind.each), share]))
    return [*lines, ""]


def render(report: Report) -> str:
    """Returns the report as a Markdown string."""
    made = report.provenance
    days = made.first if made.first == made.last else f"{made.first} to {made.last}"
    lines = [f"# Rewardsmith report, scale {report.scale}", ""]
    lines += ["**Rehearsal: no number here is a result.**", ""] if report.rehearsal else []
    if made.commits:
        lines += [
            f"Commits {', '.join(made.commits)}; {days}; {', '.join(made.devices)}; "
            f"{clock(report.seconds)} in {sum(kind.stages for kind in report.times)} stages.",
            "",
        ]
    lines += _finding(report.finding) if report.finding else []
    lines += [LEGEND, ""] if report.papers else []
    for paper in report.papers:
        counts = paper.counts
        lines += [
            f"## {paper.title}",
            "",
            f"Seeds {', '.join(map(str, paper.seeds))}. Of the compared primary cells, {counts['confirmed']} confirm "
            f"the paper's ordering, {counts['contradicted']} contradict it, {counts['equivalent']} are equivalent and "
            f"{counts['undecided']} leave it undecided. {counts['measured']} cells with a published value were "
            f"measured; {counts['not run']} have no run.",
            "",
        ]
        for figure in paper.figures:
            lines += _claims(figure) if figure["kind"] == "claims" and figure["blocks"] else []
        for table in paper.result_tables:
            lines += _table(table)
        for other in paper.others:
            lines += _other(other)
    return "\n".join([*lines, *_all_rows(report), *_times(report)])
