"""Results that tables, comparisons, pages and findings read: damaged after their stage, or of another version of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlhf_core.errors import DataError, RewardsmithError
from tasks import tables
from tasks.report.comparison import print_rows, write_comparison
from tasks.report.outputs import StageOutput
from tasks.report.page import html, markdown
from tasks.report.paper_tables import print_table
from tasks.report.report_page import report_page
from tasks.report.result_words import result_in_words
from tasks.running.result_digests import RECORD
from tasks.tracking.outcomes import outcome_of
from tests.fuzz.commands import TREES, Reader, Tree, link_project, printed
from tests.fuzz.damage import Area, damage_file, damaged_bytes, damaged_json, damaged_tree, remove
from tests.tasks.report.fixture_results import make_results, record, sign, write

ROWS = ("phi3-mini", "bandit", "segment")
TESTBED = Path("results") / "testbed"
TABLES = TESTBED / "segment" / "tables"


def _made_tables() -> str:
    out = Path("tables again")
    tables.build(TESTBED, "segment", (0,), out)
    return "".join(file.read_text() for file in sorted((out / "result").iterdir()))


def _report() -> str:
    found = report_page(TESTBED)
    return markdown(found) + html(found)


def _compared() -> str:
    def command() -> None:
        found = print_rows(Path(), "testbed", ["segment/segment", "segment/bandit"])
        write_comparison(found, Path("page"))

    return printed(command) + Path("page", "compare.html").read_text()


def _runs() -> str:
    """Reads what a run says of its stages, and what MLflow gets of them."""
    said = []
    for out in sorted(TESTBED.glob("*/*/*/[0-9]")):
        stage: Any = SimpleNamespace(out=out, kind=out.parts[3], command="", seed=0, name=out.parts[4], address="")
        outcome = outcome_of(Path(), stage)
        said += [result_in_words(Path(), stage), str({} if outcome is None else dict(outcome.metrics))]
        said.append(str(StageOutput(out, 0).blank))
    return "\n".join(said)


#: Readers with patterns of the folders that each reads, below the scale's results.
_READERS: Mapping[str, tuple[Reader, tuple[str, ...]]] = {
    "table": (
        lambda: printed(lambda: print_table(TABLES / "result" / "tables.json", "segment/1")),
        ("segment/tables/*/tables.json",),
    ),
    "tables": (_made_tables, ("segment/*/*/*/*/*", "shared/sft/phi3-mini/*/*/*", "shared/data/dialogue/*/*")),
    "report": (_report, ("*/*/*/*/*/*", "segment/tables/*/*", "shared/data/dialogue/*/*")),
    "compare": (_compared, ("segment/policy/*/*/*/*",)),
    "runs": (_runs, ("*/*/*/*/*/*", "shared/data/dialogue/*/*")),
}
READERS = {name: (read, tuple(f"{TESTBED}/{each}" for each in patterns)) for name, (read, patterns) in _READERS.items()}


def _make(root: Path) -> None:
    """Writes a tree with results: rows of a paper with their tables, without the demo."""
    link_project(root)
    make_results(root, (0,), ROWS)
    for result in root.rglob("result"):
        if not (result.parent / RECORD).exists():
            write(result.parent / RECORD, record(result.parts[-4], 0))
    sign(root)
    with chdir(root):
        tables.build(TESTBED, "segment", (0,), TABLES)


def _damage(rng: random.Random, file: Path, others: list[Path]) -> str:
    """Damages a file of a result; returns what was done."""
    how = rng.random()
    if how < 0.1:  # another result's file of this name, or any file
        other = rng.choice([one for one in others if one.name == file.name] or others)
        content = other.read_bytes()
        file.write_bytes(content)
        return f"{file}: the content of {other}"
    if how < 0.2:
        remove(file)
        target = rng.choice([file.name, "/nowhere", ".", str(rng.choice(others).resolve())])
        file.symlink_to(target)
        return f"{file}: a link to {target}"
    if how < 0.3 and file.suffix == ".jsonl":
        lines = file.read_text().splitlines(keepends=True)
        rng.shuffle(lines)
        file.write_text("".join(lines))
        return f"{file}: rows in another order"
    return damage_file(rng, file, damaged_json if file.suffix in (".json", ".jsonl") else damaged_bytes)


@dataclass(frozen=True)
class _Made:
    """A tree in its folder.

    Attributes:
        root: the folder.
        tree: what reads it.
        files: by reader.
        known: what each reader shows of the undamaged tree.
        contents: all files of results.
    """

    root: Path
    tree: Tree
    files: Mapping[str, list[Path]]
    known: Mapping[str, str]
    contents: list[Path]

    @classmethod
    def of(cls, tree: Tree, root: Path, again: Path) -> _Made:
        """Makes a tree; `again` is a folder for a copy that the readers may write to."""
        tree.make(root)
        files = {
            name: sorted({file.relative_to(root) for each in patterns for file in root.glob(each) if file.is_file()})
            for name, (_, patterns) in tree.readers.items()
        }
        shutil.copytree(root, again, symlinks=True)
        with chdir(again):
            known = {}
            for name, (read, _) in tree.readers.items():
                known[name] = read()
                remove(Path("model"))
        remove(again)
        contents = [file for file in root.rglob("*") if file.is_file() and ".git" not in file.parts]
        return cls(root, tree, files, known, contents)


@contextmanager
def results(folder: Path) -> Iterator[Area]:
    """Yields a case: of a file that changed after its stage had ended, what is shown is what was shown before, or it is
    refused in words; so are a damaged record and a file of another version of its stage."""
    trees = (Tree(_make, READERS), *TREES)
    made = [_Made.of(tree, folder / f"made {i}", folder / "again") for i, tree in enumerate(trees)]

    def case(rng: random.Random) -> None:
        given = rng.choice(made)
        root = Path(shutil.copytree(given.root, folder / "case", symlinks=True))
        name = rng.choice(list(given.tree.readers))
        file = root / rng.choice(given.files[name])
        done, how = _damage(rng, file, given.contents), "changed"
        if file.name == RECORD.name:
            how = "record"
        elif given.tree.says_changes:
            how = "said"
        elif rng.random() < 0.4:  # of another version, which signed it
            how = "signed"
            if file.parent.is_dir():
                sign(root)
        with damaged_tree(root, f"{name}, {how}: {done}"), chdir(root):
            try:
                shown = given.tree.readers[name][0]()
            except RewardsmithError as error:
                lacks = how == "signed" and not (isinstance(error, DataError) and file.exists())  # a metric, a file
                if not lacks and not any(part in str(error) for part in (file.parents[1].name, file.name)):
                    raise AssertionError(f"the message does not name {file}: {error}") from error
                raise
            assert how != "changed" or shown == given.known[name], "other words or numbers than before the damage"

    yield case
