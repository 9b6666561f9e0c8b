"""Findings of studies as blocks of documents, made from records and never typed.

A document holds `<!-- findings: NAME -->` and `<!-- end of findings -->`, where NAME is a paper, whose studies are then
shown, or `all`.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from rlhf_core.errors import DataError, hint
from tasks.params.yaml_files import write_whole
from tasks.report.atlas import Atlas, AtlasStudy, read_atlas
from tasks.report.atlas_markdown import NO_VERDICT, counts_sentence, finding_rows, table, twins_table
from tasks.report.atlas_words import sentence
from tasks.report.measured_block import with_measured

ALL = "all"
BLOCK = re.compile(r"(<!-- findings: (?P<name>[a-z]+) -->\n).*?(<!-- end of findings -->)", re.DOTALL)
WIDTH = 120


def write_blocks(root: Path, folder: Path) -> list[Path]:
    """Renders the blocks of every document of a folder anew, those of `measured_block`, too; returns the documents that
    changed.

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
    names = [ALL, *(one.paper for one in atlas.papers)]

    def rendered(block: re.Match[str]) -> str:
        if (name := block["name"]) not in names:
            remedy = f"Name one of {', '.join(names)}"
            raise DataError(f"findings of '{name}'{hint(name, names)}", file=document.as_posix(), remedy=remedy)
        return f"{block[1]}\n{block_of(atlas, name)}\n{block[3]}"

    return BLOCK.sub(rendered, text)


def block_of(atlas: Atlas, name: str) -> str:
    """Returns the findings of the studies of a paper, or of all studies below the count of claims."""
    studies = [study for study in atlas.studies if name == ALL or _paper(study) == name]
    parts = [_filled(counts_sentence(atlas.total))] if name == ALL else []
    parts += [_study(study) for study in studies]
    return "\n\n".join(parts).strip() + "\n"


def _paper(study: AtlasStudy) -> str | None:
    spec = study.registered or study.spec
    return None if spec is None or spec.claim is None else spec.claim.paper


def _study(study: AtlasStudy) -> str:
    head = f"**{study.title}** (`studies/{study.name}.yaml`)"
    if study.state is None:
        return _filled(f"{head}: refused, {study.problem}")
    if study.primary is None:
        return _filled(f"{head}: {NO_VERDICT} of its {study.state.spec.worlds} worlds.")
    said = f"{head}: *{study.primary.word}*. {sentence(study.state.spec, study.primary)}"
    found = [one for one in study.state.findings[1:] if one.word not in ("undecided", "exploratory")]
    said += "".join(f" *{one.word.capitalize()}*: {sentence(study.state.spec, one)}" for one in found)
    notes = dict.fromkeys(note for finding in study.state.findings for note in finding.caveats)
    lines = [_filled(said), "", *table(*finding_rows(study.state)), *twins_table(study.state)]
    lines += [_item(note) for note in notes]
    return "\n".join(lines).rstrip()


def _item(note: str) -> str:
    return _filled(f"- {note}", indent="  ")


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
