"""The atlas as one self-contained HTML page and as Markdown: studies, their findings over worlds, budgets and runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rlhf_core.evaluation.worlds import Effect, over_worlds
from tasks.params.studies import Hypothesis, StudySpec
from tasks.report.atlas import WORDS, Atlas, AtlasStudy, read_atlas, runs_of
from tasks.report.atlas_words import amount, interval_text, mean_text, measured, sentence, tested_p, unit
from tasks.report.charts import panels_svg
from tasks.report.figure_data import FigureData, Panel, Series
from tasks.report.page import Bullets, Fold, Picture, ReportPage, Section, Text, Tiles, link, write_page
from tasks.report.report_page import label
from tasks.report.table import ShownTable, TableCell, TableColumn, TableRow, simple_table
from tasks.studies.equal_kl import ASSUMED, EVEN, OVER_SFT, WHAT_IS_ASSUMED, curve_problem, path_of
from tasks.studies.frame import BUDGET_COLUMNS, compared, measure
from tasks.studies.plan import design_of
from tasks.studies.registration import record_file
from tasks.studies.twins import HEADINGS, twin_tests
from tasks.studies.verdicts import OPEN, StudyFinding, StudyState, caveat_groups

PROXY, PROXY_OF_SFT = "proxy_reward", "proxy_reward_sft"
#: Series of single cells of a hypothesis without a dial.
ONE_CELL, NOT_COUNTED = "one cell", "not counted by the hypothesis"
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
    spec, (row, other) = state.spec, compared(state.spec, hypothesis)
    metric = measure(spec.metric, hypothesis.kl)

    def point(names: list[str], at: str, series: str = "") -> Point | None:
        places = ([(name, each) for name in names] for each in (row, other))
        one, two = (state.ends.table(metric, those).mean(axis=1) for those in places)
        values = dict(zip(state.ends.worlds, map(float, one - two), strict=True))
        if any(map(math.isnan, values.values())):  # of a cell that the hypothesis does not count
            return None
        return Point(at, series, over_worlds(values), tuple(values.values()))

    counted = list(spec.weighted_cells(hypothesis))
    if hypothesis.over is None:
        found = _by_cell(spec, counted, (row, other), point)
    else:
        found = _by_level(spec, hypothesis.over, counted, point)
    return [one for one in found if one is not None]


MakePoint = Callable[..., Point | None]


def _by_cell(spec: StudySpec, counted: list[str], rows: tuple[str, str], point: MakePoint) -> list[Point | None]:
    """Returns a point for each cell, those included that are not counted and have a number, and the counted mean."""
    found = []
    for name, levels in spec.cells.items():
        at = ", ".join(levels.values())
        if name in counted:
            found.append(point([name], at, ONE_CELL if len(counted) > 1 else ""))
        elif {*rows} <= {*spec.rows_of(levels)}:
            found.append(point([name], at, NOT_COUNTED))
    return [*found, point(counted, "mean of cells")] if len(counted) > 1 else found


def _by_level(spec: StudySpec, dial: str, counted: list[str], point: MakePoint) -> list[Point | None]:
    """Returns points for the levels of a dial: of each cell where a level has several, and their mean."""
    found, means = [], []
    for level in spec.dials[dial]:
        if names := [name for name in counted if spec.cells[name][dial] == level]:
            means.append(point(names, level))
            for name in names if len(names) > 1 else ():
                others = ", ".join(f"{key} {at}" for key, at in spec.cells[name].items() if key != dial)
                found.append(point([name], level, others))
    return found + means


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


def effects_picture(study: AtlasStudy) -> Picture | None:
    """Returns the primary hypothesis' difference at each level or in each cell, and the effects of all hypotheses, with
    their intervals and the values of single worlds; None without a number."""
    if study.state is None or study.primary is None or study.primary.effect is None:
        return None
    spec, hypothesis = study.state.spec, study.primary.hypothesis
    points, (row, other) = points_of(study.state, hypothesis), compared(spec, hypothesis)
    series = []
    for slot, name in enumerate(dict.fromkeys(point.series for point in reversed(points))):
        own = [point for point in points if point.series == name]
        named, halves = [point.label for point in own], [_half(point.effect) for point in own]
        means = [point.effect.estimate for point in own]
        series.append(Series(name or "mean over worlds", means, named, [*halves], style="intervals", colour=slot))
    strongest = [point for point in points if not point.series]
    at, values = [p.label for p in strongest for _ in p.values], [value for p in strongest for value in p.values]
    series.append(Series("one world", values, at, style="points", colour=0))
    first = Panel(f"{row} less {other}", f"{unit(spec)} of {spec.metric}", "", [*series, *_background(spec)])
    found = [(finding, finding.effect) for finding in study.state.findings if finding.effect is not None]
    names, effects = [finding.name for finding, _ in found], [effect for _, effect in found]
    means, halves = [effect.estimate for effect in effects], [_half(effect) for effect in effects]
    worlds = [(value, finding.name) for finding, _ in found for value in finding.values.values()]
    second = Panel(
        "All hypotheses",
        unit(spec),
        "",
        [
            Series("mean over worlds", means, names, [*halves], style="intervals", colour=0),
            Series("one world", [value for value, _ in worlds], [name for _, name in worlds], style="points", colour=0),
            *_background(spec),
        ],
    )
    panels = [first, second] if len(found) > 1 else [first]
    expected = "claimed" if _tests_claim(spec, study.primary.name) else "expected"
    rises = {"above": "rising over the levels", "below": "falling over the levels"}
    side = hypothesis.side if hypothesis.over is None or hypothesis.weights else rises[hypothesis.side]
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


def mean_path(paths: Sequence[KLPath]) -> list[tuple[float, float]]:
    """Returns the mean over worlds of root KL and value at each evaluation that all worlds have, in root KL."""
    return [
        (math.fsum(math.sqrt(kl) for kl, _ in each) / len(each), math.fsum(value for _, value in each) / len(each))
        for each in zip(*paths, strict=False)
    ]


def curves_picture(study: AtlasStudy, curves: Sequence[RowCurves]) -> Picture | None:
    """Returns gold and proxy rewards over the square root of KL of a complete study; None where no row has them."""
    if study.state is None or not any(one.gold for one in curves):
        return None
    spec, panels = study.state.spec, []
    rows = list(dict.fromkeys(one.row for one in curves))
    for cell in dict.fromkeys(one.cell for one in curves):
        for name, unit_ in (("proxy", "proxy reward"), ("gold", "true win rate over SFT, %")):
            series = []
            for one in (one for one in curves if one.cell == cell and one.gold):
                paths, slot = getattr(one, name), rows.index(one.row)
                for path in paths:
                    x, y = [math.sqrt(kl) for kl, _ in path], [value for _, value in path]
                    series.append(Series(one.row, x, y, style="thin", colour=slot))
                x, y = [x for x, _ in mean_path(paths)], [y for _, y in mean_path(paths)]
                series.append(Series(one.row, x, y, colour=slot))
            heights = [y for each in series for y in each.y] or [0.0]
            ends = [min(heights), max(heights)]
            series += [Series("compared KL", [math.sqrt(kl)] * 2, ends, style="guide") for kl in spec.kl_targets]
            if name == "gold":
                reach = max(x for each in series for x in each.x)
                series.append(Series("SFT model", [0.0, reach], [EVEN, EVEN], style="guide"))
            panels.append(Panel(f"{cell}: {name}", "√KL, √nats per response", unit_, series))
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
        word = finding.word if finding.word in ("confirmed", "contradicted", "equivalent", "undecided") else ""
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


def _numbers(study: AtlasStudy) -> Iterator[Any]:
    """Yields the tables behind the findings of a complete study."""
    assert study.state is not None
    spec, state = study.state.spec, study.state
    tables: list[Any] = []
    for metric in (spec.metric, *spec.shows):
        means = study.means(metric)
        rows = []
        for row in dict.fromkeys(row for row, _ in means):
            own = [means.get((row, cell)) for cell in spec.cells]
            rows.append(
                TableRow(
                    row,
                    tuple(
                        TableCell() if one is None else TableCell(mean_text(one), tip=one.reason or "") for one in own
                    ),
                )
            )
        tables.append(ShownTable(tuple(map(TableColumn, spec.cells)), tuple(rows), title=metric))
    yield Fold(f"Means of each row in each cell, 95 % intervals over {spec.worlds} worlds", tuple(tables))
    worlds = (
        [str(record["world"]), *(_world_text(spec, finding.values.get(index)) for finding in state.findings)]
        for index, record in state.records.items()
    )
    yield Fold("Values of all worlds", (simple_table(["world", *(one.name for one in state.findings)], worlds),))
    if study.at_kl:
        yield Fold(f"{spec.metric} at equal KL, nats per response", tuple(_at_equal_kl(study)))
    if tests := twin_tests(state):
        yield Fold("Rows against themselves", (simple_table(HEADINGS, (test.texts for test in tests)),))
    budgets = ([row, *budget.texts] for row, budget in study.budgets.items())
    yield Fold("Budgets of the rows", (simple_table(["row", *BUDGET_COLUMNS], budgets),))


def _world_text(spec: StudySpec, value: float | None) -> str:
    return "" if value is None else amount(spec, value)


def _at_equal_kl(study: AtlasStudy) -> Iterator[Any]:
    assert study.state is not None
    targets = study.state.spec.kl_targets
    lines = [study.at_kl[at : at + len(targets)] for at in range(0, len(study.at_kl), len(targets))]
    rows = (
        [f"{line[0].cell}, {line[0].row}", *("not reached" if one.value is None else one.text for one in line)]
        for line in lines
    )
    yield simple_table(["cell and row", *(f"{target:g}" for target in targets)], rows)
    if any(one.assumed for one in study.at_kl):
        yield Text(f"{ASSUMED}: {WHAT_IS_ASSUMED}", "key")
    if reasons := [f"{one.cell}, {one.row} at {one.target:g}: {one.reason}" for one in study.at_kl if one.reason]:
        yield Bullets(tuple(reasons))


def _design(spec: StudySpec) -> Fold:
    items = (f"{part.name}, {name}: {text}" for part in design_of(spec) for name, text in part.lines.items())
    return Fold("Design: levels, settings that are not tuned, weights of the cells", (Bullets(tuple(items)),))


def _runs(study: AtlasStudy) -> Iterator[Any]:
    if study.state is not None and study.state.notes:
        yield Bullets(tuple(study.state.notes), "caveat")
    if records := runs_of(study):
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
        summary = f"Runs: {len(records)} worlds, {study.core_hours:.1f} core-hours"
        yield Fold(summary, (ShownTable(columns, tuple(rows), "world"),))


def study_section(study: AtlasStudy) -> Section:
    """Returns a study: what it asks, its verdict, effects, caveats, and what they are made from."""
    parts: list[Any] = []
    if study.spec is not None:
        parts.append(Text(study.spec.asks))
        if (claim := study.spec.claim) is not None:
            own = study.of_claim
            verdict = "" if own is None or own.says is None else f" By this study: {own.word}."
            text = f"The paper ({label(claim.paper)}, {claim.stated.source}): {claim.stated.says}.{verdict}"
            parts.append(Text(text, "says"))
    if study.state is None:
        parts.append(Text(f"Refused: {study.problem}", "waiting"))
    elif study.primary is None:
        parts += [Text(f"{study.status}; no verdict before the last.", "waiting"), _design(study.state.spec)]
        parts += _runs(study)
    else:
        spec, primary = study.state.spec, study.primary
        word = primary.word if primary.word in ("confirmed", "contradicted") else ""
        mark = Markup('<b class="word {}">{}</b> {}').format(word, primary.word, sentence(spec, primary))
        curves = row_curves(spec, runs_of(study))
        pictures = (effects_picture(study), curves_picture(study, curves))
        parts += [Text(mark, "headline"), *(picture for picture in pictures if picture is not None)]
        if lost := tuple(f"{one.row} in {one.cell}: {one.problem}" for one in curves if one.problem):
            parts.append(Fold(f"Rows without curves over KL ({len(lost)})", (Bullets(lost, "caveat"),)))
        parts.append(findings_table(study.state))
        groups = caveat_groups(spec, study.state.findings)
        if groups:
            items = (f"{group.of}: {'; '.join(group.texts)}" for group in groups)
            parts.append(
                Fold(f"Caveats ({sum(len(group.texts) for group in groups)})", (Bullets(tuple(items), "caveat"),))
            )
        parts += [Text(FINDINGS_READING, "key"), *_numbers(study), _design(spec), *_runs(study)]
    return Section(study.title, f"study-{study.name}", tuple(parts), short=study.name)


def atlas_page(atlas: Atlas) -> ReportPage:
    """Returns the page of all studies."""
    total = atlas.total_count
    shown = [
        word
        for word in WORDS
        if word in ("confirmed", "contradicted", "equivalent", "undecided") or total.words.get(word)
    ]
    tiles = [(f"{total.asked} of {total.claims}", "claims of the five papers asked by a study", "")]
    tiles += [(str(total.words.get(word, 0)), word, word if total.words.get(word) else "") for word in shown]
    tiles.append((str(total.words.get(OPEN, 0)), "still open", ""))
    lead: list[Any] = [Tiles(tuple(tiles)), Text(READING)]
    if atlas.claims:
        rows = []
        for claim in atlas.claims:
            studies = tuple(
                link(f"#study-{one.study}", one.study)
                + f": {one.word} ({one.tested})"
                + (f"; differs: {one.claim.differs}" if one.claim.differs else "")
                for one in claim.studies
            )
            source = (f"{label(claim.paper)}, {claim.stated.source}",)
            mark = claim.word if claim.word in ("confirmed", "contradicted", "equivalent", "undecided") else ""
            rows.append(TableRow(claim.stated.says, (TableCell(claim.word, mark=mark), TableCell("", studies)), source))
        columns = (TableColumn("verdict", numeric=False), TableColumn("studies that name it", numeric=False))
        lead += [ShownTable(columns, tuple(rows), "claim"), Text(CLAIMS_READING, "key")]
    counts = (
        [label(one.paper), str(one.claims), str(one.asked), *(str(one.words.get(word, 0)) for word in (*WORDS, OPEN)),
         str(one.elsewhere)]
        for one in atlas.paper_counts
    )  # fmt: skip
    headings = ["paper", "claims", "asked", *WORDS, OPEN, "studies of other claims"]
    lead.append(Fold("Claims by paper", (simple_table(headings, counts),)))
    sections = [study_section(study) for study in atlas.studies]
    title = "When does each idea help, and by how much?"
    return ReportPage("Rewardsmith atlas", title, tuple(lead), tuple(sections), "Rewardsmith · atlas")


def write_atlas(root: Path, out: Path) -> Path:
    """Writes `<out>/atlas.html` and `<out>/atlas.md`, each whole or not at all; returns the page's path.

    Raises:
        DataError: there is no study.
    """
    return write_page(atlas_page(read_atlas(root)), out / "atlas.html", also=(out / "atlas.md",))
