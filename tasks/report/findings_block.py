"""Findings of studies as blocks of documents, made from records and never typed.

A document holds `<!-- findings: NAME -->` and `<!-- end of findings -->`. NAME is a paper, whose studies are then shown
with all hypotheses and caveats, or `all`: every study on one line, which leads to its paper's page.

A finding's word, such as *confirmed*, is a verdict, or *open* where there is none (`docs/vocabulary.md`). A finding is
decided unless it is *undecided*. A study is refused if its file is not committed as it is or a record cannot be read.

Numbers of finished runs, `<!-- measured: NAME -->`, are rendered with them (`measured_block`).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_core.errors import DataError, hint
from tasks.params.yaml_files import write_whole
from tasks.report.atlas import Atlas, AtlasStudy, read_atlas
from tasks.report.atlas_claims import AskedClaim
from tasks.report.atlas_markdown import (
    NO_VERDICT_BEFORE_THE_LAST,
    caveat_lines,
    claims_sentence,
    finding_rows,
    means_table,
    table,
    twins_table,
)
from tasks.report.atlas_words import sentence
from tasks.report.measured_block import with_measured
from tasks.report.page import label
from tasks.studies.twins import REFERENCE_WORLDS, TwinTest, twin_tests
from tasks.studies.verdicts import OPEN, StudyFinding, StudyState, caveat_groups

ALL = "all"
BLOCK = re.compile(r"(<!-- findings: (?P<name>[a-z]+) -->\n).*?(<!-- end of findings -->)", re.DOTALL)
WIDTH = 120
#: Words of findings in the order of a page of all studies: what was not confirmed comes first, unfinished ones last.
ORDER = (
    "contradicted", "broken", "equivalent", "undecided", "over a broken baseline", "confirmed", OPEN,
)  # fmt: skip


def write_blocks(root: Path, folder: Path) -> list[Path]:
    """Renders the blocks of a folder's documents, and those of `measured_block`; returns the documents that changed.

    Raises:
        DataError: there is no study, a block names neither a paper nor `all`, or a reference is missing.
    """
    atlas, changed = read_atlas(root), []
    for document in sorted(folder.glob("*.md")):
        text = document.read_text(encoding="utf-8")
        if (made := with_measured(root, with_blocks(atlas, text, document), document)) != text:
            write_whole(document, made)
            changed.append(document)
    return changed


def with_blocks(atlas: Atlas, text: str, document: Path) -> str:
    """Returns the text of a document with its blocks rendered from the atlas.

    Raises:
        DataError: a block names neither a paper nor `all`.
    """
    names = [ALL, *(one.paper for one in atlas.paper_counts)]

    def rendered(block: re.Match[str]) -> str:
        if (name := block["name"]) not in names:
            remedy = f"Name one of {', '.join(names)}"
            raise DataError(f"findings of '{name}'{hint(name, names)}", file=document.as_posix(), remedy=remedy)
        return f"{block[1]}\n{block_of(atlas, name)}\n{block[3]}"

    return BLOCK.sub(rendered, text)


def block_of(atlas: Atlas, name: str) -> str:
    """Returns the findings of the studies of a paper, or of all studies below the count of claims."""
    if name == ALL:
        return _all_studies(atlas)
    claims = {(claim.paper, claim.id): claim for claim in atlas.claims}
    parts = [_study(study, claims) for study in atlas.studies if _paper(study) == name]
    return "\n\n".join(parts).strip() + "\n"


def _all_studies(atlas: Atlas) -> str:
    """Returns the count of claims and one line for each study, null and negative findings first, with A/A tables."""
    shown = sorted(atlas.studies, key=lambda study: ORDER.index(study.word))
    head = f"{claims_sentence(atlas.total_count)} In brackets: 95 % intervals, p, worlds."
    parts = [_filled(head), "\n".join(_item(_line(study)) for study in shown)]
    for study in shown:
        if study.state is not None and (lines := twins_table(study.state)):
            parts.append("\n".join([f"**{study.title}**, each metric:", "", *lines]).strip())
    return "\n\n".join(parts) + "\n"


def _line(study: AtlasStudy) -> str:
    """Returns the decided findings of a study in sentences, and how many undecided ones and caveats it has."""
    if study.state is None or study.primary is None:
        return _said(study)
    paper = _paper(study)
    place = f"`studies/{study.name}.yaml`" if paper is None else f"[{label(paper)}]({paper}.md)"
    parts = [f"**{study.title}** ({place}, {study.core_hours:.1f} core-hours): {_found(study.state)}"]
    if tests := twin_tests(study.state):
        parts.append(twins_sentence(tests))
    undecided = sum(finding.word == "undecided" for finding in study.state.findings[1:])
    counts = [f"{undecided} undecided"] if undecided else []
    caveats = sum(len(group.texts) for group in caveat_groups(study.state.spec, study.state.findings))
    counts += [f"{caveats} caveat{'s' if caveats > 1 else ''}"] if caveats else []
    return " ".join([*parts, *([f"Also {', '.join(counts)}."] if counts else [])])


def twins_sentence(tests: Sequence[TwinTest]) -> str:
    """Returns which metrics refuse that later twins vary as the first ones do, and which metrics have no test."""
    tested = [test for test in tests if test.calibration is not None]
    untested = [test.metric for test in tests if test.calibration is None]
    said = []
    if tested:
        refused = ", ".join(test.metric for test in tested if not test.calibrated) or "none"
        said.append(
            f"That twins vary as in the first {REFERENCE_WORLDS} worlds: refused by {refused} of {len(tested)} metrics."
        )
    if untested:
        said.append(f"Differences of twins are not tested in {', '.join(untested)}.")
    return " ".join(said)


def _said(study: AtlasStudy) -> str:
    """Returns why a study has no verdict."""
    head = f"**{study.title}** (`studies/{study.name}.yaml`)"
    if study.state is None:
        return f"{head}: refused, {study.problem}"
    return f"{head}: {NO_VERDICT_BEFORE_THE_LAST} of its {study.state.spec.worlds} worlds."


def _found(state: StudyState) -> str:
    """Returns the primary finding of a complete study and every other decided one, in sentences."""
    primary, *others = state.findings
    found = [one for one in others if one.word != "undecided"]
    said = [f"*{primary.word}*. {sentence(state.spec, primary, bare=True)}"]
    return " ".join([*said, *(f"*{one.word.capitalize()}*: {sentence(state.spec, one, bare=True)}" for one in found)])


def _paper(study: AtlasStudy) -> str | None:
    """Returns the paper whose claim a study asks; None without a claim or readable settings."""
    return None if study.spec is None or study.spec.claim is None else study.spec.claim.paper


def _study(study: AtlasStudy, claims: Mapping[tuple[str, str], AskedClaim]) -> str:
    """Returns a study's verdict, its claim's, and the tables and caveats below them.

    Args:
        study: a study of a paper.
        claims: by paper and id.
    """
    if study.state is None or study.primary is None:
        return _filled(_said(study))
    head, rows = finding_rows(study.state)
    lines = [_filled(_headline(study, study.primary) + _claim(study, claims)), "", *table(head, rows)]
    lines += means_table(study)
    lines += [_filled(line, indent="  ") for line in caveat_lines(study.state)]
    return "\n".join(lines).rstrip()


def _claim(study: AtlasStudy, claims: Mapping[tuple[str, str], AskedClaim]) -> str:
    """Returns the verdict of the claim that a study names: of this study, and over all studies if several name it; none
    without a claim of the paper's file."""
    own = study.of_claim
    if own is None:
        return ""
    asked = claims[own.claim.paper, str(own.claim.id)]
    if len(asked.studies) == 1:
        said = f"*{asked.word}*"
    elif own.word == asked.word:
        said = f"*{asked.word}*, here and over {len(asked.studies)} studies"
    else:
        here = "not tested" if own.says is None else f"*{own.word}*"
        said = f"{here} here, *{asked.word}* over {len(asked.studies)} studies"
    return f" Claim ({asked.stated.source}): {said}."


def _headline(study: AtlasStudy, primary: StudyFinding) -> str:
    """Returns the verdict above the table of a complete study, its worlds, and why a number or a test is missing."""
    worlds = "" if primary.effect is None else f", {primary.effect.worlds} worlds"
    parts = [f"**{study.title}** (`studies/{study.name}.yaml`{worlds}): *{primary.word}*."]
    if primary.why_no_effect is not None:
        parts.append(f"No effect is shown: {primary.why_no_effect}.")
    elif primary.word == "undecided" and primary.why_untested is not None:
        parts.append(f"It is not tested: {primary.why_untested}.")
    return " ".join(parts)


def _item(note: str) -> str:
    return _filled(f"- {note}", indent="  ")


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
