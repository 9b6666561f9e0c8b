"""Random and mutated inputs at every door: never a traceback, never a changed score. `make fuzz` runs it.

    python -m tests.fuzz --seconds 120 --seed 0
    python -m tests.fuzz --seed 0 --area pages --case 12

Prints cases and faults by area, and each fault with its input and the number of its case; exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from dvc.utils.serialize import YAMLFileCorruptedError, load_yaml

from rlhf_core.data.jsonl import read_lines
from rlhf_core.data.quarantine import find_faults
from rlhf_core.data.schemas import RECORD_TYPES
from rlhf_core.errors import RewardsmithError
from rlhf_core.evaluation.answers import extract_number, parse_number
from rlhf_core.evaluation.judges.templates import TEMPLATES, JudgeRequest, render
from rlhf_core.reasoning.grading import extract_answer, is_right
from tasks.graph.check import check_rows
from tasks.graph.matrix import build
from tasks.params.pages import read_page
from tasks.params.yaml_files import read_mapping
from tests import small_repository

#: A case of an area: it makes a random input and asserts what must hold. A refusal in words is right, too.
Area = Callable[[random.Random], object]
#: An area makes its files in a folder of its own.
Prepared = Callable[[Path], AbstractContextManager[Area]]

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 5, 10**400, float("nan"), float("inf"), "", "x", "${X}", [], [1], {}, {"kind": None}, {1: 2},
    "\0", {"kind": 5},
)  # fmt: skip
PIECES = (
    "Better: ", "A", "B", "N", " = ", " < ", "[[", "]]", "10", "7.5", ">>", "preference: ", "m", "M", "Output (a)",
    "**", "\n", " ", "or", "not", "because", "The answer is ", "####", "\\boxed{", "}", "\\frac", "{",
    "\N{FULLWIDTH DIGIT FIVE}", "1,234", "/", "-", "nan", "\ud800", "\0", "{'model': 'model_1', 'rank': 1}", ",", "[",
    "]", "(C)", "%", "9" * 50, "=", "but", "<|", "|>", "# Instruction", "## Output (a):", "### User:", '"""',
)  # fmt: skip
INSERTS = (
    b"\0", b"\xff", b"\xc3", b"\r", b"\n", b"[" * 10_000, b"{\"a\":" * 10_000, b"- " * 10_000, b"9" * 5000, b"1e999",
    b"NaN", b"{", b"]", b'"', b":", b"&a [*a]", b"!!python/name:os.system", b"#", b"yes", b"1e3", b"1_000", b"0o17",
    b"12:30:45", b"2020-01-01", b"~", b"''", "\u2028".encode(), "\ufeff".encode(), b"<<<<<<< HEAD\n", b"\t", b"? ",
)  # fmt: skip


def random_text(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(30)))


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Returns a content with one kind of damage to its bytes, lines or numbers."""
    a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    lines = content.splitlines(keepends=True) or [b""]
    line, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    number = rng.choice([*re.finditer(rb"-?\d+(?:\.\d+)?", content)] or [*re.finditer(b"$", content)])
    insert = rng.choice(INSERTS)
    return rng.choice(
        (
            content[:a],
            content[:a] + content[b:],
            content[:a] + insert + content[a:],
            content[:a] + bytes([rng.randrange(256)]) + content[a + 1 :],
            content[: number.start()] + insert + content[number.end() :],
            content + content,
            b"".join([*lines[:line], *lines[line + 1 :]]),
            b"".join([*lines[:line], lines[other], *lines[line:]]),
        )
    )


def judge_replies(rng: random.Random) -> None:
    """A reply is read within its scale or not at all, and no answer changes the marks of a prompt."""
    text = random_text(rng)
    for template in TEMPLATES.values():
        verdict = template.parse(text)
        assert not isinstance(verdict, float) or 1 <= verdict <= 10, text
        if template.n_answers == 2:
            _, user = render(JudgeRequest("1", "q", (text, "plain"), template.name))
            _, plain = render(JudgeRequest("1", "q", ("plain", "plain"), template.name))
            for mark in template.marks:
                assert user.lower().count(mark.lower()) == plain.lower().count(mark.lower()), text


def model_answers(rng: random.Random) -> None:
    """An answer has a number that can be read again, or none."""
    text = random_text(rng)
    number = extract_number(text)
    assert number is None or is_right(number, {"answer": number}) or parse_number(number) is None, text
    extract_answer(text, {"answer": "cat", "choices": ["cat", "dog", "1", "2"]})


def data_rows(rng: random.Random) -> None:
    """A row is good, or has faults with a field and a reason."""
    row = {"id": "a", "prompt": "q", "chosen": "x", "rejected": "y", "source": "s", "messages": []}
    for _ in range(rng.randrange(1, 4)):
        row[rng.choice([*row, "label", "carried"])] = rng.choice([value for value in VALUES if value != {1: 2}])
    content = json.dumps(row).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.train.jsonl")
        path.write_bytes((damaged(rng, content) if rng.random() < 0.3 else content) + b"\n")
        lines = read_lines(path)
    find_faults(lines.rows, RECORD_TYPES[rng.choice(["preference", *RECORD_TYPES])])


def plain(value: Any) -> Any:
    """Returns nested settings with keys of text, and lists for all sequences."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


@contextmanager
def pages(folder: Path) -> Iterator[Area]:
    """Yields a case: a settings file with damaged text is read as DVC reads it, or refused by its name; the graph is
    built without its rows, or refused."""
    root = small_repository.create(folder / "small", demo=("bandit",), seeds=(0,))
    kept = {file: file.read_bytes() for file in (root / "params.yaml", *root.glob("params/**/*.yaml"))}

    def read(file: Path) -> None:
        ours = read_mapping(file)
        with suppress(YAMLFileCorruptedError, ValueError):
            assert repr(plain(load_yaml(str(file)))) == repr(plain(ours)), f"DVC reads {file} otherwise"
        if file.name != "params.yaml":
            page = read_page(file)
            for name in page.names:
                page.entry(name)

    def case(rng: random.Random) -> None:
        file = rng.choice([*kept])
        file.write_bytes(damaged(rng, kept[file]))
        try:
            try:
                read(file)
            except RewardsmithError as error:
                if file.name not in str(error):
                    raise AssertionError(f"the message does not name {file.name}") from error
            build(root)
            for problem in check_rows(root, "segment", ["bandit", "dpo"], "testbed"):
                assert ".yaml" in problem or problem.startswith("unknown row"), f"{problem} names no file"
        except AssertionError as error:
            error.add_note(f"{file}: {file.read_bytes()[:2000]!r}")
            raise
        finally:
            file.write_bytes(kept[file])

    yield case


def unprepared(area: Area) -> Prepared:
    """Returns an area that needs no files."""

    @contextmanager
    def prepared(folder: Path) -> Iterator[Area]:
        yield area

    return prepared


AREAS: Mapping[str, Prepared] = {
    "judge replies": unprepared(judge_replies), "model answers": unprepared(model_answers),
    "data rows": unprepared(data_rows), "pages": pages,
}  # fmt: skip


def run(name: str, seconds: float, seed: int, only: int | None = None) -> int:
    """Runs cases of an area for some seconds, at least one, or only one; returns the number of faults."""
    cases = refused = faults = 0
    quiet = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        with redirect_stdout(quiet):
            area = opened.enter_context(AREAS[name](Path(folder)))
        end = time.monotonic() + seconds
        while not cases or (only is None and time.monotonic() < end):
            number = only or cases + 1
            cases += 1
            try:
                with redirect_stdout(quiet), redirect_stderr(quiet):
                    area(random.Random(f"{seed} {name} {number}"))
            except RewardsmithError:
                refused += 1
            except Exception:
                faults += 1
                shown = traceback.format_exc().encode("ascii", "backslashreplace").decode()
                print(f"{name}: case {number} of seed {seed}:\n{shown}")
            quiet.truncate(0)
    print(f"{name}: {cases} cases, {refused} refused in words, {faults} faults", flush=True)
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--area", choices=AREAS, action="append", help="one area; again for several; all without it")
    parser.add_argument("--case", type=int, help="the number of one case, as a message about a fault has it")
    options = parser.parse_args(arguments)
    areas = options.area or tuple(AREAS)
    return int(sum(run(name, options.seconds / len(areas), options.seed, options.case) for name in areas) > 0)


if __name__ == "__main__":
    sys.exit(main())
