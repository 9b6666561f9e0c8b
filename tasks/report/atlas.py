"""The atlas: every study with its findings over worlds, and the papers' claims that studies name, each with its verdict
over all its studies; one self-contained HTML page and Markdown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rlhf_core.errors import DataError, RewardsmithError
from rlhf_core.evaluation.worlds import over_worlds
from rlhf_core.published.paper_claims import stated_claims
from rlhf_core.published.printed_tables import PAPERS
from tasks.params.studies import FOLDER, Hypothesis, PaperClaim, StudySpec, read_study
from tasks.report.charts import panels_svg
from tasks.report.figure_data import Panel, Series
from tasks.report.page import Bullets, Fold, Picture, ReportPage, Section, Text, Tiles, label, link, write_page
from tasks.report.table import (
    VERDICTS,
    ShownTable,
    TableCell,
    TableColumn,
    TableRow,
    effect_text,
    format_number,
    p_text,
    simple_table,
)
from tasks.studies.equal_kl import EVEN, OVER_SFT, curve_problem, path_of
from tasks.studies.numbers import BUDGETS, measure, row_budgets, shown_values
from tasks.studies.records import record_file
from tasks.studies.verdicts import (
    OPEN,
    StudiedClaim,
    StudyFinding,
    StudyState,
    caveat_groups,
    claim_word,
    load_study,
    studied_claim,
)

#: The unit of rates in percent.
POINTS = "points"
PROXY, PROXY_OF_SFT = "proxy_reward", "proxy_reward_sft"
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


@dataclass(frozen=True)
class AtlasStudy:
    """A study as the atlas shows it.

    Attributes:
        name: of its file.
        spec: None where the file cannot be read.
        state: its records and findings; None where it is refused.
        problem: why it is refused.
    """

    name: str
    spec: StudySpec | None
    state: StudyState | None
    problem: str | None = None

    @property
    def primary(self) -> StudyFinding | None:
        """Returns the primary finding; None before the last registered world."""
        return self.state.findings[0] if self.state is not None and self.state.findings else None

    @property
    def claim(self) -> PaperClaim | None:
        """Returns the claim of a paper's file that it names; None where it names none or is refused."""
        return None if self.state is None else self.state.spec.claim

    @property
    def says(self) -> StudiedClaim | None:
        """Returns what it says of its claim; None before its last world."""
        return studied_claim(self.state) if self.state is not None and self.claim is not None else None

    @property
    def claim_word(self) -> str:
        """Returns the verdict on its claim by this study alone, how many worlds have run without one."""
        return claim_word([self.says]) if self.says is not None else self.state.progress if self.state else "refused"


def read_atlas(root: Path) -> list[AtlasStudy]:
    """Returns every study of a repository, complete ones first. A study that is refused has its problem.

    Raises:
        DataError: there is no study.
    """
    studies = [_study(root, file) for file in sorted((root / FOLDER).glob("*.yaml"), key=lambda file: file.stem)]
    if not studies:
        remedy = "Write studies/NAME.yaml, as studies.md of the documentation shows"
        raise DataError("there is no study", file=FOLDER.as_posix(), remedy=remedy)
    return sorted(studies, key=lambda study: study.primary is None)


def _study(root: Path, file: Path) -> AtlasStudy:
    spec = None
    try:
        spec = read_study(file)
        return AtlasStudy(file.stem, spec, load_study(root, file))
    except RewardsmithError as error:
        return AtlasStudy(file.stem, spec, None, str(error))


def asked_claims(studies: Iterable[AtlasStudy]) -> dict[tuple[str, str], list[AtlasStudy]]:
    """Returns the studies of each claim that studies name, by paper and id, in the order of the papers' files."""
    named: dict[tuple[str, str], list[AtlasStudy]] = {}
    for study in studies:
        if (claim := study.claim) is not None:
            named.setdefault((claim.paper, claim.id), []).append(study)
    order = [(paper, claim) for paper in PAPERS for claim in stated_claims(paper)]
    return {key: named[key] for key in order if key in named}


# --- findings in numbers


def unit(spec: StudySpec) -> str:
    """Returns the unit of a metric: points of a rate in percent, such as the average of tasks; else its name."""
    in_percent = any(part in spec.metric for part in ("win_rate", "accuracy")) or spec.metric == "average"
    return POINTS if in_percent else spec.metric


def _decimals(spec: StudySpec) -> int:
    return 1 if unit(spec) == POINTS else 3


def _measured(spec: StudySpec, hypothesis: Hypothesis) -> str:
    """Returns the quantity of a hypothesis, such as 'segment − bandit, per level of length'."""
    parts = [" − ".join(spec.compared(hypothesis))]
    parts += [f"per level of {hypothesis.over}"] if hypothesis.over is not None else []
    parts += [f"{dial} {at if isinstance(at, str) else ' and '.join(at)}" for dial, at in hypothesis.at.items()]
    return ", ".join(parts)


def _effect(spec: StudySpec, finding: StudyFinding) -> str:
    """Returns a finding's effect with its interval, or why there is none."""
    if finding.effect is None:
        return finding.why_no_effect or ""
    interval = finding.effect.interval()
    bounds = None if interval is None else (interval.lower, interval.upper)
    return effect_text(finding.effect.estimate, bounds, _decimals(spec))


def _test(spec: StudySpec, finding: StudyFinding) -> list[str]:
    """Returns a finding's p, and of an undecided one why it is not tested or which effects its worlds find."""
    if finding.effect is not None and finding.why_untested:
        return [finding.why_untested]
    tested = [] if finding.effect is None else [p_text(finding.p)]
    if finding.word == "undecided" and finding.sees is not None:
        tested.append(f"sees above {format_number(finding.sees, _decimals(spec))}")
    return tested


def finding_text(spec: StudySpec, finding: StudyFinding) -> str:
    """Returns a finding in one line: what was measured, its effect with interval and test, and over how many worlds."""
    if finding.effect is None:
        return f"{_measured(spec, finding.hypothesis)}: no effect is shown, {finding.why_no_effect}"
    facts = "; ".join((*_test(spec, finding), f"{finding.effect.worlds} worlds"))
    return f"{_measured(spec, finding.hypothesis)}: {_effect(spec, finding)} {unit(spec)} ({facts})"


def _tests_claim(spec: StudySpec, hypothesis: str) -> bool:
    """Returns whether a hypothesis is one of those by which its study counts for the paper's claim."""
    return spec.claim is not None and hypothesis in spec.claim.tested_by


def findings_table(state: StudyState) -> ShownTable:
    """Returns the hypotheses of a complete study: effect with interval, verdict, p and the smallest visible effect."""
    spec, rows = state.spec, []
    for finding in state.findings:
        claim = " · tests the paper's claim" if _tests_claim(spec, finding.name) else ""
        small = f"{finding.name}: {_measured(spec, finding.hypothesis)}{claim}"
        value = None if finding.effect is None else finding.effect.estimate
        size = TableCell(_effect(spec, finding), absent=value is None, value=value)
        verdict = TableCell(finding.word, notes=tuple(_test(spec, finding)), verdict=finding.word)
        rows.append(TableRow(finding.hypothesis.says, (size, verdict), (small,), main=finding.primary))
    columns = (TableColumn(f"effect, {unit(spec)}"), TableColumn("found", numeric=False))
    return ShownTable(columns, tuple(rows), "hypothesis")


def values_by_part(state: StudyState, hypothesis: Hypothesis) -> dict[str, dict[int, float]]:
    """Returns the difference of a hypothesis' rows at each level of its dial, or in each cell without one and in their
    mean, by world."""
    spec, (row, other) = state.spec, state.spec.compared(hypothesis)
    counted, dial = list(spec.weighted_cells(hypothesis)), hypothesis.over
    if dial is None:
        parts = {", ".join(spec.cells[name].values()): [name] for name in counted}
        parts |= {"mean of cells": counted} if len(counted) > 1 else {}
    else:
        levels = {level: [name for name in counted if spec.cells[name][dial] == level] for level in spec.dials[dial]}
        parts = {level: names for level, names in levels.items() if names}
    found = {}
    for part, cells in parts.items():
        one, two = (
            state.numbers.table(spec.metric, [(cell, name) for cell in cells]).mean(axis=1) for name in (row, other)
        )
        found[part] = dict(zip(state.numbers.worlds, map(float, one - two), strict=True))
    return found


# --- pictures


def _panel(title: str, spec: StudySpec, values: Mapping[str, Mapping[int, float]]) -> Panel:
    """Returns named effects with their intervals, and the values of single worlds."""
    effects = [over_worlds(own) for own in values.values()]
    halves = [0.0 if (own := one.interval()) is None else own.upper - one.estimate for one in effects]
    estimates, pairs = (
        [one.estimate for one in effects],
        [(v, name) for name, own in values.items() for v in own.values()],
    )
    means = Series("mean over worlds", estimates, [*values], [*halves], style="intervals", colour=0)
    worlds = Series("one world", [x for x, _ in pairs], [name for _, name in pairs], style="points", colour=0)
    none = Series("no difference", [0.0], [0], style="guide")
    return Panel(title, f"{unit(spec)} of {spec.metric}", "", [means, worlds, none])


def effects_picture(study: AtlasStudy) -> Picture | None:
    """Returns the primary hypothesis' difference at each level or in each cell, and the effects of all hypotheses, with
    their intervals and the values of single worlds; None without a number."""
    if study.state is None or study.primary is None or study.primary.effect is None:
        return None
    spec, hypothesis = study.state.spec, study.primary.hypothesis
    panels = [_panel(" − ".join(spec.compared(hypothesis)), spec, values_by_part(study.state, hypothesis))]
    found = {one.name: one.values for one in study.state.findings if one.effect is not None}
    panels += [_panel("All hypotheses", spec, found)] if len(found) > 1 else []
    caption = f"Means over {spec.worlds} worlds with 95 % intervals of one hypothesis alone."
    return Picture(panels_svg(f"{study.name}-effects", hypothesis.says, panels, columns=len(panels)), caption)


def curves_picture(study: AtlasStudy) -> Picture | None:
    """Returns proxy and gold rewards over the square root of KL, as Gao et al. (2023) draw over-optimisation; None
    where no row has them.

    A row is drawn in a cell where every world has its curve: a mean over the other worlds would choose among them.
    """
    if study.state is None or not study.state.spec.kl_targets or study.state.spec.metric != OVER_SFT:
        return None
    spec, panels = study.state.spec, []
    for cell, levels in spec.cells.items():
        proxy, gold = Panel(f"{cell}: proxy", "√KL", "proxy", []), Panel(f"{cell}: gold", "√KL", "true win rate, %", [])
        for slot, row in enumerate(spec.rows_of(levels)):
            runs = [record["cells"][cell]["rows"][row] for record in study.state.records.values()]
            if all(map(_has_curve, runs)):
                proxies = [path_of(run["curve"], PROXY, run["metrics"].get(PROXY_OF_SFT)) for run in runs]
                proxy.series += _paths(row, proxies, slot)
                gold.series += _paths(row, [path_of(run["curve"], OVER_SFT) for run in runs], slot)
        if gold.series:
            reach = max(x for series in gold.series for x in series.x)
            gold.series.append(Series("SFT model", [0.0, reach], [EVEN, EVEN], style="guide"))
            panels += [proxy, gold]
    if not panels:
        return None
    title = "Proxy reward and true win rate over the square root of KL"
    caption = (
        f"Over-optimisation: proxy reward (left) and true win rate over the SFT model (right) over the square root of "
        f"KL in nats. Thick: mean over {spec.worlds} worlds at each evaluation while training; thin: one world. A row "
        "is drawn where every world has its curve."
    )
    return Picture(panels_svg(f"{study.name}-kl", title, panels, columns=2), caption)


def _has_curve(run: Mapping[str, Any]) -> bool:
    return not {"stopped", "diverged"} & run.keys() and not any(
        curve_problem(run["curve"], metric) for metric in (OVER_SFT, PROXY)
    )


def _paths(row: str, paths: Sequence[Sequence[tuple[float, float]]], slot: int) -> Iterator[Series]:
    """Yields a row's ways over root KL: thin ones of single worlds, and the mean at each evaluation that all have."""
    ways = [[(math.sqrt(kl), value) for kl, value in path] for path in paths]
    columns = zip(*ways, strict=False)
    mean = [(math.fsum(x for x, _ in own) / len(own), math.fsum(y for _, y in own) / len(own)) for own in columns]
    for way in (*ways, mean):
        x, y = zip(*way, strict=True)
        yield Series(row, [*x], [*y], style="line" if way is mean else "thin", colour=slot)


# --- the page


def _numbers(state: StudyState) -> Iterator[Fold]:
    """Yields the tables behind the findings of a complete study."""
    spec, tables = state.spec, []
    for metric in (spec.metric, *spec.shows, *(measure(spec.metric, target) for target in spec.kl_targets)):
        shown = shown_values(spec, state.numbers, metric)
        cells = {place: _mean_text(*found) for place, found in shown.items()}
        names = dict.fromkeys(row for row, _ in shown)
        tables.append(
            simple_table(
                ["row", *spec.cells],
                ([row, *(cells.get((row, cell), "") for cell in spec.cells)] for row in names),
                metric,
            )
        )
    yield Fold(f"Means of each row in each cell, 95 % intervals over {spec.worlds} worlds", tables)
    budgets = ([row, *texts] for row, texts in row_budgets(spec, state.numbers, state.tuned).items())
    yield Fold("Budgets of the rows", (simple_table(["row", *BUDGETS], budgets),))


def _mean_text(values: Mapping[int, float], missing: int) -> str:
    """Returns a mean over worlds with its interval, or that worlds have no number."""
    if missing:
        return f"{missing} of {len(values) + missing} worlds have no number"
    effect = over_worlds(values)
    bounds = "" if (own := effect.interval()) is None else f" [{own.lower:.1f}, {own.upper:.1f}]".replace("-", "−")
    return f"{format_number(effect.estimate, 1)}{bounds}"


def _runs(name: str, state: StudyState) -> Iterator[Any]:
    if state.notes:
        yield Bullets(state.notes, "caveat")
    if state.records:
        rows = [
            [str(one["world"]), one["commit"][:10], one["digest"][:12], record_file(name, one["world"]).as_posix()]
            for one in state.records.values()
        ]
        table = simple_table(["world", "commit", "digest of the study", "record"], rows)
        yield Fold(f"Runs: {len(rows)} worlds, {state.numbers.core_hours:.1f} core-hours", (table,))


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
        parts.append(Text(f"{study.state.progress}; no verdict before the last.", "waiting"))
        parts += _runs(study.name, study.state)
    else:
        spec, primary = study.state.spec, study.primary
        word = Markup('<b class="word {0}">{0}</b> {1}').format(primary.word, finding_text(spec, primary))
        pictures = (effects_picture(study), curves_picture(study))
        parts += [Text(word, "headline"), *(picture for picture in pictures if picture is not None)]
        parts.append(findings_table(study.state))
        if groups := caveat_groups(spec, study.state.findings):
            items = [f"{pairs}: {'; '.join(texts)}" for pairs, texts in groups.items()]
            parts.append(Fold(f"Caveats ({sum(map(len, groups.values()))})", (Bullets(items, "caveat"),)))
        parts += [Text(FINDINGS_READING, "key"), *_numbers(study.state), *_runs(study.name, study.state)]
    title = study.name if study.spec is None else study.spec.title
    return Section(title, f"study-{study.name}", parts, short=study.name)


def _claim_row(paper: str, claim: str, studies: Sequence[AtlasStudy]) -> TableRow:
    """Returns a claim's verdict over all studies that name it, and what each says."""
    stated, texts = stated_claims(paper)[claim], []
    for study in studies:
        assert study.state is not None
        assert study.claim is not None
        whole = len(study.state.spec.tested_as_stated(study.claim))
        tested = f"{whole} of {len(stated.pairs) + stated.others} comparisons as stated"
        differs = f"; differs: {study.claim.differs}" if study.claim.differs else ""
        texts.append(link(f"#study-{study.name}", study.name) + f": {study.claim_word} ({tested}){differs}")
    word = claim_word([study.says for study in studies])
    cells = (TableCell(word, verdict=word), TableCell(notes=tuple(texts)))
    return TableRow(stated.says, cells, (f"{label(paper)}, {stated.source}",))


def atlas_page(studies: Sequence[AtlasStudy]) -> ReportPage:
    """Returns the page of all studies."""
    claims = [_claim_row(*key, named) for key, named in asked_claims(studies).items()]
    words = Counter(row.cells[0].text for row in claims)
    every = sum(len(stated_claims(paper)) for paper in PAPERS)
    named = dict.fromkeys((*VERDICTS, *(word for word in words if word != OPEN)))
    tiles = [(f"{len(claims)} of {every}", "claims of the five papers asked by a study", "")]
    tiles += [(str(words[word]), word, word if words[word] else "") for word in named]
    lead: list[Any] = [Tiles([*tiles, (str(words[OPEN]), "still open", "")]), Text(READING)]
    if claims:
        columns = (TableColumn("verdict", numeric=False), TableColumn("studies that name it", numeric=False))
        lead += [ShownTable(columns, tuple(claims), "claim"), Text(CLAIMS_READING, "key")]
    title = "When does each idea help, and by how much?"
    return ReportPage("Rewardsmith atlas", title, lead, [*map(study_section, studies)], "Rewardsmith · atlas")


def write_atlas(root: Path, out: Path) -> Path:
    """Writes `<out>/atlas.html` and `<out>/atlas.md`, each whole or not at all; returns the page's path.

    Raises:
        DataError: there is no study.
    """
    return write_page(atlas_page(read_atlas(root)), out / "atlas.html", also=(out / "atlas.md",))
