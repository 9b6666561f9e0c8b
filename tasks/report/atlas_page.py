"""The atlas as one self-contained HTML page and as Markdown: studies, their findings over worlds, caveats and runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rlhf_core.evaluation.worlds import over_worlds
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
from tasks.report.figure_data import Panel, Series
from tasks.report.page import Bullets, Fold, Picture, ReportPage, Section, Text, Tiles, link, write_page
from tasks.report.report_page import label
from tasks.report.table import MARKS, ShownTable, TableCell, TableColumn, TableRow, simple_table
from tasks.studies.equal_kl import EVEN, OVER_SFT, curve_problem, path_of
from tasks.studies.frame import BUDGETS, compared, core_hours, measure, row_budgets, shown_values
from tasks.studies.records import record_file
from tasks.studies.verdicts import OPEN, StudyState, caveat_groups

PROXY, PROXY_OF_SFT = "proxy_reward", "proxy_reward_sft"
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


def values_by_part(state: StudyState, hypothesis: Hypothesis) -> dict[str, dict[int, float]]:
    """Returns the difference of a hypothesis' rows at each level of its dial, or in each cell without one and in their
    mean, by world."""
    spec, (row, other) = state.spec, compared(state.spec, hypothesis)
    counted, dial = list(spec.weighted_cells(hypothesis)), hypothesis.over
    if dial is None:
        parts = {", ".join(spec.cells[name].values()): [name] for name in counted}
        parts |= {"mean of cells": counted} if len(counted) > 1 else {}
    else:
        levels = {level: [name for name in counted if spec.cells[name][dial] == level] for level in spec.dials[dial]}
        parts = {level: names for level, names in levels.items() if names}
    metric, found = measure(spec.metric, hypothesis.kl), {}
    for label_, cells in parts.items():
        one, two = (state.ends.table(metric, [(cell, name) for cell in cells]).mean(axis=1) for name in (row, other))
        found[label_] = dict(zip(state.ends.worlds, map(float, one - two), strict=True))
    return found


def _background(spec: StudySpec) -> list[Series]:
    """Returns the line of no difference, and the band of differences that count as none."""
    series = [Series("no difference", [0.0], [0], style="guide")]
    if spec.margin:
        name = f"within ±{spec.margin:g} counts as none"
        series.append(Series(name, [-spec.margin, spec.margin], [0, 0], style="band"))
    return series


def _panel(title: str, spec: StudySpec, values: Mapping[str, Mapping[int, float]]) -> Panel:
    """Returns named effects with their intervals, and the values of single worlds."""
    effects = [over_worlds(own) for own in values.values()]
    intervals = [effect.interval() for effect in effects]
    halves = [0.0 if one is None else one.upper - one.estimate for one in intervals]
    means = Series(MEAN, [one.estimate for one in effects], [*values], [*halves], style="intervals", colour=0)
    pairs = [(value, name) for name, own in values.items() for value in own.values()]
    worlds = Series("one world", [x for x, _ in pairs], [name for _, name in pairs], style="points", colour=0)
    return Panel(title, f"{unit(spec)} of {spec.metric}", "", [means, worlds, *_background(spec)])


def effects_picture(study: AtlasStudy) -> Picture | None:
    """Returns the primary hypothesis' difference at each level or in each cell, and the effects of all hypotheses, with
    their intervals and the values of single worlds; None without a number."""
    if study.state is None or study.primary is None or study.primary.effect is None:
        return None
    spec, hypothesis = study.state.spec, study.primary.hypothesis
    row, other = compared(spec, hypothesis)
    panels = [_panel(f"{row} − {other}", spec, values_by_part(study.state, hypothesis))]
    found = {one.name: one.values for one in study.state.findings if one.effect is not None}
    if len(found) > 1:
        panels.append(_panel("All hypotheses", spec, found))
    expected = "claimed" if _tests_claim(spec, study.primary.name) else "expected"
    rises = {"above": "rising over the levels", "below": "falling over the levels"}
    side = hypothesis.side if hypothesis.over is None else rises[hypothesis.side]
    caption = (
        f"Means over {spec.worlds} worlds with 95 % intervals of one hypothesis alone; {expected} of the first: {side}."
    )
    return Picture(panels_svg(f"{study.name}-effects", hypothesis.says, panels, columns=len(panels)), caption)


def _tests_claim(spec: StudySpec, hypothesis: str) -> bool:
    """Returns whether a hypothesis is one of those by which its study counts for the paper's claim."""
    return spec.claim is not None and hypothesis in spec.claim.tested_by


def curves_picture(study: AtlasStudy) -> Picture | None:
    """Returns proxy and gold rewards over the square root of KL, as Gao et al. (2023) draw over-optimisation; None
    where no row has them.

    A row is drawn in a cell where every world has its curve: a mean over the other worlds would choose among them.
    """
    if study.state is None or not study.state.spec.kl_targets or study.state.spec.metric != OVER_SFT:
        return None
    spec, panels, left = study.state.spec, [], []
    for cell, levels in spec.cells.items():
        proxy, gold = Panel(f"{cell}: proxy", "√KL", "proxy", []), Panel(f"{cell}: gold", "√KL", "true win rate, %", [])
        for slot, row in enumerate(spec.rows):
            runs = [record["cells"][cell]["rows"][row] for record in study.records if row in spec.rows_of(levels)]
            if any(map(_has_no_curve, runs)):
                left.append(f"{row} in {cell}")
            elif runs:
                paths = [path_of(run["curve"], PROXY, run["metrics"].get(PROXY_OF_SFT)) for run in runs]
                proxy.series += _paths(row, paths, slot)
                gold.series += _paths(row, [path_of(run["curve"], OVER_SFT) for run in runs], slot)
        for panel in (proxy, gold) if proxy.series else ():
            heights = [y for series in panel.series for y in series.y]
            ends = [min(heights), max(heights)]
            panel.series += [Series("compared KL", [math.sqrt(kl)] * 2, ends, style="guide") for kl in spec.kl_targets]
            panels.append(panel)
        if gold.series:
            reach = max(x for series in gold.series for x in series.x)
            gold.series.append(Series("SFT model", [0.0, reach], [EVEN, EVEN], style="guide"))
    if not panels:
        return None
    title = "Proxy reward and true win rate over the square root of KL"
    caption = (
        f"Over-optimisation: proxy reward (left) and true win rate over the SFT model (right) over the square root of "
        f"KL in nats. Thick: mean over {spec.worlds} worlds at each evaluation while training; thin: one world."
    )
    missing = f" Some world has no curve: {', '.join(left)}." if left else ""
    return Picture(panels_svg(f"{study.name}-kl", title, panels, columns=2), caption + missing)


def _has_no_curve(run: Mapping[str, Any]) -> bool:
    return bool({"stopped", "diverged"} & run.keys()) or any(
        curve_problem(run["curve"], metric) is not None for metric in (OVER_SFT, PROXY)
    )


def _paths(row: str, paths: Sequence[Sequence[tuple[float, float]]], slot: int) -> Iterator[Series]:
    """Yields a row's ways over root KL: thin ones of single worlds, and the mean at each evaluation that all have."""
    ways = [[(math.sqrt(kl), value) for kl, value in path] for path in paths]
    columns = zip(*ways, strict=False)
    mean = [(math.fsum(x for x, _ in own) / len(own), math.fsum(y for _, y in own) / len(own)) for own in columns]
    for way in (*ways, mean):
        x, y = [point[0] for point in way], [point[1] for point in way]
        yield Series(row, x, y, style="line" if way is mean else "thin", colour=slot)


def findings_table(state: StudyState) -> ShownTable:
    """Returns the hypotheses of a complete study: effect with interval, verdict, p and the smallest visible effect."""
    spec, rows = state.spec, []
    for finding in state.findings:
        claim = " · tests the paper's claim" if _tests_claim(spec, finding.name) else ""
        small = (f"{finding.name}: {measured(spec, finding.hypothesis)}{claim}",)
        effect, lines = finding.effect, [tested_p(finding)]
        size = TableCell(finding.why_no_effect or "", absent=True)
        if effect is not None:
            interval = interval_text(spec, effect) or effect.reason or ""
            size = TableCell(amount(spec, effect.estimate), (interval,), value=effect.estimate)
        if finding.word == "undecided" and finding.held_back:
            lines = [finding.why_untested or ""]
        elif finding.word == "undecided" and finding.sees is not None:
            lines.append(f"sees above {amount(spec, finding.sees, sign=False)}")
        verdict = TableCell(finding.word, tuple(lines), mark=finding.word if finding.word in MARKS else "")
        rows.append(TableRow(finding.hypothesis.says, (size, verdict), small, main=finding.primary))
    columns = (TableColumn(f"effect, {unit(spec)}"), TableColumn("found", numeric=False))
    return ShownTable(columns, tuple(rows), "hypothesis")


def _numbers(state: StudyState) -> Iterator[Fold]:
    """Yields the tables behind the findings of a complete study."""
    spec = state.spec
    tables: list[Any] = []
    for metric in (spec.metric, *spec.shows, *(measure(spec.metric, target) for target in spec.kl_targets)):
        shown = shown_values(spec, state.ends, metric)
        cells = {place: _mean_text(*found) for place, found in shown.items()}
        names = dict.fromkeys(row for row, _ in shown)
        rows = ([row, *(cells.get((row, cell), "") for cell in spec.cells)] for row in names)
        tables.append(simple_table(["row", *spec.cells], rows, metric))
    yield Fold(f"Means of each row in each cell, 95 % intervals over {spec.worlds} worlds", tables)
    known = [{world: amount(spec, value) for world, value in finding.values.items()} for finding in state.findings]
    lines = ([str(world), *(own.get(world, "") for own in known)] for world in state.records)
    budgets = ([row, *texts] for row, texts in row_budgets(spec, state.frame, state.tuned).items())
    yield Fold("Budgets of the rows", (simple_table(["row", *BUDGETS], budgets),))
    headings = ["world", *(finding.name for finding in state.findings)]
    yield Fold("Values of all worlds", (simple_table(headings, lines),))


def _mean_text(values: Mapping[int, float], missing: int) -> str:
    """Returns a mean over worlds with its interval, or that worlds have no number."""
    if missing:
        return f"{missing} of {len(values) + missing} worlds have no number"
    effect = over_worlds(values)
    interval = effect.interval()
    bounds = "" if interval is None else f" [{interval.lower:.1f}, {interval.upper:.1f}]"
    return f"{effect.estimate:.1f}{bounds}"


def _runs(study: AtlasStudy, state: StudyState) -> Iterator[Any]:
    if state.notes:
        yield Bullets(state.notes, "caveat")
    if study.records:
        found = ((one["world"], one["commit"][:10], one["digest"][:12]) for one in study.records)
        rows = ([*map(str, own), record_file(study.name, own[0]).as_posix()] for own in found)
        table = simple_table(["world", "commit", "digest of the study", "record"], rows)
        yield Fold(f"Runs: {len(study.records)} worlds, {core_hours(state.frame):.1f} core-hours", (table,))


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
        parts += [Text(f"{study.state.progress}; no verdict before the last.", "waiting"), *_runs(study, study.state)]
    else:
        spec, primary = study.state.spec, study.primary
        word = primary.word if primary.word in ("confirmed", "contradicted") else ""
        mark = Markup('<b class="word {}">{}</b> {}').format(word, primary.word, sentence(spec, primary))
        pictures = (effects_picture(study), curves_picture(study))
        parts += [Text(mark, "headline"), *(picture for picture in pictures if picture is not None)]
        parts.append(findings_table(study.state))
        if groups := caveat_groups(spec, study.state.findings):
            items = [f"{pairs}: {'; '.join(texts)}" for pairs, texts in groups.items()]
            parts.append(Fold(f"Caveats ({sum(map(len, groups.values()))})", (Bullets(items, "caveat"),)))
        parts += [Text(FINDINGS_READING, "key"), *_numbers(study.state), *_runs(study, study.state)]
    return Section(study.title, f"study-{study.name}", parts, short=study.name)


def _claim_row(claim: AskedClaim) -> TableRow:
    """Returns a claim's verdict over all studies that name it, and what each says."""
    studies = tuple(
        link(f"#study-{one.name}", one.name)
        + f": {one.claim_word} ({one.tested})"
        + (f"; differs: {one.claim.differs}" if one.claim and one.claim.differs else "")
        for one in claim.studies
    )
    verdict = TableCell(claim.word, mark=claim.word if claim.word in MARKS else "")
    source = f"{label(claim.paper)}, {claim.stated.source}"
    return TableRow(claim.stated.says, (verdict, TableCell("", studies)), (source,))


def atlas_page(studies: Sequence[AtlasStudy]) -> ReportPage:
    """Returns the page of all studies."""
    claims = asked_claims(studies)
    words = Counter(claim.word for claim in claims)
    every = sum(len(stated_claims(paper)) for paper in PAPERS)
    tiles = [(f"{len(claims)} of {every}", "claims of the five papers asked by a study", "")]
    shown = (word for word in WORDS if word in MARKS or words[word])
    tiles += [(str(words[word]), word, word if words[word] else "") for word in shown]
    lead: list[Any] = [Tiles([*tiles, (str(words[OPEN]), "still open", "")]), Text(READING)]
    if claims:
        columns = (TableColumn("verdict", numeric=False), TableColumn("studies that name it", numeric=False))
        lead += [ShownTable(columns, tuple(map(_claim_row, claims)), "claim"), Text(CLAIMS_READING, "key")]
    title = "When does each idea help, and by how much?"
    return ReportPage("Rewardsmith atlas", title, lead, [*map(study_section, studies)], "Rewardsmith · atlas")


def write_atlas(root: Path, out: Path) -> Path:
    """Writes `<out>/atlas.html` and `<out>/atlas.md`, each whole or not at all; returns the page's path.

    Raises:
        DataError: there is no study.
    """
    return write_page(atlas_page(read_atlas(root)), out / "atlas.html", also=(out / "atlas.md",))
