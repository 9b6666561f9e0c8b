"""Programs in answers, their tests and pass@k; programs run in `sandbox`, never in this process."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rlhf_core.errors import DataError
from rlhf_core.evaluation.sandbox import Program, ProgramLimits, ProgramResult, run_programs

_FENCE = re.compile(r"```([A-Za-z0-9_+-]*)[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_PYTHON = ("python", "python3", "py")
_TIMER = """
import signal

class TooLong(BaseException):
    pass

def too_long(*_):
    raise TooLong("longer than {seconds} s")

def timed(call, *arguments):
    signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, {seconds})
    try:
        return call(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
"""


def extract_code(text: str) -> str:
    """Returns the first fenced block of Python, else the first without a language, else the first of any; the whole
    text when nothing is fenced."""
    blocks = [(match[1].lower(), match[2]) for match in _FENCE.finditer(text)]
    if not blocks:
        return text
    named = [block for language, block in blocks if language in _PYTHON]
    plain = [block for language, block in blocks if not language]
    return (named or plain or [blocks[0][1]])[0]


def timer(seconds: float) -> str:
    """Returns the source of `timed(call, *arguments)`, with which tests end after some seconds of one call."""
    return _TIMER.format(seconds=seconds)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Returns the unbiased estimate 1 - C(n-c, k) / C(n, k) that one of k samples passes.

    Args:
        n: samples drawn. c: samples that passed. k: at most n.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise DataError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def judge_samples(
    samples: Sequence[Sequence[str]],
    tests: Sequence[Sequence[str]],
    *,
    setups: Sequence[str] | None = None,
    entry_points: Sequence[str] | None = None,
    limits: ProgramLimits | None = None,
    workers: int = 1,
) -> list[list[ProgramResult]]:
    """Runs every sample of every problem against the problem's tests.

    Args:
        samples: per problem the generated programs; `extract_code` takes one from an answer.
        tests: per problem its test statements.
        setups: per problem code to run first.
        entry_points: per problem the function that its tests call, '' where it is not known.
        limits, workers: see `run_programs`.
    """
    setups = setups if setups is not None else [""] * len(samples)
    entry_points = entry_points if entry_points is not None else [""] * len(samples)
    if not len(samples) == len(tests) == len(setups) == len(entry_points):
        counts = f"{len(samples)} lists of samples, {len(tests)} of tests, {len(setups)} setups"
        counts += f", {len(entry_points)} entry points"
        raise DataError(f"{counts}: one of each per problem is needed")
    programs = [
        Program(text, tuple(problem_tests), setup, entry_point)
        for texts, problem_tests, setup, entry_point in zip(samples, tests, setups, entry_points, strict=True)
        for text in texts
    ]
    flat = iter(run_programs(programs, limits, workers=workers))
    return [[next(flat) for _ in texts] for texts in samples]


def summarise_passes(results: Sequence[Sequence[ProgramResult]], ks: Sequence[int] = (1,)) -> dict[str, float]:
    """Returns the mean pass@k over problems, its standard error (ddof 1), counts by status.

    Returns:
        {pass@k, pass@k_se for each k, n_problems, n_<status>}; NaN without problems.
    """
    summary: dict[str, float] = {"n_problems": len(results)}
    for k in ks:
        values = [pass_at_k(len(row), sum(r.passed for r in row), k) for row in results]
        n = len(values)
        mean = sum(values) / n if n else math.nan
        summary[f"pass@{k}"] = mean
        summary[f"pass@{k}_se"] = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n) if n > 1 else math.nan
    for row in results:
        for result in row:
            summary[f"n_{result.status}"] = summary.get(f"n_{result.status}", 0) + 1
    return summary
