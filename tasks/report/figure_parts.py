"""Figures of a tables stage as parts of a page: charts, coloured texts, segmentations, tables of values, claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from tasks.report.charts import panels_svg
from tasks.report.colour import colour_scale, coloured_tokens, pieces, scale_legend
from tasks.report.figure_data import panels_of
from tasks.report.page import Bullets, Fold, Passage, Passages, Picture, Section, Text, counted
from tasks.report.table import (
    MARKS,
    ShownTable,
    TableCell,
    TableColumn,
    TableRow,
    effect_text,
    format_number,
    number_cell,
    p_text,
)

SIGNS = {"above": "›", "below": "‹", "beside": "≈"}


def figure_section(paper: str, figure: Mapping[str, Any]) -> Section:
    """Returns a figure of `figures.json`, with its caption, what was not run, and what the paper's figure claims."""
    parts = list(KINDS[figure["kind"]](figure))
    missing = f" Not run: {', '.join(figure['missing'])}." if figure["missing"] else ""
    if text := f"{figure['caption']}{missing}".strip():
        parts.append(Text(text, "caption"))
    if figure["claims"]:
        parts.append(Text(f"The paper: {'; '.join(figure['claims'])}", "caption"))
    title = figure["title"]
    short = title.split(".")[0] if title.startswith(("Figure", "Table")) else title
    return Section(title, f"{paper}-{figure['key']}", parts, 3, short)


def _panels(figure: Mapping[str, Any]) -> Iterator[Any]:
    yield Picture(panels_svg(figure["key"], figure["title"], panels_of(figure)))


def _coloured_texts(figure: Mapping[str, Any]) -> Iterator[Any]:
    for block in figure["blocks"]:
        passages = []
        for model in block["models"]:
            found = pieces(model["tokens"], model["rewards"], model["segments"], model.get("marked"))
            passages.append(Passage(model["name"], coloured_tokens(found), legend=scale_legend(colour_scale(found))))
        yield Passages(block["prompt"], passages, block["title"], block.get("note", ""), wide=True)


def _segmentations(figure: Mapping[str, Any]) -> Iterator[Any]:
    for block in figure["blocks"]:
        true = Passage("(a) true clauses", _cut(block["true"]))
        found = Passage("(b) entropy-based", _cut(block["found"]), f"boundary F1 {block['f1']:.2f}")
        yield Passages(block["prompt"], (true, found))


def _cut(parts: Sequence[Mapping[str, Any]]) -> Markup:
    spans = []
    for place, part in enumerate(parts):
        reward = "" if part.get("reward") is None else f": {part['reward']:+.2f}"
        span = Markup('<span class="cut{}" title="{}">{}</span>')
        spans.append(span.format(place % 2, f"{part.get('kind', '')}{reward}", part["text"]))
    return Markup("").join(spans)


def _values(figure: Mapping[str, Any]) -> Iterator[Any]:
    for block in figure["blocks"]:
        rows = []
        for row in block["rows"]:
            known = (cell or {"mean": None, "se": None} for cell in row["cells"])
            rows.append(TableRow(row["name"], tuple(number_cell(cell["mean"], cell["se"], 3) for cell in known)))
        yield ShownTable(tuple(map(TableColumn, block["columns"])), tuple(rows), "model")


def _comparison(part: Mapping[str, Any]) -> str:
    """Returns a comparison of a claim in a line: both numbers, their difference and its test."""
    if "values" not in part:
        return f"{part['left']}, {part['right']}: not run"
    values = part["values"]
    digits = 1 if max(map(abs, values)) >= 2 else 3
    right = part["right"] if part["constant"] else f"{part['right']} {format_number(values[1], digits)}"
    missing = f", {part['missing']}" if part["missing"] else ""
    effect = effect_text(part["difference"], part["interval"], digits)
    test = f"{effect}, {p_text(part['p'])}, {counted(part['worlds'], 'world')}{missing}"
    left = f"{MARKS.get(part['verdict'], '')} {part['left']} {format_number(values[0], digits)}"
    return f"{left} {SIGNS[part['side']]} {right} ({test})"


def _claims(figure: Mapping[str, Any]) -> Iterator[Any]:
    """Yields a table of the claims that were run, and a list of the others."""
    columns = (TableColumn("verdict", numeric=False), TableColumn("measured", numeric=False))
    for block in figure["blocks"]:
        rows = []
        for row in (row for row in block["rows"] if row["verdict"] != "not run"):
            why = [f"broken: {', '.join(row['broken'])}"] if row.get("broken") else []
            why += [row["uneven"]] if row.get("uneven") else []
            verdict = TableCell(row["verdict"], notes=tuple(why), verdict=row["verdict"])
            measured = TableCell(notes=tuple(map(_comparison, row["parts"])))
            rows.append(TableRow(row["text"], (verdict, measured), (row["where"],)))
        if rows:
            yield ShownTable(columns, tuple(rows), "the paper says")
        absent = [f"{row['text']} ({row['where']})" for row in block["rows"] if row["verdict"] == "not run"]
        if absent:
            yield Fold(f"{counted(len(absent), 'claim')} without results", (Bullets(absent),))


KINDS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Any]]] = {
    "panels": _panels,
    "coloured_text": _coloured_texts,
    "segmentation": _segmentations,
    "table": _values,
    "claims": _claims,
}
