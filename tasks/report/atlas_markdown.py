"""The atlas as Markdown: findings, budgets and runs for a reader without the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tasks.report.atlas import OPEN, WORDS, Atlas, AtlasStudy, PaperCount, runs_of
from tasks.report.atlas_words import amount, interval_text, measured, sentence, unit
from tasks.report.markdown import escape
from tasks.report.page import label, p_value
from tasks.studies.budgets import BUDGET_COLUMNS
from tasks.studies.registration import record_file

NO_VERDICT = "no verdict is shown before the last"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(escape(cell) for cell in line) + " |" for line in lines] + [""]


def counts_sentence(total: PaperCount) -> str:
    """Returns how many claims of the papers were asked, and what studies of them found."""
    found = [f"{total.words[word]} {word}" for word in (*WORDS, OPEN) if total.words.get(word)]
    said = f"The five papers make {total.claims} claims; studies ask {total.asked} of them"
    return f"{said}: {', '.join(found)}." if found else f"{said}."


def render(atlas: Atlas) -> str:
    """Returns the atlas as Markdown."""
    lines = ["# Atlas", "", counts_sentence(atlas.total), ""]
    head = ["paper", "claims", "asked", *WORDS, OPEN, "studies of other claims"]
    rows = [
        [label(one.paper), str(one.claims), str(one.asked), *(str(one.words.get(word, 0)) for word in (*WORDS, OPEN)),
         str(one.elsewhere)]
        for one in atlas.papers
    ]  # fmt: skip
    lines += _table(head, rows)
    for study in atlas.studies:
        lines += _study(study)
    return "\n".join(lines)


def _study(study: AtlasStudy) -> list[str]:
    lines = [f"## {escape(study.title)}", ""]
    if study.spec is not None:
        lines += [escape(study.spec.asks), ""]
        if (claim := study.spec.claim) is not None:
            lines += [f"The paper ({label(claim.paper)}, {escape(claim.source)}): {escape(claim.says)}", ""]
    if study.state is None:
        return [*lines, f"Refused: {escape(study.problem or '')}", ""]
    if study.primary is None:
        return [*lines, f"{study.status}; {NO_VERDICT}.", "", *_runs(study)]
    spec = study.state.spec
    lines += [f"**{study.primary.word}**: {escape(sentence(spec, study.primary))}", ""]
    head = ["hypothesis", f"effect, {unit(spec)}", "95 % interval", "p", "found", "smallest visible effect"]
    rows = []
    for finding in study.state.findings:
        effect = finding.effect
        numbers = ["", ""] if effect is None else [amount(spec, effect.estimate), interval_text(spec, effect)]
        sees = "" if finding.sees is None else amount(spec, finding.sees, sign=False)
        says = f"{finding.hypothesis.says} ({measured(spec, finding.hypothesis)})"
        rows.append([says, *numbers, p_value(finding.p), finding.word, sees])
    lines += _table(head, rows)
    for finding in study.state.findings:
        notes = ((finding.refused,) if finding.refused else ()) + finding.caveats
        lines += [f"- {escape(finding.hypothesis.says)}: {escape(note)}" for note in notes]
    budgets = [[row, *one.texts] for row, one in study.budgets.items()]
    lines += ["", "Budgets:", "", *_table(["row", *BUDGET_COLUMNS], budgets)]
    return lines + _runs(study)


def _runs(study: AtlasStudy) -> list[str]:
    lines = [f"Not used, since it is not a world of this study: {file.as_posix()}" for file in study.unused]
    rows = [
        [str(one["world"]), one["commit"][:10], one["digest"][:12], record_file(study.name, one["world"]).as_posix()]
        for one in runs_of(study)
    ]
    return [*lines, *(["", *_table(["world", "commit", "digest of the study", "record"], rows)] if rows else []), ""]
