"""One shell for all pages: sections of texts, tables, pictures and coloured passages, as HTML and as Markdown.

A page is one HTML file that needs nothing else. Everything that comes from models, data or judges is escaped by jinja2;
the content-security policy allows no network and no script but the page's own, by digest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.params.yaml_files import write_whole
from tasks.report.table import MARKS, ShownTable, markdown_lines, markdown_text

TEMPLATES = Path(__file__).parent / "templates"
#: Papers whose short name is an acronym.
ACRONYMS = ("par", "alarm", "rlmec")


@dataclass(frozen=True)
class Text:
    """A paragraph; `kind` is its class on the page, such as `reading`, `key`, `caption`, `caveat` or `headline`."""

    text: str
    kind: str = "reading"


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: Sequence[str]
    kind: str = "reading"


@dataclass(frozen=True)
class Tiles:
    """Numbers in large letters: (number, its name, class of the page)."""

    tiles: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Picture:
    """A drawing with its caption."""

    svg: Markup
    caption: str = ""


@dataclass(frozen=True)
class Passage:
    """A text under a name, such as a policy's answer.

    Attributes:
        small: beside the name.
        legend: of the text's colours.
    """

    name: str
    text: str
    small: str = ""
    legend: str = ""


@dataclass(frozen=True)
class Passages:
    """Texts on one prompt, side by side or (`wide`) below each other."""

    prompt: str
    passages: Sequence[Passage]
    title: str = ""
    note: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Fold:
    """Parts that are shown when asked for."""

    summary: str
    parts: Sequence[Any]


@dataclass(frozen=True)
class Section:
    """Parts below a heading.

    Attributes:
        key: anchor.
        level: of the heading, 2 or 3.
        short: its name in the contents; the title unless given.
        folded: what the closed section says beside its title; None of one that is open.
    """

    title: str
    key: str
    parts: Sequence[Any]
    level: int = 2
    short: str = ""
    folded: str | None = None

    @property
    def inner(self) -> list[Section]:
        """Returns the sections in it."""
        return [part for part in self.parts if isinstance(part, Section)]


@dataclass(frozen=True)
class ReportPage:
    """A page: its title, what comes first, and its sections."""

    title: str
    heading: str
    lead: Sequence[Any]
    sections: Sequence[Section]
    footer: str = ""


def code(text: str) -> Markup:
    """Returns text in the letters of a terminal."""
    return Markup("<code>{}</code>").format(text)


def link(address: str, text: str) -> Markup:
    """Returns a link."""
    return Markup('<a href="{}">{}</a>').format(address, text)


def label(paper: str) -> str:
    """Returns a paper's or study's short name: acronyms in capitals."""
    return paper.upper() if paper in ACRONYMS else paper.capitalize()


def counted(count: int, name: str) -> str:
    """'1 world', '3 worlds'."""
    return f"{count} {name}{'s' * (count != 1)}"


def html(page: ReportPage) -> str:
    """Returns a page as one HTML file, its style and script inside."""
    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["kind"] = lambda part: type(part).__name__
    env.globals["marks"] = MARKS
    style, script = (Markup((TEMPLATES / name).read_text(encoding="utf-8")) for name in ("style.css", "script.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return env.get_template("page.html.j2").render(page=page, style=style, script=script, script_digest=digest)


def markdown_of(part: Any) -> list[str]:
    """Returns the lines of a part as Markdown; of drawings and coloured texts there are none."""
    match part:
        case ShownTable():
            return markdown_lines(part)
        case Text():
            return [markdown_text(part.text), ""]
        case Bullets():
            return [*(f"- {markdown_text(item)}" for item in part.items), ""]
        case Tiles():
            return [markdown_text("; ".join(f"{number} {name}" for number, name, _ in part.tiles)) + ".", ""]
        case Fold():
            return [f"{markdown_text(part.summary)}:", "", *_markdown(part.parts)]
        case Section():
            return [f"{'#' * part.level} {markdown_text(part.title)}", "", *_markdown(part.parts)]
    return []


def _markdown(parts: Sequence[Any]) -> list[str]:
    return [line for part in parts for line in markdown_of(part)]


def markdown(page: ReportPage) -> str:
    """Returns a page as Markdown: its tables and texts for a reader without the page."""
    return "\n".join([f"# {markdown_text(page.heading)}", "", *_markdown([*page.lead, *page.sections])])


def write_page(page: ReportPage, file: Path, *, also: Sequence[Path] = ()) -> Path:
    """Writes a page as HTML, and as Markdown to other files, each whole or not at all; returns its path."""
    for other in also:
        write_whole(other, markdown(page))
    write_whole(file, html(page))
    return file
