"""Everything that the documents name exists: commands with their options, files, links, rows and settings."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from dvc.cli.parser import get_main_parser

from rlhf_core.published import printed_tables
from rlhf_core.recipe import parse_recipe
from tasks.command_line import commands
from tasks.commands.init import SCALE
from tasks.graph.names import find_rows, split_names
from tasks.graph.rows import papers, read_rows
from tasks.params.pages import Page, read_page

ROOT = Path(__file__).resolve().parent.parent
#: The changelog names what there was.
DOCUMENTS = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "infra").rglob("*.md"))
    if path.name != "CHANGELOG.md"
)
GROUP: Any = typer.main.get_command(commands)
PROGRAMS = ("rewardsmith", "python", "make", "dvc")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: Names that a reader is meant to replace.
EXAMPLES = ("my-row", "my-study")
PATH = re.compile(
    r"(?:rlhf_core|tasks|flows|params|pipelines|tests|benchmarks|docs|infra)/[\w./-]*|[\w-]+\.(?:yaml|txt|toml)"
)


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def blocks(text: str, *languages: str) -> Iterator[str]:
    """The content of fenced blocks in one of the languages."""
    for language, content in FENCE.findall(text):
        if language in languages:
            yield content


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return FENCE.sub("", text)


def inline(text: str) -> list[str]:
    """Code between single back quotes outside fenced blocks, line ends as blanks."""
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(text))]


def commands_of(document: Path) -> Iterator[list[str]]:
    """Commands of the project's programs in shell blocks and in inline code, in words."""
    text = text_of(document)
    lines = [line for block in blocks(text, "bash", "sh", "") for line in block.replace("\\\n", " ").splitlines()]
    for line in [*lines, *inline(text)]:
        if line.startswith(PROGRAMS) and len(line.split()) > 1 and "<" not in line:
            yield shlex.split(line, comments=True)


#: Commands of all documents, each with its document.
ALL = [(document, words) for document in DOCUMENTS for words in commands_of(document)]


def of(program: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Parametrises a test by every documented command of a program."""
    chosen = [found for found in ALL if found[1][0] == program and (program != "python" or "-m" in found[1])]
    return pytest.mark.parametrize(
        ("document", "words"), chosen, ids=lambda part: part.name if isinstance(part, Path) else " ".join(part)
    )


def scales(document: Path) -> set[str]:
    """The scales that exist and those that the document tells its reader to make, a project's own among them."""
    made = re.findall(r"^cp -r \S+ params/scales/([\w-]+)$", text_of(document), re.MULTILINE)
    made += [SCALE] if "rewardsmith init" in text_of(document) else []
    return {path.name for path in (ROOT / "params" / "scales").iterdir()} | set(made)


@of("rewardsmith")
def test_rewardsmith_command_takes_its_arguments(document: Path, words: list[str]) -> None:
    _, name, *arguments = words
    if "--help" in words:
        return
    assert name in GROUP.commands, f"no command '{name}'; known: {', '.join(GROUP.commands)}"
    given = GROUP.commands[name].make_context(name, arguments, resilient_parsing=not arguments).params
    assert given.get("scale") in {None, *scales(document)}
    if names := [row for row in given.get("names") or [] if row.partition("/")[0] not in EXAMPLES]:
        (find_rows if name == "compare" else split_names)(ROOT, names)
    if name == "table" and words[2:] and words[2] not in {*EXAMPLES, *papers(ROOT)}:
        assert printed_tables.table(words[2])


def test_every_command_is_documented() -> None:
    assert set(GROUP.commands) <= {words[1] for _, words in ALL if words[0] == "rewardsmith"}


@of("python")
def test_module_exists_and_knows_its_options(document: Path, words: list[str]) -> None:
    module = words[words.index("-m") + 1]
    found = importlib.util.find_spec(module)
    assert found is not None, f"no module {module}"
    assert found.origin is not None
    source = Path(found.origin)
    source = source.with_name("__main__.py") if source.name == "__init__.py" else source
    text = text_of(source) + text_of(ROOT / "tasks" / "running" / "stage.py")
    for word in words:
        if word.startswith("--"):
            typed = re.search(rf"\b{word[2:].replace('-', '_')}(_path)?: ", text)  # a parameter of the stage's function
            assert f'"{word}"' in text or typed, f"{module} has no option {word}"


@of("make")
def test_make_target_exists(document: Path, words: list[str]) -> None:
    for word in words[1:]:
        name, variable, _ = word.partition("=")
        assert re.search(rf"^{name}{r' [?]= ' if variable else ':'}", text_of(ROOT / "Makefile"), re.MULTILINE), word


@of("dvc")
def test_dvc_command_is_one(document: Path, words: list[str]) -> None:
    assert get_main_parser().parse_args(words[1:]).cmd


#: A function, class or method of a module, as documents name it: `rlhf_core/credit.py: even_split`.
REFERENCE = re.compile(r"((?:rlhf_core|tasks|flows)/[\w/]+\.py): ([\w.]+)")


def definitions(module: Path) -> set[str]:
    """Functions and classes of a module, and members of its classes as `Class.member`."""
    names: set[str] = set()
    for node in ast.parse(text_of(module)).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{member.name}" for member in node.body if isinstance(member, ast.FunctionDef)}
    return names


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(text_of(document)), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_files_and_functions_that_a_document_names_exist(document: Path) -> None:
    text = text_of(document)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if not re.match(r"[a-z]+:", target):
            name, _, anchor = target.partition("#")
            linked = (document.parent / name).resolve() if name else document
            assert linked.exists(), f"{document.name} links to {target}"
            assert linked.is_relative_to(ROOT)
            assert not anchor or anchor in anchors(linked), (
                f"{document.name}: no heading for #{anchor} in {linked.name}"
            )
    for span in inline(text):
        parts = Path(span).parts
        if PATH.fullmatch(span) and not {*EXAMPLES} & {*parts}:
            own_scale = parts[:2] == ("params", "scales") and len(parts) > 2 and parts[2] in scales(document)
            found = own_scale or (ROOT / span).exists() or (document.parent / span).exists()
            assert found, f"{document.name} names {span}"
        if found := REFERENCE.fullmatch(span):
            assert found[2] in definitions(ROOT / found[1]), f"{document.name} names {span}"
    assert not re.search(r"(?<![\w.])/(?:home|root|tmp|work|Users|mnt)/", text), "it names a place on a machine"


def test_shown_rows_are_recipes_and_pages_of_the_project_are_as_shown() -> None:
    for document in DOCUMENTS:
        for block in blocks(text_of(document), "yaml"):
            if named := re.match(r"# (params/[\w./-]+)\n", block):
                page = Page.of(Path(named[1]), yaml.safe_load(block))
                real = read_page(ROOT / page.file) if (ROOT / page.file).exists() else page
                for entry in page.names:
                    assert page.entry(entry) == real.entry(entry), f"{document.name}: {page.file}:{entry}"
                    if page.file.name.startswith("rows"):
                        assert parse_recipe(page.entry(entry), f"{document.name}: {entry}").title


@pytest.mark.parametrize("paper", papers(ROOT))
def test_every_row_of_a_paper_is_documented(paper: str) -> None:
    """By its name, or by a prefix such as `llama3-` and what follows it."""
    named = set(inline(text_of(ROOT / "docs" / f"{paper}.md")))
    named |= {f"{prefix}{name}" for prefix in named if prefix.endswith("-") for name in named}
    found = read_rows(ROOT, paper)[0]
    wanted = {name.replace(".", "_") for name in (*found, *(row.backbone for row in found.values()))}
    assert wanted <= named, f"docs/{paper}.md does not name {sorted(wanted - named)}"


def test_every_variable_of_the_environment_is_documented() -> None:
    used = set()
    for folder in ("rlhf_core", "tasks", "flows", "params", "infra"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml", ".sh", ".json"):
                used |= set(re.findall(r"REWARDSMITH_[A-Z]+(?:_[A-Z]+)*", text_of(path)))
    named = set(re.findall(r"REWARDSMITH_[A-Z]+(?:_[A-Z]+)*", text_of(ROOT / "docs" / "variables.md")))
    assert named == used
