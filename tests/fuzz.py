"""Random and mutated inputs at every door: never a traceback, never a changed score. `make fuzz` runs it.

    python -m tests.fuzz --seconds 120 --seed 0

Prints cases and faults by area, and each fault with the input that made it; exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.data.jsonl import read_lines
from rlhf_core.data.quarantine import find_faults
from rlhf_core.data.schemas import RECORD_TYPES
from rlhf_core.errors import RewardsmithError
from rlhf_core.evaluation.answers import extract_choice, extract_number, parse_number, solution_is_right
from rlhf_core.evaluation.judges.protocol import JudgeRequest
from rlhf_core.evaluation.judges.templates import TEMPLATES, render
from rlhf_core.evaluation.sandbox import Program, ProgramLimits, Sandbox
from rlhf_core.recipe import parse_recipe
from tasks.params.pages import page_files, read_page, read_settings

PIECES = (
    "Better: ", "A", "B", "N", " = ", " < ", "[[", "]]", "10", "7.5", ">>", "preference: ", "m", "M", "Output (a)",
    "**", "\n", " ", "or", "not", "because", "The answer is ", "####", "\\boxed{", "}", "\\frac", "{",
    "\N{FULLWIDTH DIGIT FIVE}", "1,234", "/", "-", "nan", "\ud800", "\0", "{'model': 'model_1', 'rank': 1}", ",", "[",
    "]", "(C)", "%", "9" * 50, "=", "but", "<|", "|>", "# Instruction", "## Output (a):", "### User:", '"""',
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 5, 10**400, float("nan"), float("inf"), "", "x", "${X}", [], [1], {}, {"kind": None}, {1: 2},
    "\0", {"kind": 5},
)  # fmt: skip
TESTS = ("assert f(1) == 2", "assert abs(f(3) - 4) < 1e-6", "assert f(2) in (3,)", "assert sorted(f([3, 1])) == [1, 3]")
PROGRAM = """
import json, os, random
r = random.Random({seed})
def value(depth=0):
    inner = lambda: value(depth + 1)
    made = [lambda: r.choice([0, 2, 3, -1, 10**30, None, True, 'x', float('nan'), float('inf')])]
    if depth < 4:
        made += [lambda: [inner()], lambda: {{'t': r.choice(['tuple', 'set', 'deque', 'frozenset']), 'v': [inner()]}},
                 lambda: {{'t': r.choice(['dict', 'Counter']), 'v': [[inner(), inner()]]}},
                 lambda: {{'t': r.choice(['program', 'tests']), 'h': r.choice([0, 1, id(f)])}},
                 lambda: {{'t': r.choice(['Fraction', 'Decimal', 'int', 'type', 'bytes']),
                           'v': r.choice(['1/0', 'x', '2', 'exit'])}},
                 lambda: {{'t': 'numpy', 'd': r.choice(['<f8', 'O', 'V8']), 's': [1], 'v': '00' * 8, 'scalar': True}}]
    return r.choice(made)()
def message():
    return r.choice([
        {{'value': value()}}, {{'value': value(), 'arguments': [value()]}},
        {{'value': [['f', value()], ['abs', value()]]}},
        {{'error': [r.choice(['StopIteration', 'AssertionError', 'SystemExit', 'type', 5])], 'detail': value()}},
        {{'do': r.choice(['call', 'load', 'attribute']), 'of': 1, 'arguments': [], 'options': {{}}}}, value()])
import rlhf_core.evaluation.sandbox_exchange as exchange
sent = 0
def send(self, given):
    global sent
    sent += 1
    data = json.dumps(given if sent <= {first} else message()).encode()
    os.write(3, len(data).to_bytes(8, 'big') + data)
exchange.Channel.send = send
def f(x): return 0
"""


def text_of(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(30)))


def judge_replies(rng: random.Random) -> str:
    """A reply is read in both orders of its words or not at all, and no answer changes the marks of a prompt."""
    text = text_of(rng)
    for template in TEMPLATES.values():
        verdict = template.parse(text)
        assert not verdict.valid or verdict.value is None or 1 <= verdict.value <= 10, text
        if template.n_answers == 2:
            _, user = render(JudgeRequest("1", "q", (text, "plain"), template.name))
            _, plain = render(JudgeRequest("1", "q", ("plain", "plain"), template.name))
            for mark in template.marks:
                assert user.lower().count(mark.lower()) == plain.lower().count(mark.lower()), text
    return text


def model_answers(rng: random.Random) -> str:
    """An answer has a number that can be read again, or none."""
    text = text_of(rng)
    found = extract_number(text)
    assert found is None or solution_is_right(f"#### {found}", found) or parse_number(found) is None, text
    extract_choice(text, 4, ["cat", "dog", "1", "2"])
    return text


def data_rows(rng: random.Random) -> str:
    """A row is good, or has faults with a field and a reason."""
    row = {"id": "a", "prompt": "q", "chosen": "x", "rejected": "y", "source": "s", "messages": []}
    for _ in range(rng.randrange(1, 4)):
        row[rng.choice([*row, "label", "carried"])] = rng.choice([value for value in VALUES if value != {1: 2}])
    text = json.dumps(row)
    if rng.random() < 0.3:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice('{}[]":,\0\\') + text[place + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.train.jsonl")
        path.write_text(text + "\n", encoding="utf-8", errors="surrogatepass")
        lines = read_lines(path)
    find_faults(lines.rows, RECORD_TYPES[rng.choice(["preference", *RECORD_TYPES])])
    return text


def rows_of_params() -> list[dict[str, Any]]:
    """Returns all rows of this repository."""
    files = [file for folder in Path("params").iterdir() for file in page_files(folder, "rows")]
    pages = [read_page(file) for file in files]
    return [read_settings(f"{page.file}:{name}") for page in pages for name in page.names]  # type: ignore[arg-type]


def settings(rng: random.Random, known: list[dict[str, Any]]) -> str:
    """A row with a changed value is read, or refused in words."""
    row: Any = yaml.safe_load(yaml.safe_dump(rng.choice(known)))
    at = row
    while isinstance(at, dict) and at:
        key = rng.choice([*at])
        if rng.random() < 0.5 or not isinstance(at[key], dict):
            at[rng.choice([key, key, 5, "coress"])] = rng.choice(VALUES)
            break
        at = at[key]
    parse_recipe(row, "row")
    return str(row)


def programs(rng: random.Random, sandbox: Sandbox) -> str:
    """A program that sends its tests anything never passes."""
    source = PROGRAM.format(seed=rng.randrange(10**9), first=rng.randrange(5))
    result = sandbox.run(Program(source, TESTS))
    assert not result.passed, source
    assert sandbox.run(Program("def f(x): return x + 1", TESTS[:3])).passed
    return source


def fuzz(seconds: float, seed: int) -> int:
    """Runs every area for its share of the time and returns the number of faults."""
    rng, faults = random.Random(seed), 0
    known = rows_of_params()
    with Sandbox(ProgramLimits(seconds=5, memory_mb=128)) as sandbox:
        areas: dict[str, Callable[[random.Random], str]] = {
            "judge replies": judge_replies,
            "model answers": model_answers,
            "data rows": data_rows,
            "settings": lambda rng: settings(rng, known),
            "programs": lambda rng: programs(rng, sandbox),
        }
        for name, area in areas.items():
            end, cases, wrong = time.monotonic() + seconds / len(areas), 0, 0
            while time.monotonic() < end:
                cases += 1
                try:
                    area(rng)
                except RewardsmithError:
                    continue
                except Exception:
                    wrong += 1
                    shown = traceback.format_exc().encode("ascii", "backslashreplace").decode()
                    print(f"{name}: case {cases} of seed {seed}:\n{shown}")
            print(f"{name}: {cases} cases, {wrong} faults")
            faults += wrong
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    return 1 if fuzz(options.seconds, options.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
