"""Results that tables, comparisons, pages and findings read: damaged after their stage, or of another version of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlhf_core.errors import DataError, RewardsmithError
from tasks import tables
from tasks.commands.compare import print_rows
from tasks.commands.finding import print_finding
from tasks.report import markdown, page
from tasks.report.compare_page import write_comparison
from tasks.report.outputs import StageOutput
from tasks.report.terminal import print_table
from tasks.report.told import told
from tasks.running.recorded import RECORD
from tasks.tracking.outcomes import outcome_of
from tests.fuzz.damage import Area, damage_file, damaged_bytes, damaged_json, damaged_tree, remove
from tests.small_repository import PROJECT
from tests.tasks.report.fixture_results import make_results, record, sign, write
from tests.tasks.report.test_finding import SEEDS, write_world

ROWS = ("phi3-mini", "bandit", "segment")
TESTBED = Path("results") / "testbed"
TABLES = TESTBED / "segment" / "tables"
#: Returns what a command shows of the tree in the present folder.
Reader = Callable[[], str]


def _printed(command: Callable[[], object]) -> str:
    with redirect_stdout(StringIO()) as shown:
        command()
    return shown.getvalue()


def _made_tables() -> str:
    out = Path("tables again")
    tables.build(TESTBED, "segment", (0,), out)
    return "".join(file.read_text() for file in sorted((out / "result").iterdir()))


def _report() -> str:
    found = page.read_report(TESTBED)
    return markdown.render(found) + page.render(found)


def _compared() -> str:
    def command() -> None:
        found = print_rows(Path(), "testbed", ["segment/segment", "segment/bandit"])
        write_comparison(found, [], Path("page"))

    return _printed(command) + Path("page", "compare.html").read_text()


def _runs() -> str:
    """Reads what a run says of its stages, and what MLflow gets of them."""
    said = []
    for out in sorted(TESTBED.glob("*/*/*/[0-9]")):
        stage: Any = SimpleNamespace(out=out, kind=out.parts[3], command="", seed=0, name=out.parts[4], address="")
        outcome = outcome_of(Path(), stage)
        said += [told(Path(), stage), str({} if outcome is None else dict(outcome.metrics))]
        said.append(str(StageOutput(out, 0).blank))
    return "\n".join(said)


#: Readers with patterns of the folders that each reads, below the scale's results.
READERS: Mapping[str, tuple[Reader, tuple[str, ...]]] = {
    "table": (
        lambda: _printed(lambda: print_table(TABLES / "result" / "tables.json", "segment/1")),
        ("segment/tables/*/tables.json",),
    ),
    "tables": (_made_tables, ("segment/*/*/*/*/*", "shared/sft/phi3-mini/*/*/*", "shared/data/dialogue/*/*")),
    "report": (_report, ("*/*/*/*/*/*", "segment/tables/*/*", "shared/data/dialogue/*/*")),
    "compare": (_compared, ("segment/policy/*/*/*/*",)),
    "finding": (
        lambda: _printed(lambda: print_finding(Path())),
        ("demo/*/*/*/*/*", "shared/sft/demo/*/*/*", "shared/data/demo/*/*/*"),
    ),
    "runs": (_runs, ("*/*/*/*/*/*", "shared/data/dialogue/*/*")),
}


def _make(root: Path) -> None:
    """Writes a tree with results: rows of a paper with their tables, and the demo with its finding."""
    root.mkdir()
    for name in ("params", "params.yaml", "tasks", "pyproject.toml"):
        (root / name).symlink_to(PROJECT / name)
    make_results(root, (0,), ROWS)
    for seed in SEEDS:
        write_world(root, seed)
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
    return damage_file(rng, file, damaged_bytes if file.suffix == ".csv" else damaged_json)


@contextmanager
def results(folder: Path) -> Iterator[Area]:
    """Yields a case: of a file that changed after its stage had ended, what is shown is what was shown before, or it is
    refused in words; so are a damaged record and a file of another version of its stage."""
    made = folder / "made"
    _make(made)
    testbed = made / TESTBED
    files = {
        name: sorted(file.relative_to(made) for pattern in patterns for file in testbed.glob(pattern) if file.is_file())
        for name, (_, patterns) in READERS.items()
    }
    contents = [file for file in testbed.rglob("*") if file.parent.name == "result" and file.is_file()]
    with chdir(made):
        known = {name: read() for name, (read, _) in READERS.items()}
    remove(made / "tables again")
    remove(made / "page")

    def case(rng: random.Random) -> None:
        root = Path(shutil.copytree(made, folder / "case", symlinks=True))
        name = rng.choice(list(READERS))
        file = root / rng.choice(files[name])
        done, how = _damage(rng, file, contents), "changed"
        if file.name == RECORD.name:
            how = "record"
        elif rng.random() < 0.4:  # of another version, which signed it
            how = "signed"
            if file.parent.is_dir():
                sign(root)
        with damaged_tree(root, f"{name}, {how}: {done}"), chdir(root):
            try:
                shown = READERS[name][0]()
            except RewardsmithError as error:
                of_a_file = how != "signed" or isinstance(error, DataError)  # a signed result may lack a metric
                if of_a_file and file.parents[1].name not in str(error):
                    raise AssertionError(f"the message does not name {file}: {error}") from error
                raise
            assert how != "changed" or shown == known[name], "other words or numbers than before the damage"

    yield case
