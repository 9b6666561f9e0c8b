"""The atlas as one self-contained HTML page and as Markdown: studies, their findings over worlds, budgets and runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rlhf_core.evaluation.worlds import Effect, over_worlds
from rlhf_core.published.paper_claims import stated_claims
from rlhf_core.published.printed_tables import PAPERS
from tasks.params.studies import Hypothesis, StudySpec
from tasks.report.atlas import (
    WORDS,
    AskedClaim,
    AtlasStudy,
    amount,
    asked_claims,
    interval_text,
    measured,
    read_atlas,
    sentence,
    tested_p,
    unit,
)
from tasks.report.charts import panels_svg
from tasks.report.figure_data import FigureData, Panel, Series
from tasks.report.page import Bullets, Fold, Picture, ReportPage, Section, Text, Tiles, link, write_page
from tasks.report.report_page import label
from tasks.report.table import MARKS, ShownTable, TableCell, TableColumn, TableRow, simple_table
from tasks.studies.equal_kl import EVEN, OVER_SFT, curve_problem, path_of
from tasks.studies.frame import BUDGETS, compared, core_hours, measure, row_budgets, shown_values
from tasks.studies.plan import design_of
from tasks.studies.records import record_file
from tasks.studies.twins import HEADINGS, twin_tests
from tasks.studies.verdicts import OPEN, StudyFinding, StudyState, caveat_groups

PROXY, PROXY_OF_SFT = "proxy_reward", "proxy_reward_sft"
#: Series of single cells of a hypothesis without a dial.
ONE_CELL, NOT_COUNTED = "one cell", "not counted by the hypothesis"
MEAN = "mean over worlds"
READING = (
    "A study compares reward designs in independent worlds: each has its own facts, data, models and policies. The "
    "worlds are the sample. Hypotheses, metric and number of worlds are committed before the first run, and no verdict "
    "is shown before the last one. In a study without any effect, the chance of one or more false confirmed or "
    "contradicted is at most .05. Equivalent lies within a margin that was chosen before, undecided is everything else."
)
CLAIMS_READING = (
    "A claim counts by the hypotheses that its studies registered for it: it holds in a study if all of them do. "
    "Verdicts of a claim with several studies are corrected for their number (Holm), those with worlds to come "
    "included."
)
FINDINGS_READING = (
    "The primary hypothesis is shaded. The others are tested only if it is significant, and their p is corrected for "
    "their number (Holm)."
)
KLPath = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Point:
    """A row less another one over worlds, in a part of the cells.

    Attributes:
        label: the level of a dial, or the levels of a cell.
        series: levels of the other dials, or of a single cell; empty for the mean over cells.
        effect: over worlds.
        values: of the worlds in their order.
    """

    label: str
    series: str
    effect: Effect
    values: tuple[float, ...]


def points_of(state: StudyState, hypothesis: Hypothesis) -> list[Point]:
    """Returns the difference of a hypothesis' rows at each level of its dial, or in each cell without one.

    Of several cells, at a level or in all, the mean comes last, with an empty `series`.
    """
    rows, metric, found = compared(state.spec, hypothesis), state.spec.metric, []
    for cells, named, series in _parts(state.spec, hypothesis, rows):
        one, two = (state.ends.table(metric, [(cell, row) for cell in cells]).mean(axis=1) for row in rows)
        values = dict(zip(state.ends.worlds, map(float, one - two), strict=True))
        if not any(map(math.isnan, values.values())):  # of a cell that the hypothesis does not count
            found.append(Point(named, series, over_worlds(values), tuple(values.values())))
    return found


def _parts(spec: StudySpec, hypothesis: Hypothesis, rows: tuple[str, str]) -> list[tuple[list[str], str, str]]:
    """Returns (cells, label, series) of the points of a hypothesis."""
    counted, dial = list(spec.weighted_cells(hypothesis)), hypothesis.over
    parts: list[tuple[list[str], str, str]] = []
    if dial is None:
        for name, levels in spec.cells.items():
            if name in counted:
                parts.append(([name], ", ".join(levels.values()), ONE_CELL if len(counted) > 1 else ""))
            elif {*rows} <= {*spec.rows_of(levels)}:
                parts.append(([name], ", ".join(levels.values()), NOT_COUNTED))
        return [*parts, (counted, "mean of cells", "")] if len(counted) > 1 else parts
    means = []
    for level in spec.dials[dial]:
        names = [name for name in counted if spec.cells[name][dial] == level]
        means += [(names, level, "")] if names else []
        for name in names if len(names) > 1 else ():
            others = ", ".join(f"{key} {at}" for key, at in spec.cells[name].items() if key != dial)
            parts.append(([name], level, others))
    return parts + means


def _half(effect: Effect) -> float:
    interval = effect.interval()
    return 0.0 if interval is None else interval.upper - interval.estimate


def _background(spec: StudySpec) -> list[Series]:
    """Returns the line of no difference, and the band of differences that count as none."""
    series = [Series("no difference", [0.0], [0], style="guide")]
    if spec.margin:
        name = f"within ±{spec.margin:g} counts as none"
        series.append(Series(name, [-spec.margin, spec.margin], [0, 0], style="band"))
    return series


def _intervals(name: str, effects: Mapping[str, Effect], slot: int) -> Series:
    """Returns named effects with their intervals."""
    means, halves = [one.estimate for one in effects.values()], [_half(one) for one in effects.values()]
    return Series(name, means, list(effects), [*halves], style="intervals", colour=slot)


def _worlds(values: Mapping[str, Iterable[float]]) -> Series:
    """Returns the values of single worlds by name."""
    pairs = [(value, name) for name, own in values.items() for value in own]
    return Series("one world", [value for value, _ in pairs], [name for _, name in pairs], style="points", colour=0)


def effects_picture(study: AtlasStudy) -> Picture | None:
    """Returns the primary hypothesis' difference at each level or in each cell, and the effects of all hypotheses, with
    their intervals and the values of single worlds; None without a number."""
    if study.state is None or study.primary is None or study.primary.effect is None:
        return None
    spec, hypothesis = study.state.spec, study.primary.hypothesis
    points, (row, other) = points_of(study.state, hypothesis), compared(spec, hypothesis)
    series = [
        _intervals(name or MEAN, {point.label: point.effect for point in points if point.series == name}, slot)
        for slot, name in enumerate(dict.fromkeys(point.series for point in reversed(points)))
    ]
    series.append(_worlds({point.label: point.values for point in points if not point.series}))
    panels = [Panel(f"{row} − {other}", f"{unit(spec)} of {spec.metric}", "", [*series, *_background(spec)])]
    found = {finding.name: finding for finding in study.state.findings if finding.effect is not None}
    if len(found) > 1:
        effects = _intervals(MEAN, {name: one.effect for name, one in found.items() if one.effect is not None}, 0)
        worlds = _worlds({name: one.values.values() for name, one in found.items()})
        panels.append(Panel("All hypotheses", unit(spec), "", [effects, worlds, *_background(spec)]))
    expected = "claimed" if _tests_claim(spec, study.primary.name) else "expected"
    rises = {"above": "rising over the levels", "below": "falling over the levels"}
    side = hypothesis.side if hypothesis.over is None else rises[hypothesis.side]
    figure = FigureData(f"{study.name}-effects", hypothesis.says, "", panels=panels)
    caption = (
        f"Means over {spec.worlds} worlds with 95 % intervals of one hypothesis alone; {expected} of the first: {side}."
    )
    return Picture(panels_svg(figure, columns=len(panels)), caption)


def _tests_claim(spec: StudySpec, hypothesis: str) -> bool:
    """Returns whether a hypothesis is one of those by which its study counts for the paper's claim."""
    return spec.claim is not None and hypothesis in spec.claim.tested_by


@dataclass(frozen=True)
class RowCurves:
    """A row's ways through KL in a cell, as Gao et al. (2023) draw over-optimisation.

    Attributes:
        gold, proxy: of each world (KL, value) from the SFT model on: its win rate over the SFT model, in the place of a
            gold reward, and its mean proxy reward; empty where the row is not drawn.
        problem: why it is not drawn.
    """

    row: str
    cell: str
    gold: tuple[KLPath, ...]
    proxy: tuple[KLPath, ...]
    problem: str | None = None


def row_curves(spec: StudySpec, records: Sequence[Mapping[str, Any]]) -> list[RowCurves]:
    """Returns the curves of a study with KL targets, by cell and row.

    A row is drawn in a cell where every world has its curve: a mean over the other worlds would choose among them.
    """
    found = []
    drawn = spec.kl_targets and spec.metric == OVER_SFT
    for cell, row in ((cell, row) for cell, levels in spec.cells.items() for row in spec.rows_of(levels) if drawn):
        runs = [record["cells"][cell]["rows"][row] for record in records]
        problems = [
            f"world {record['world']}: {problem}"
            for record, run in zip(records, runs, strict=True)
            if (problem := _problem(run)) is not None
        ]
        if problems:
            more = f", and {len(problems) - 1} more worlds" if len(problems) > 1 else ""
            found.append(RowCurves(row, cell, (), (), problems[0] + more))
            continue
        gold = tuple(path_of(run["curve"], OVER_SFT) for run in runs)
        proxy = tuple(path_of(run["curve"], PROXY, run["metrics"].get(PROXY_OF_SFT)) for run in runs)
        found.append(RowCurves(row, cell, gold, proxy))
    return found


def _problem(run: Mapping[str, Any]) -> str | None:
    """Returns why a run's curve cannot be drawn; None where it can."""
    for word in ("stopped", "diverged"):
        if word in run:
            return f"{word}: {run[word]}"
    start = run["metrics"].get(PROXY_OF_SFT, 0.0)
    if not isinstance(start, int | float):
        return f"{PROXY_OF_SFT} is {start}"
    return curve_problem(run["curve"], OVER_SFT) or curve_problem(run["curve"], PROXY)


def _row_series(row: str, paths: Sequence[KLPath], slot: int) -> Iterator[Series]:
    """Yields a row's ways over root KL: thin ones of single worlds, and the mean at each evaluation that all have."""
    ways = [[(math.sqrt(kl), value) for kl, value in path] for path in paths]
    mean = [
        (math.fsum(x for x, _ in points) / len(points), math.fsum(y for _, y in points) / len(points))
        for points in zip(*ways, strict=False)
    ]
    for way in (*ways, mean):
        x, y = [point[0] for point in way], [point[1] for point in way]
        yield Series(row, x, y, style="line" if way is mean else "thin", colour=slot)


def curves_picture(study: AtlasStudy, curves: Sequence[RowCurves]) -> Picture | None:
    """Returns gold and proxy rewards over the square root of KL of a complete study; None where no row has them."""
    if study.state is None or not any(one.gold for one in curves):
        return None
    spec, panels = study.state.spec, []
    rows = list(dict.fromkeys(one.row for one in curves))
    for cell in dict.fromkeys(one.cell for one in curves):
        drawn = [(one, rows.index(one.row)) for one in curves if one.cell == cell and one.gold]
        for name, label_ in (("proxy", "proxy reward"), ("gold", "true win rate over SFT, %")):
            series = [each for one, slot in drawn for each in _row_series(one.row, getattr(one, name), slot)]
            heights = [y for each in series for y in each.y] or [0.0]
            reach = max((x for each in series for x in each.x), default=0.0)
            ends = [min(heights), max(heights)]
            series += [Series("compared KL", [math.sqrt(kl)] * 2, ends, style="guide") for kl in spec.kl_targets]
            if name == "gold":
                series.append(Series("SFT model", [0.0, reach], [EVEN, EVEN], style="guide"))
            panels.append(Panel(f"{cell}: {name}", "√KL, √nats per response", label_, series))
    title = "Proxy reward and true win rate over the square root of KL"
    caption = (
        f"Over-optimisation: proxy reward (left) and true win rate over the SFT model (right) over the square root of "
        f"KL. Thick: mean over {spec.worlds} worlds at each evaluation while training; thin: one world."
    )
    return Picture(panels_svg(FigureData(f"{study.name}-kl", title, "", panels=panels), columns=2), caption)


def findings_table(state: StudyState) -> ShownTable:
    """Returns the hypotheses of a complete study: effect with interval, verdict, p and the smallest visible effect."""
    spec = state.spec
    rows = []
    for finding in state.findings:
        claim = " · tests the paper's claim" if _tests_claim(spec, finding.name) else ""
        small = (f"{finding.name}: {measured(spec, finding.hypothesis)}{claim}",)
        effect, (text, lines) = finding.effect, _found(spec, finding)
        size = TableCell(finding.why_no_effect or "", absent=True)
        if effect is not None:
            interval = interval_text(spec, effect) or effect.reason or ""
            size = TableCell(amount(spec, effect.estimate), (interval,), value=effect.estimate)
        word = finding.word if finding.word in MARKS else ""
        verdict = TableCell(text, lines, mark=word)
        rows.append(TableRow(finding.hypothesis.says, (size, verdict), small, main=finding.primary))
    return ShownTable(
        (TableColumn(f"effect, {unit(spec)}"), TableColumn("found", numeric=False)), tuple(rows), "hypothesis"
    )


def _found(spec: StudySpec, finding: StudyFinding) -> tuple[str, tuple[str, ...]]:
    """Returns a finding's word, and its p and the smallest visible effect or why it is not tested."""
    if finding.word == "undecided" and finding.held_back:
        return finding.word, (finding.why_untested or "",)
    sees = finding.word == "undecided" and finding.sees is not None and not finding.held_back
    lines = [tested_p(finding)] if tested_p(finding) else []
    lines += [f"sees above {amount(spec, finding.sees or 0.0, sign=False)}"] if sees else []
    return finding.word, tuple(lines)


def _numbers(study: AtlasStudy, state: StudyState) -> Iterator[Any]:
    """Yields the tables behind the findings of a complete study."""
    spec, tables = state.spec, []
    for metric in (spec.metric, *spec.shows, *(measure(spec.metric, target) for target in spec.kl_targets)):
        shown = shown_values(spec, state.ends, metric)
        cells = {place: _mean_cell(*found) for place, found in shown.items()}
        names = dict.fromkeys(row for row, _ in shown)
        rows = (TableRow(row, tuple(cells.get((row, cell), TableCell()) for cell in spec.cells)) for row in names)
        tables.append(ShownTable(tuple(map(TableColumn, spec.cells)), tuple(rows), title=metric))
    yield Fold(f"Means of each row in each cell, 95 % intervals over {spec.worlds} worlds", tuple(tables))
    worlds = (
        [str(record["world"]), *(_world_text(spec, finding.values.get(index)) for finding in state.findings)]
        for index, record in state.records.items()
    )
    yield Fold("Values of all worlds", (simple_table(["world", *(one.name for one in state.findings)], worlds),))
    if tests := twin_tests(state):
        yield Fold("Rows against themselves", (simple_table(HEADINGS, (test.texts for test in tests)),))
    budgets = ([row, *texts] for row, texts in row_budgets(spec, state.frame, state.tuned).items())
    yield Fold("Budgets of the rows", (simple_table(["row", *BUDGETS], budgets),))


def _mean_cell(values: Mapping[int, float], missing: int) -> TableCell:
    """Returns a mean over worlds with its interval, or why there is none."""
    if missing:
        return TableCell("no mean", tip=f"{missing} of {len(values) + missing} worlds have no number")
    effect = over_worlds(values)
    interval = effect.interval()
    bounds = "" if interval is None else f" [{interval.lower:.1f}, {interval.upper:.1f}]"
    return TableCell(f"{effect.estimate:.1f}{bounds}")


def _world_text(spec: StudySpec, value: float | None) -> str:
    return "" if value is None else amount(spec, value)


def _design(spec: StudySpec) -> Fold:
    return Fold("Design: levels, settings that are not tuned, weights of the cells", (Bullets(tuple(design_of(spec))),))


def _runs(study: AtlasStudy) -> Iterator[Any]:
    if study.state is not None and study.state.notes:
        yield Bullets(tuple(study.state.notes), "caveat")
    if (records := study.records) and study.state is not None:
        columns = tuple(TableColumn(name, numeric=False) for name in ("commit", "digest of the study", "record"))
        rows = (
            TableRow(
                str(one["world"]),
                (TableCell(one["commit"][:10]), TableCell(one["digest"][:12], tip=one["digest"]),
                 TableCell(record_file(study.name, one["world"]).as_posix())),
                anchor=f"{study.name}-world-{one['world']}",
            )
            for one in records
        )  # fmt: skip
        summary = f"Runs: {len(records)} worlds, {core_hours(study.state.frame):.1f} core-hours"
        yield Fold(summary, (ShownTable(columns, tuple(rows), "world"),))


def study_section(study: AtlasStudy) -> Section:
    """Returns a study: what it asks, its verdict, effects, caveats, and what they are made from."""
    parts: list[Any] = []
    if study.spec is not None:
        parts.append(Text(study.spec.asks))
        if (claim := study.spec.claim) is not None:
            verdict = "" if study.says is None else f" By this study: {study.claim_word}."
            text = f"The paper ({label(claim.paper)}, {claim.stated.source}): {claim.stated.says}.{verdict}"
            parts.append(Text(text, "says"))
    if study.state is None:
        parts.append(Text(f"Refused: {study.problem}", "waiting"))
    elif study.primary is None:
        parts += [Text(f"{study.state.progress}; no verdict before the last.", "waiting"), _design(study.state.spec)]
        parts += _runs(study)
    else:
        spec, primary = study.state.spec, study.primary
        word = primary.word if primary.word in ("confirmed", "contradicted") else ""
        mark = Markup('<b class="word {}">{}</b> {}').format(word, primary.word, sentence(spec, primary))
        curves = row_curves(spec, study.records)
        pictures = (effects_picture(study), curves_picture(study, curves))
        parts += [Text(mark, "headline"), *(picture for picture in pictures if picture is not None)]
        if lost := tuple(f"{one.row} in {one.cell}: {one.problem}" for one in curves if one.problem):
            parts.append(Fold(f"Rows without curves over KL ({len(lost)})", (Bullets(lost, "caveat"),)))
        parts.append(findings_table(study.state))
        groups = caveat_groups(spec, study.state.findings)
        if groups:
            items = (f"{pairs}: {'; '.join(texts)}" for pairs, texts in groups.items())
            parts.append(Fold(f"Caveats ({sum(map(len, groups.values()))})", (Bullets(tuple(items), "caveat"),)))
        parts += [Text(FINDINGS_READING, "key"), *_numbers(study, study.state), _design(spec), *_runs(study)]
    return Section(study.title, f"study-{study.name}", tuple(parts), short=study.name)


def _claim_row(claim: AskedClaim) -> TableRow:
    """Returns a claim's verdict over all studies that name it, and what each says."""
    studies = tuple(
        link(f"#study-{one.name}", one.name)
        + f": {one.claim_word} ({one.tested})"
        + (f"; differs: {one.claim.differs}" if one.claim and one.claim.differs else "")
        for one in claim.studies
    )
    verdict = TableCell(claim.word, mark=claim.word if claim.word in MARKS else "")
    return TableRow(
        claim.stated.says, (verdict, TableCell("", studies)), (f"{label(claim.paper)}, {claim.stated.source}",)
    )


def atlas_page(studies: Sequence[AtlasStudy]) -> ReportPage:
    """Returns the page of all studies."""
    claims = asked_claims(studies)
    words = Counter(claim.word for claim in claims)
    every = sum(len(stated_claims(paper)) for paper in PAPERS)
    tiles = [(f"{len(claims)} of {every}", "claims of the five papers asked by a study", "")]
    shown = (word for word in WORDS if word in MARKS or words[word])
    tiles += [(str(words[word]), word, word if words[word] else "") for word in shown]
    lead: list[Any] = [Tiles((*tiles, (str(words[OPEN]), "still open", ""))), Text(READING)]
    if claims:
        columns = (TableColumn("verdict", numeric=False), TableColumn("studies that name it", numeric=False))
        lead += [ShownTable(columns, tuple(map(_claim_row, claims)), "claim"), Text(CLAIMS_READING, "key")]
    sections = tuple(study_section(study) for study in studies)
    title = "When does each idea help, and by how much?"
    return ReportPage("Rewardsmith atlas", title, tuple(lead), sections, "Rewardsmith · atlas")


def write_atlas(root: Path, out: Path) -> Path:
    """Writes `<out>/atlas.html` and `<out>/atlas.md`, each whole or not at all; returns the page's path.

    Raises:
        DataError: there is no study.
    """
    return write_page(atlas_page(read_atlas(root)), out / "atlas.html", also=(out / "atlas.md",))
