"""Everything that the documents name exists: commands with their options, files, links, rows and settings."""

from __future__ import annotations

import ast
import csv
import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from tasks.graph.names import split_names
from tasks.graph.rows import papers, read_rows
from tasks.params.pages import Page, read_page
from tasks.report.comparison import find_rows

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


@dataclass(frozen=True)
class Command:
    """One command of a document, in words."""

    document: Path
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.document.name}: {' '.join(self.words)}"


def commands_of(document: Path) -> Iterator[Command]:
    """Commands of the project's programs in shell blocks and in inline code."""
    text = text_of(document)
    lines = [line for block in blocks(text, "bash", "sh", "") for line in block.replace("\\\n", " ").splitlines()]
    for line in [*lines, *inline(text)]:
        if not line.startswith(PROGRAMS) or line.split()[0] not in PROGRAMS or "<" in line:
            continue
        words = shlex.split(line, comments=True)
        if words[0] != "python" or "-m" in words:
            yield Command(document, tuple(words))


ALL = [command for document in DOCUMENTS for command in commands_of(document)]


def of(program: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Parametrises a test by every documented command of a program."""
    chosen = [command for command in ALL if command.words[0] == program and len(command.words) > 1]
    return pytest.mark.parametrize("command", chosen, ids=str)


def scales(document: Path) -> set[str]:
    """The scales that exist and those that the document tells its reader to make, a project's own among them."""
    made = re.findall(r"^cp -r \S+ params/scales/([\w-]+)$", text_of(document), re.MULTILINE)
    made += [SCALE] if "rewardsmith init" in text_of(document) else []
    return {path.name for path in (ROOT / "params" / "scales").iterdir()} | set(made)


@of("rewardsmith")
def test_rewardsmith_command_takes_its_arguments(command: Command) -> None:
    _, name, *arguments = command.words
    if name == "--help":
        return
    assert name in GROUP.commands, f"no command '{name}'; known: {', '.join(GROUP.commands)}"
    if "--help" in arguments:
        return
    given = GROUP.commands[name].make_context(name, list(arguments), resilient_parsing=arguments == []).params
    assert given.get("scale") in {None, *scales(command.document)}
    if names := [row for row in given.get("names") or [] if row.partition("/")[0] not in EXAMPLES]:
        (find_rows if name == "compare" else split_names)(ROOT, names)
    if name == "table" and arguments and arguments[0] not in {*EXAMPLES, *papers(ROOT)}:
        assert printed_tables.table(arguments[0])


@of("python")
def test_module_exists_and_knows_its_options(command: Command) -> None:
    module = command.words[command.words.index("-m") + 1]
    found = importlib.util.find_spec(module)
    assert found is not None, f"no module {module}"
    assert found.origin is not None
    source = Path(found.origin)
    if source.name == "__init__.py":
        source = source.with_name("__main__.py")
    text = source.read_text(encoding="utf-8") + (ROOT / "tasks" / "running" / "stage.py").read_text(encoding="utf-8")
    for word in command.words:
        if word.startswith("--") and word != "--help":
            keyword = word[2:].replace("-", "_")
            typed = re.search(rf"\b{keyword}(_path)?: ", text)  # a parameter of the stage's function
            assert f'"{word}"' in text or typed, f"{module} has no option {word}"


@of("make")
def test_make_target_exists(command: Command) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in command.words[1:]:
        if "=" in word:
            assert re.search(rf"^{word.split('=')[0]} \?= ", makefile, re.MULTILINE), f"no variable {word}"
        else:
            assert re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE), f"no target {word}"


@of("dvc")
def test_dvc_command_is_one(command: Command) -> None:
    assert get_main_parser().parse_args(list(command.words[1:])).cmd


def test_documents_have_commands_of_every_program() -> None:
    """Else the tests above look at nothing."""
    for program in PROGRAMS:
        assert sum(command.words[0] == program for command in ALL) >= 4
    shown = {command.words[1] for command in ALL if command.words[0] == "rewardsmith" and len(command.words) > 1}
    assert set(GROUP.commands) <= shown


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


def shown_pages() -> Iterator[tuple[str, Page]]:
    """Pages that documents show: blocks whose first line names a file of params/, with the document's name."""
    for document in DOCUMENTS:
        for block in blocks(text_of(document), "yaml"):
            if named := re.match(r"# (params/[\w./-]+)\n", block):
                yield document.name, Page.of(Path(named[1]), yaml.safe_load(block))


def test_shown_rows_are_recipes() -> None:
    found = [(name, page) for name, page in shown_pages() if page.file.name.startswith("rows")]
    assert {name for name, _ in found} >= {"README.md", "extending.md"}
    for name, page in found:
        for row in page.names:
            assert parse_recipe(page.entry(row), f"{name}: {row}").title


def test_shown_pages_of_the_project_are_what_the_files_hold() -> None:
    for name, page in shown_pages():
        if (ROOT / page.file).exists():
            real = read_page(ROOT / page.file)
            for entry in page.names:
                assert page.entry(entry) == real.entry(entry), f"{name}: {page.file}:{entry}"
        else:
            assert "my-study" in page.file.parts or page.file.stem.endswith("_desk"), f"{name} shows {page.file}"


def test_one_step_names_the_code_of_every_part_of_an_update() -> None:
    references = [REFERENCE.fullmatch(span) for span in inline(text_of(ROOT / "docs" / "one_step.md"))]
    named = {found[2] for found in references if found}
    assert len(named) > 40
    assert named >= {
        "Encoder.prompt", "generate", "score", "Entropy.segment", "RewardModelScorer.score", "LocationAware.__call__",
        "Centered.shape", "even_split", "add_up", "kl_tokens", "gae", "whiten", "Learner.minibatch",
        "clipped_surrogate", "value_loss", "PlainStepper.step", "KLCoefficient.update",
    }  # fmt: skip


@pytest.mark.parametrize("paper", papers(ROOT))
def test_every_row_of_a_paper_is_documented(paper: str) -> None:
    """By its name, or by a prefix such as `llama3-` and what follows it."""
    named = set(inline(text_of(ROOT / "docs" / f"{paper}.md")))
    named |= {f"{prefix}{name}" for prefix in named if prefix.endswith("-") for name in named}
    found = read_rows(ROOT, paper)[0]
    wanted = {name.replace(".", "_") for name in (*found, *(row.backbone for row in found.values()))}
    assert wanted <= named, f"docs/{paper}.md does not name {sorted(wanted - named)}"


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "measured").glob("*.csv")), ids=lambda path: path.name)
def test_measured_figures_are_cells_of_a_page(file: Path) -> None:
    assert f"(measured/{file.name})" in text_of(ROOT / "docs" / f"{file.stem}.md")
    rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    assert rows
    for row in rows:
        assert list(row) == ["table", "row", "column", "value"]
        assert all(row.values()), row
    cells = [(row["table"], row["row"], row["column"]) for row in rows]
    assert len(cells) == len(set(cells)), "a cell is given twice"


def test_every_variable_of_the_environment_is_documented() -> None:
    used = set()
    for folder in ("rlhf_core", "tasks", "flows", "params", "infra"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml", ".sh", ".json"):
                used |= set(re.findall(r"REWARDSMITH_[A-Z]+(?:_[A-Z]+)*", text_of(path)))
    named = set(re.findall(r"REWARDSMITH_[A-Z]+(?:_[A-Z]+)*", text_of(ROOT / "docs" / "variables.md")))
    assert named == used


def test_the_readme_is_read_in_five_minutes() -> None:
    words = [word for word in text_of(ROOT / "README.md").split() if re.search(r"\w", word)]
    assert len(words) <= 900
