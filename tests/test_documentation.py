"""Everything that the documents name exists: commands with their options, files, links, rows and settings."""

from __future__ import annotations

import ast
import csv
import importlib.util
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from dvc.cli.parser import get_main_parser
from typer.testing import CliRunner

from benchmarks.false_verdicts import tables_of
from rlhf_core.published import printed_tables
from rlhf_core.recipe import parse_recipe
from tasks.command_line import commands
from tasks.commands.init import SCALE
from tasks.graph.matrix import build
from tasks.graph.names import split_names
from tasks.graph.rows import load_rows, papers
from tasks.params.pages import Page, read_page, read_settings
from tasks.params.scales import scale_entries
from tasks.report.rows_compared import find_rows

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "infra").rglob("*.md")])
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


@pytest.mark.parametrize("name", sorted(GROUP.commands))
def test_rewardsmith_help_names_every_option(name: str) -> None:
    shown = CliRunner().invoke(commands, [name, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    assert shown.exit_code == 0
    options = [option for parameter in GROUP.commands[name].params for option in parameter.opts if option[:2] == "--"]
    for option in options:
        assert option in shown.output


def test_an_option_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(Exception, match="--gpu"):
        GROUP.commands["run"].make_context("run", ["segment", "--gpu", "1"])


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


def test_results_named_in_documents_are_those_of_stages() -> None:
    made = {f"{out}/result" for graph in build(ROOT).values() for out in graph.outputs()}
    named = {
        (document.name, path)
        for document in DOCUMENTS
        for path in re.findall(r"\bresults/[\w./-]+/result\b", text_of(document))
    }
    assert len(named) >= 3
    wrong = {(document, path) for document, path in named if path not in made and "my-study" not in path}
    assert not wrong


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


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(text_of(document)), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text_of(document))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (document.parent / name).resolve() if name else document
        assert linked.exists(), f"{document.name} links to {target}"
        assert linked.is_relative_to(ROOT)
        assert not anchor or anchor in anchors(linked), f"{document.name}: no heading for #{anchor} in {linked.name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_named_in_the_text_exist(document: Path) -> None:
    made = scales(document)
    for span in inline(text_of(document)):
        parts = Path(span).parts
        if not PATH.fullmatch(span) or {*EXAMPLES} & {*parts}:
            continue
        if parts[:2] == ("params", "scales") and len(parts) > 2 and not (ROOT / "params/scales" / parts[2]).exists():
            assert parts[2] in made, f"{document.name} names {span}"
            continue
        assert (ROOT / span).exists() or (document.parent / span).exists(), f"{document.name} names {span}"


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


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_functions_named_with_their_module_exist(document: Path) -> None:
    for span in inline(text_of(document)):
        if found := REFERENCE.fullmatch(span):
            module, name = ROOT / found[1], found[2]
            assert module.exists(), f"{document.name} names {span}, but there is no {found[1]}"
            assert name in definitions(module), f"{document.name} names {span}; {found[1]} defines no {name}"


def test_one_step_names_the_code_of_every_part_of_an_update() -> None:
    references = [REFERENCE.fullmatch(span) for span in inline(text_of(ROOT / "docs" / "one_step.md"))]
    named = {found[2] for found in references if found}
    assert len(named) > 40
    assert named >= {
        "Encoder.prompt", "generate", "score", "Entropy.segment", "RewardModelScorer.score", "LocationAware.__call__",
        "sigmoid_centered", "even_split", "add_up", "kl_tokens", "gae", "whiten", "Learner.minibatch",
        "clipped_surrogate", "value_loss", "PlainStepper.step", "KLCoefficient.update",
    }  # fmt: skip


def test_a_function_that_does_not_exist_is_noticed() -> None:
    credit = definitions(ROOT / "rlhf_core" / "credit.py")
    assert "even_split" in credit
    assert "evensplit" not in credit


@pytest.mark.parametrize("paper", papers(ROOT))
def test_every_row_of_a_paper_is_documented(paper: str) -> None:
    """By its name, or by a prefix such as `llama3-` and what follows it."""
    named = set(inline(text_of(ROOT / "docs" / f"{paper}.md")))
    named |= {f"{prefix}{name}" for prefix in named if prefix.endswith("-") for name in named}
    found = load_rows(ROOT, paper)
    wanted = {name.replace(".", "_") for name in (*found, *(row.backbone for row in found.values()))}
    assert wanted <= named, f"docs/{paper}.md does not name {sorted(wanted - named)}"


def test_the_testbed_settings_in_the_text_are_those_in_use() -> None:
    """docs/segment.md states how the testbed differs from the paper; a tuned value changes there, too."""
    text = " ".join(text_of(ROOT / "docs" / "segment.md").split())
    names = (
        "data/dialogue",
        "evaluation/dialogue",
        "policy/ppo",
        "policy/dpo",
        "stages/entropies",
        "stages/normaliser",
        "stages/reward_model",
    )
    settings = {
        name: read_settings(scale_entries(ROOT, "testbed", kind)[entry].under(ROOT))
        for name in names
        for kind, _, entry in [name.partition("/")]
    }
    ppo, quantiles = settings["policy/ppo"]["optimiser"], settings["stages/entropies"]["cutoffs"]
    shares = [str(rule["quantile"]) for rule in quantiles.values()]
    cutoffs = list(quantiles)
    data = settings["data/dialogue"]
    limits, normaliser = data["limits"], settings["stages/normaliser"]
    reward_model, evaluation = settings["stages/reward_model"], settings["evaluation/dialogue"]
    rate = f"{reward_model['learning_rate']:.1e}".replace(".0e", "e").replace("e-0", "e-")
    stated = [
        f"{ppo['iterations']} iterations of {ppo['rollout_batch']} rollouts, minibatch {ppo['minibatch']}",
        f"learning rates {ppo['actor_lr']:.0e}".replace("e-0", "e-") + " (actor)",
        f"{ppo['critic_lr']:.0e}".replace("e-0", "e-") + " (critic)",
        f"β {ppo.get('kl_coef', 0.01)}, clip {ppo.get('clip', 0.2)}",
        f"{', '.join(cutoffs[:-1])} and {cutoffs[-1]} stand for {', '.join(shares[:-1])} and {shares[-1]}",
        f"need {normaliser['min_samples']} segments",
        f"from {normaliser['pairs']:,} pairs",
        f"cap** is {settings['policy/ppo']['sampling']['max_new_tokens']} tokens",
        f"{evaluation['task_tokens']} for tasks",
        f"cut at {limits['prompt']} tokens, prompt and response at {limits['total']}",
        f"batch {reward_model['batch']}, learning rate {rate}",
        f"on {data['rows']['benchmark']} prompts each",
        f"β {settings['policy/dpo']['optimiser']['beta']}; the paper",
    ]
    missing = [phrase for phrase in stated if phrase not in text]
    assert not missing, f"docs/segment.md should say: {missing}"


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


def test_rates_of_false_verdicts_are_those_of_the_file() -> None:
    rows = csv.DictReader(text_of(ROOT / "docs" / "measured" / "evidence.csv").splitlines())
    tables = tables_of(rows)
    assert len(tables) == 5
    for kind, table in tables.items():
        made = "python -m benchmarks.false_verdicts --out docs/measured/evidence.csv --document docs/evidence.md"
        assert f"\n{table}\n" in text_of(ROOT / "docs" / "evidence.md"), f"the table '{kind}' is out of date: {made}"


def test_commits_of_the_history_exist() -> None:
    """Else a reader cannot check what was seen before a change."""
    named = set(re.findall(r"`([0-9a-f]{7})`", text_of(ROOT / "docs" / "evidence.md")))
    assert len(named) > 10
    shallow = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    if not (ROOT / ".git").exists() or subprocess.check_output(shallow, text=True).strip() != "false":
        pytest.skip("a copy without history")
    for commit in sorted(named):
        call = ["git", "-C", str(ROOT), "cat-file", "-e", f"{commit}^{{commit}}"]
        assert subprocess.run(call, check=False).returncode == 0, f"docs/evidence.md names {commit}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_no_place_on_a_machine(document: Path) -> None:
    assert not re.search(r"(?<![\w.])/(?:home|root|tmp|work|Users|mnt)/", text_of(document))


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
