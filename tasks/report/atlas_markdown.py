"""The atlas as Markdown: findings, budgets and runs for a reader without the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tasks.params.studies import StudySpec
from tasks.report.atlas import WORDS, Atlas, AtlasStudy, runs_of
from tasks.report.atlas_claims import PaperCount
from tasks.report.atlas_words import amount, interval_text, mean_text, measured, sentence, tested_p, unit
from tasks.report.markdown import escape
from tasks.report.page import label
from tasks.studies.frame import BUDGET_COLUMNS
from tasks.studies.plan import design_of
from tasks.studies.registration import record_file
from tasks.studies.tuned import has_tuned_settings
from tasks.studies.twins import HEADINGS, twin_tests
from tasks.studies.verdicts import OPEN, StudyState, caveat_groups

#: Mark of a mean in a cell in which its row was tuned.
TUNED = "†"
NO_VERDICT_BEFORE_THE_LAST = "no verdict before the last"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table, and an empty one below it."""
    lines = ["| " + " | ".join(escape(cell) for cell in line) + " |" for line in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:], ""]


def claims_sentence(total: PaperCount) -> str:
    """Returns in a sentence how many of the papers' claims a study asks, and how many have each verdict."""
    found = [f"{total.words[word]} {word}" for word in (*WORDS, OPEN) if total.words.get(word)]
    said = f"The five papers make {total.claims} claims; studies ask {total.asked} of them"
    return f"{said}: {', '.join(found)}." if found else f"{said}."


def render(atlas: Atlas) -> str:
    """Returns the atlas as Markdown."""
    lines = ["# Atlas", "", claims_sentence(atlas.total_count), ""]
    head = ["paper", "claims", "asked", *WORDS, OPEN, "studies of other claims"]
    rows = [
        [label(one.paper), str(one.claims), str(one.asked), *(str(one.words.get(word, 0)) for word in (*WORDS, OPEN)),
         str(one.elsewhere)]
        for one in atlas.paper_counts
    ]  # fmt: skip
    lines += table(head, rows)
    head = ["claim", "verdict", "study", "of this study", "tested", "differs"]
    asked = []
    for claim in atlas.claims:
        said = f"{claim.stated.says} ({label(claim.paper)}, {claim.stated.source})"
        for one in claim.studies:
            asked.append([said, claim.word, one.study, one.word, one.tested, one.claim.differs or ""])
    lines += table(head, asked) if asked else []
    for study in atlas.studies:
        lines += _study(study)
    return "\n".join(lines)


def finding_rows(state: StudyState) -> tuple[list[str], list[list[str]]]:
    """Returns the head and the rows of the table of a complete study's hypotheses."""
    spec = state.spec
    head = ["hypothesis", f"effect, {unit(spec)} (95 % interval)", "found (smallest visible effect)"]
    rows = []
    for finding in state.findings:
        effect, p = finding.effect, tested_p(finding)
        size = "" if effect is None else amount(spec, effect.estimate)
        size += f" ({interval})" if effect is not None and (interval := interval_text(spec, effect)) else ""
        word = finding.word + ("" if finding.sees is None else f" ({amount(spec, finding.sees, sign=False)})")
        says = f"{finding.hypothesis.says} ({measured(spec, finding.hypothesis)})"
        rows.append([says, size, f"{word}, {p}" if p else word])
    return head, rows


def means_table(study: AtlasStudy) -> list[str]:
    """Returns the lines of the table of a complete study's metric and KL, means over worlds by row and cell.

    Cells in which a row was tuned are marked; rows and cells without a mean are left out.
    """
    assert study.state is not None
    spec, rates, nats = study.state.spec, study.means(study.state.spec.metric), study.means("kl")
    tuned = study.state.tuned
    found: dict[str, dict[str, str]] = {}
    for (row, cell), rate in rates.items():
        if rate.effect is not None:
            is_tuned = row in tuned and has_tuned_settings(spec, tuned[row]) and cell in spec.tuning_cells(row)
            said = amount(spec, rate.effect.estimate, sign=False) + (TUNED if is_tuned else "")
            kl = nats.get((row, cell))
            said += "" if kl is None or kl.effect is None else f"/{kl.effect.estimate:.1f}"
            found.setdefault(row, {})[cell] = said
    cells = [cell for cell in spec.cells if any(cell in own for own in found.values())]
    rows = [[row, *(found[row].get(cell, "") for cell in cells)] for row in spec.rows if row in found]
    marked = f" ({TUNED} tuned)" if any(TUNED in text for line in rows for text in line) else ""
    return table([f"{spec.metric}/KL{marked}", *cells], rows) if rows else []


def caveat_lines(state: StudyState) -> list[str]:
    """Returns the caveats of a complete study as a list by comparison."""
    groups = caveat_groups(state.spec, state.findings)
    return [f"- {escape(group.of)}: {escape('; '.join(group.texts))}" for group in groups]


def twins_table(state: StudyState) -> list[str]:
    """Returns the lines of the table of a complete study of twins; none of another study."""
    tests = twin_tests(state)
    return table(HEADINGS, (test.texts for test in tests)) if tests else []


def _study(study: AtlasStudy) -> list[str]:
    lines = [f"## {escape(study.title)}", ""]
    if study.spec is not None:
        lines += [escape(study.spec.asks), ""]
        if (claim := study.spec.claim) is not None:
            said = claim.stated
            lines += [f"The paper ({label(claim.paper)}, {escape(said.source)}): {escape(said.says)}", ""]
    if study.state is None:
        return [*lines, f"Refused: {escape(study.problem or '')}", ""]
    spec = study.state.spec
    if study.primary is None:
        return [*lines, f"{study.status}; {NO_VERDICT_BEFORE_THE_LAST}.", "", *_design(spec), *_runs(study)]
    lines += [f"**{study.primary.word}**: {escape(sentence(spec, study.primary))}", ""]
    lines += table(*finding_rows(study.state)) + twins_table(study.state)
    lines += [
        f"- {escape(finding.hypothesis.says)}: {escape(finding.why_no_effect)}"
        for finding in study.state.findings
        if finding.why_no_effect is not None
    ]
    lines += caveat_lines(study.state)
    worlds = [
        [str(record["world"]), *(_world_text(spec, one.values.get(index)) for one in study.state.findings)]
        for index, record in study.state.records.items()
    ]
    lines += ["", "Values of all worlds:", "", *table(["world", *(one.name for one in study.state.findings)], worlds)]
    budgets = [[row, *one.texts] for row, one in study.budgets.items()]
    lines += ["", "Budgets:", "", *table(["row", *BUDGET_COLUMNS], budgets)]
    for metric in spec.shows:
        lines += _means(study, metric)
    return [*lines, *_design(spec), *_runs(study)]


def _world_text(spec: StudySpec, value: float | None) -> str:
    return "" if value is None else amount(spec, value)


def _means(study: AtlasStudy, metric: str) -> list[str]:
    """Returns the mean of a metric over worlds, by row and cell."""
    assert study.spec is not None
    means = study.means(metric)
    rows = []
    for row in dict.fromkeys(row for row, _ in means):
        own = [means.get((row, cell)) for cell in study.spec.cells]
        rows.append([row, *("" if one is None else mean_text(one) for one in own)])
    return [f"Means of {escape(metric)}:", "", *table(["row", *study.spec.cells], rows)]


def _design(spec: StudySpec) -> list[str]:
    lines = ["Design:", ""]
    for part in design_of(spec):
        lines += [f"- {escape(part.name)}, {escape(name)}: {escape(said)}" for name, said in part.lines.items()]
    return [*lines, ""]


def _runs(study: AtlasStudy) -> list[str]:
    lines = [] if study.state is None else [f"- {escape(note)}" for note in study.state.notes]
    rows = [
        [str(one["world"]), one["commit"][:10], one["digest"][:12], record_file(study.name, one["world"]).as_posix()]
        for one in runs_of(study)
    ]
    return [*lines, *(["", *table(["world", "commit", "digest of the study", "record"], rows)] if rows else []), ""]
