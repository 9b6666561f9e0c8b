"""Programs that send their tests anything."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_core.evaluation.sandbox import Program, ProgramLimits, Sandbox
from tests.fuzz.damage import Area

TESTS = ("assert f(1) == 2", "assert abs(f(3) - 4) < 1e-6", "assert f(2) in (3,)", "assert sorted(f([3, 1])) == [1, 3]")
PROGRAM = """
import json, os, random
r = random.Random({seed})
def value(depth=0):
    inner = lambda: value(depth + 1)
    made = [lambda: r.choice([0, 2, 3, -1, 10**30, None, True, 'x', float('nan'), float('inf')])]
    if depth < 4:
        made += [lambda: [inner()], lambda: {{r.choice(['tuple', 'set', 'deque', 'frozenset', 'iterator']): [inner()]}},
                 lambda: {{'dict': [[inner(), inner()]]}},
                 lambda: {{r.choice(['Fraction', 'Decimal', 'int', 'type', 'bytes']):
                           r.choice(['1/0', 'x', '2', 'exit'])}},
                 lambda: {{'numpy': [r.choice(['<f8', 'O', 'V8']), [1], '00' * 8, True]}}]
    return r.choice(made)()
def message():
    return r.choice([
        {{'value': value()}}, {{'value': ['f', 'abs']}}, value(),
        {{'error': [r.choice(['StopIteration', 'AssertionError', 'SystemExit', 'type', 5])], 'detail': value()}}])
import rlhf_core.evaluation.sandbox_runner as runner
sent = 0
def send(self, given):
    global sent
    sent += 1
    os.write(3, json.dumps(given if sent <= {first} else message()).encode() + b'\\n')
runner.Channel.send = send
def f(x): return 0
"""


@contextmanager
def programs(folder: Path) -> Iterator[Area]:
    """Yields a case: a program that sends its tests anything never passes, and the next one is graded as it is."""
    with Sandbox(ProgramLimits(seconds=5, memory_mb=128)) as sandbox:

        def case(rng: random.Random) -> None:
            source = PROGRAM.format(seed=rng.randrange(10**9), first=rng.randrange(5))
            assert not sandbox.run(Program(source, TESTS)).passed, source
            assert sandbox.run(Program("def f(x): return x + 1", TESTS[:3])).passed

        yield case
