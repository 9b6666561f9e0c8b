"""One shell for all pages: sections of texts, tables, pictures and coloured passages, as HTML and as Markdown.

A page is one HTML file that needs nothing else. Everything that comes from models, data or judges is escaped by jinja2;
the content-security policy allows no network and no script but the page's own, by digest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.params.yaml_files import write_whole
from tasks.report.table import MARKS, ShownTable, markdown_lines, markdown_text

TEMPLATES = Path(__file__).parent / "templates"


def _plain(text: str) -> str:
    """Returns text or HTML as text for Markdown."""
    return markdown_text(text.striptags() if isinstance(text, Markup) else text)


@dataclass(frozen=True)
class Text:
    """A paragraph; `kind` is its class on the page, such as `reading`, `key`, `caption`, `caveat` or `headline`."""

    text: str
    kind: str = "reading"

    def markdown(self) -> list[str]:
        return [_plain(self.text), ""]


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]
    kind: str = "reading"

    def markdown(self) -> list[str]:
        return [*(f"- {_plain(item)}" for item in self.items), ""]


@dataclass(frozen=True)
class FactList:
    """Values by name."""

    facts: Mapping[str, str]

    def markdown(self) -> list[str]:
        return [*(f"- {_plain(name)}: {_plain(value)}" for name, value in self.facts.items()), ""]


@dataclass(frozen=True)
class Tiles:
    """Numbers in large letters: (number, its name, class of the page)."""

    tiles: tuple[tuple[str, str, str], ...]

    def markdown(self) -> list[str]:
        return [_plain("; ".join(f"{number} {name}" for number, name, _ in self.tiles)) + ".", ""]


@dataclass(frozen=True)
class Picture:
    """A drawing with its caption."""

    svg: Markup
    caption: str = ""

    def markdown(self) -> list[str]:
        return []


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
    passages: tuple[Passage, ...]
    title: str = ""
    note: str = ""
    wide: bool = False

    def markdown(self) -> list[str]:
        return []


@dataclass(frozen=True)
class Verbatim:
    """A text of several lines as it is."""

    title: str
    text: str

    def markdown(self) -> list[str]:
        return [f"{_plain(self.title)}:", "", *(f"    {line}" for line in self.text.split("\n")), ""]


@dataclass(frozen=True)
class Fold:
    """Parts that are shown when asked for."""

    summary: str
    parts: tuple[Any, ...]

    def markdown(self) -> list[str]:
        return [f"{_plain(self.summary)}:", "", *(line for part in self.parts for line in part_markdown(part))]


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
    parts: tuple[Any, ...]
    level: int = 2
    short: str = ""
    folded: str | None = None

    @property
    def inner(self) -> list[Section]:
        """Returns the sections in it."""
        return [part for part in self.parts if isinstance(part, Section)]

    def markdown(self) -> list[str]:
        lines = [line for part in self.parts for line in part_markdown(part)]
        return [f"{'#' * self.level} {_plain(self.title)}", "", *lines]


@dataclass(frozen=True)
class ReportPage:
    """A page: its title, what comes first, and its sections."""

    title: str
    heading: str
    lead: tuple[Any, ...]
    sections: tuple[Section, ...]
    footer: str = ""


def part_markdown(part: Any) -> list[str]:
    """Returns the lines of a part as Markdown; of drawings and coloured texts there are none."""
    if isinstance(part, ShownTable):
        title = [f"#### {_plain(part.title)}", ""] if part.title else []
        return [*title, *markdown_lines(part)]
    return list(part.markdown())


def code(text: str) -> Markup:
    """Returns text in the letters of a terminal."""
    return Markup("<code>{}</code>").format(text)


def link(address: str, text: str) -> Markup:
    """Returns a link."""
    return Markup('<a href="{}">{}</a>').format(address, text)


def counted(count: int, name: str) -> str:
    """'1 world', '3 worlds'."""
    return f"{count} {name}{'s' * (count != 1)}"


def template_text(name: str) -> Markup:
    """Returns a file of the templates as it stands."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


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
    script = template_text("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shell = env.get_template("page.html.j2")
    return shell.render(page=page, style=template_text("style.css"), script=script, script_digest=digest)


def markdown(page: ReportPage) -> str:
    """Returns a page as Markdown: its tables and texts for a reader without the page."""
    lines = [f"# {_plain(page.heading)}", ""]
    for part in (*page.lead, *page.sections):
        lines += part_markdown(part)
    return "\n".join(lines)


def write_page(page: ReportPage, file: Path, *, also: Sequence[Path] = ()) -> Path:
    """Writes a page as HTML, and as Markdown to other files, each whole or not at all; returns its path."""
    for other in also:
        write_whole(other, markdown(page))
    write_whole(file, html(page))
    return file
