"""False verdicts of tables without any true difference, by simulation; coverage of their intervals.

    python -m benchmarks.false_verdicts [--tables 20000] [--worlds 8 16] [--seed 0]

A table has six rows and a main row. A run's score is a level, a part of its world, a part of its row in its world, and
a part of its policy seed, whose deviation is 1 or 4 points by row; one run in ten collapses. Expected scores of all
rows are equal. Printed for each case, number of worlds and test, with Monte-Carlo errors:

- false tables: share of tables with one 'above' or 'below' or more (Holm); aim: at most .05
- coverage: share of 95 % intervals that have the true difference, 0; aim: at least .93
- false equivalents: share of tables with one 'equivalent' or more (Holm), where all rows differ by exactly the margin;
  aim: at most .05

In the cases `row alone` and `main alone` one side collapses and its other runs are better by as much, so that expected
scores are equal still. No test of a mean is sound there: of 8 worlds, 4 in 10 experiments see no collapse. They say how
wrong verdicts are in that case, and have no aim. `A/A` lines give the share of sets of forty twins that
`rlhf_core.evaluation.twins` refuses, by the band of their mean square or by the uniformity of their p-values: of sound
sets, and of some whose variance is a multiple of the eight differences before them.

`whole studies` have the same scores: a main row and three rows in four cells, the two levels of a dial twice, and five
hypotheses, the first of which is the slope of a row's lead over the dial. A world's and a row's own part are those of
all cells. Their rates:

- false studies: share of studies with one 'confirmed' or 'contradicted' or more, where no hypothesis is true
- true primary: the same over the other hypotheses, where the primary one alone is true and is found
- two levels: the share of false studies if the primary hypothesis and the others had .05 each; no aim
- false equivalents: share of studies with one 'equivalent' or more, where three rows differ by exactly the margin
- coverage: share of 95 % intervals that have the true number

`skewed differences` are of one hypothesis, whose differences between worlds have mean 0 and a long tail above:

- false verdicts: share of studies with 'confirmed' or 'contradicted'; no aim
- away from the tail: the share in which the mean was found below 0, opposite to the tail
- false equivalents: share of 'equivalent' where the true difference is the margin, 1.5 deviations, on the worse side

Takes about two minutes. Writes `.work/benchmarks/false_verdicts.csv`, a rate a line. The figures of `docs/evidence.md`,
those of the fewest worlds, are made by

    python -m benchmarks.false_verdicts --out docs/measured/evidence.csv --document docs/evidence.md
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rlhf_core.evaluation.statistics import Floats
from rlhf_core.evaluation.twins import calibration_of_p_values, standardised_p
from rlhf_core.evaluation.worlds import ALPHA

OUT = Path(".work/benchmarks/false_verdicts.csv")
ROWS = 6
#: Points: deviation of worlds, and of a row's own part in a world; margin of equivalence.
WORLD, INTERACTION, MARGIN = 4.0, 2.0, 5.0
FALSE_TABLES, COVERAGE = 0.05, 0.93
#: Columns of the file; rates of a case; names of tables.
COLUMNS = ("table", "row", "column", "value")
RATES = ("false tables", "coverage", "false equivalents")
ALONE, ALIKE, TWINS = "one side collapses", "both sides alike", "sets of forty twins"
UNCOLLAPSED = "no collapse"
#: Arguments of `refused_twins` by the name of the case; 1 row with 8 degrees is a study of 48 worlds.
TWIN_CASES: Mapping[str, Mapping[str, Any]] = {
    **{
        f"rows: {rows}, degrees: {degrees:g}, {UNCOLLAPSED}": {"rows": rows, "degrees": degrees}
        for rows, degrees in ((1, math.inf), (1, 40), (1, 8), (5, 8), (5, 0))
    },
    "rows: 1, degrees: 40, 10% of runs collapse": {"rows": 1, "degrees": 40, "collapse": 0.1},
    **{
        f"variance {multiple:g} times that of the 8 before": {"rows": 1, "degrees": 8, "multiple": multiple}
        for multiple in (0.2, 0.5, 2, 4, 9)
    },
}
STUDIES = "whole studies"
STUDY_RATES = ("false studies", "true primary", "false equivalents", "coverage", "two levels")
SKEWED = "skewed differences"
SKEW_RATES = ("false verdicts", "away from the tail", "false equivalents")
#: Differences between worlds with mean 0 and deviation 1, by the shape of their distribution.
SHAPES: Mapping[str, Callable[[np.random.Generator, tuple[int, int]], Floats]] = {
    "normal": lambda generator, shape: generator.normal(size=shape),
    "heavy tails on both sides (t, 3 degrees)": lambda g, shape: g.standard_t(3, size=shape) / math.sqrt(3),
    "skewness 1 (gamma)": lambda generator, shape: generator.gamma(4, size=shape) / 2 - 2,
    "skewness 2 (exponential)": lambda generator, shape: generator.exponential(size=shape) - 1,
    "skewness 6 (lognormal)": lambda generator, shape: (
        (np.exp(generator.normal(size=shape)) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)
    ),
}
#: Of skewed differences, in their deviations.
SKEW_MARGIN = 1.5
#: Of a study: cells, the weights of a slope over their dial, and each hypothesis as (weights of cells, row, other row).
CELLS = 4
SLOPE, MEAN = (-0.5, -0.5, 0.5, 0.5), (0.25,) * CELLS
HYPOTHESES = ((SLOPE, 1, 0), (MEAN, 1, 0), (MEAN, 2, 0), (MEAN, 3, 0), (MEAN, 1, 2))
#: The hypotheses of a study whose rows differ by the margin.
BESIDE_MAIN = slice(1, 4)

Cell = dict[str, str]


@dataclass(frozen=True)
class Case:
    """Scores of a table whose rows have equal expectations.

    Attributes:
        deviations: of the policy seeds of the main row and of each other row.
        collapse: share of runs of the main row and of the other rows that collapse.
        fall: points that a collapsed run loses, on average.
        heavy: the loss has an exponential distribution; else it is always `fall`.
        sound: the t-test is expected to be right.
    """

    name: str
    deviations: tuple[float, ...]
    collapse: tuple[float, float] = (0.1, 0.1)
    fall: float = 30.0
    heavy: bool = False
    sound: bool = True


CASES = (
    Case("no collapse", (1, *[1, 4] * 3), collapse=(0.0, 0.0)),
    Case("rows 1:4", (1, *[1, 4] * 3)),
    Case("rows 1:4, heavy", (1, *[1, 4] * 3), heavy=True, fall=20),
    Case("main 1, rows 4", (1, *[4] * ROWS)),
    Case("main 1, rows 4, heavy", (1, *[4] * ROWS), heavy=True, fall=20),
    Case("main 4, rows 1", (4, *[1] * ROWS)),
    Case("main 4, rows 1, heavy", (4, *[1] * ROWS), heavy=True, fall=20),
    Case("row alone, 10 points", (1, *[4] * ROWS), collapse=(0.0, 0.1), fall=10, sound=False),
    Case("row alone, 30 points", (1, *[4] * ROWS), collapse=(0.0, 0.1), sound=False),
    Case("main alone, 30 points", (1, *[4] * ROWS), collapse=(0.1, 0.0), sound=False),
)


def simulated(
    case: Case, tables: int, worlds: int, *, shared: bool, generator: np.random.Generator, seeds: int = 1
) -> Floats:
    """Returns scores, [tables, 1 + rows, worlds, policy seeds]; the main row is the first."""
    rows = len(case.deviations)
    shape = (tables, rows, worlds, seeds)
    of_world = WORLD * generator.normal(size=(tables, 1 if shared else rows, worlds, 1))
    of_row = INTERACTION * generator.normal(size=(tables, rows, worlds, 1))
    of_seed = np.array(case.deviations)[None, :, None, None] * generator.normal(size=shape)
    share = np.array([case.collapse[0], *[case.collapse[1]] * (rows - 1)])[None, :, None, None]
    size = case.fall * (generator.exponential(size=shape) if case.heavy else 1.0)
    lost = size * (generator.random(shape) < share) - share * case.fall
    return np.asarray(60 + of_world + of_row + of_seed - lost)


def tested(means: Floats, *, shared: bool) -> tuple[Floats, Floats, Floats]:
    """Returns effects, standard errors and degrees of freedom, each [tables, rows], of [tables, 1 + rows, units]."""
    main, others, units = means[:, :1], means[:, 1:], means.shape[2]
    effects = others.mean(-1) - main.mean(-1)
    if shared:
        errors = (others - main).std(-1, ddof=1) / math.sqrt(units)
        return effects, errors, np.full_like(errors, units - 1)
    first, second = others.var(-1, ddof=1) / units, main.var(-1, ddof=1) / units
    degrees = (first + second) ** 2 / (first**2 + second**2) * (units - 1)
    return effects, np.sqrt(first + second), degrees


def has_verdict(effects: Floats, errors: Floats, degrees: Floats) -> NDArray[np.bool_]:
    """Says of each table whether Holm rejects a row: where the smallest p is below .05 over the number of rows."""
    p = 2 * stats.t.sf(np.abs(effects / errors), degrees)
    return np.asarray(p.min(axis=1) * p.shape[1] < ALPHA)


@dataclass(frozen=True)
class Rates:
    """Measured rates of a case with the Monte-Carlo error of the mean over tables."""

    case: str
    worlds: int
    test: str
    tables: int
    false_tables: float
    false_tables_error: float
    coverage: float
    coverage_error: float
    false_equivalents: float
    false_equivalents_error: float
    sound: bool

    @property
    def reached(self) -> bool:
        """Says whether the aims hold within two Monte-Carlo errors."""
        return (
            self.false_tables <= FALSE_TABLES + 2 * self.false_tables_error
            and self.coverage >= COVERAGE - 2 * self.coverage_error
            and self.false_equivalents <= ALPHA + 2 * self.false_equivalents_error
        )

    def cells(self) -> list[Cell]:
        """Returns the rates as cells of the file."""
        table = f"{ALIKE if self.sound else ALONE}, {self.worlds} worlds, {self.test}"
        values = (self.false_tables, self.coverage, self.false_equivalents)
        return [_cell(table, self.case, column, value) for column, value in zip(RATES, values, strict=True)]


@dataclass(frozen=True)
class StudyRates:
    """Measured rates of whole studies of a case, in the order of `STUDY_RATES`."""

    case: str
    worlds: int
    studies: int
    values: tuple[float, ...]
    sound: bool

    @property
    def reached(self) -> bool:
        """Says whether the aims hold within two Monte-Carlo errors."""
        errors = [2 * math.sqrt(value * (1 - value) / self.studies) for value in self.values]
        aims = (FALSE_TABLES, FALSE_TABLES, ALPHA)
        few = all(v <= aim + e for v, aim, e in zip(self.values, aims, errors, strict=False))
        return few and self.values[3] >= COVERAGE - errors[3]

    def cells(self) -> list[Cell]:
        """Returns the rates as cells of the file."""
        named = zip(STUDY_RATES, self.values, strict=True)
        return [_cell(f"{STUDIES}, {self.worlds} worlds", self.case, column, value) for column, value in named]


def study_numbers(scores: Floats) -> Floats:
    """Returns each hypothesis' number in each world, [studies, hypotheses, worlds], of scores
    [studies, rows, worlds, cells]."""
    made = [(scores[:, row] - scores[:, other]) @ np.array(weights) for weights, row, other in HYPOTHESES]
    return np.stack(made, axis=1)


def study_p(numbers: Floats, margin: float | None = None) -> Floats:
    """Returns the two-sided p of no effect, [studies, hypotheses], or with a margin that of two one-sided tests."""
    effects, errors = numbers.mean(-1), numbers.std(-1, ddof=1) / math.sqrt(numbers.shape[-1])
    distance = np.abs(effects) if margin is None else margin - np.abs(effects)
    return np.asarray((2 if margin is None else 1) * stats.t.sf(distance / errors, numbers.shape[-1] - 1))


def has_finding(p: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Says of each study whether its primary hypothesis has a verdict, and whether one of the others has."""
    primary, others = p[:, 0] < ALPHA, p[:, 1:]
    return primary, primary & (others.min(axis=1) * others.shape[1] < ALPHA)


def study_rates(case: Case, studies: int, worlds: int, *, seed: int) -> StudyRates:
    """Returns the rates of whole studies of a case."""
    generator = np.random.default_rng([seed, worlds, CASES.index(case) if case in CASES else 99, CELLS])
    few = Case(case.name, case.deviations[:CELLS], case.collapse, case.fall, case.heavy)
    scores = simulated(few, studies, worlds, shared=True, generator=generator, seeds=CELLS)
    numbers = study_numbers(scores)
    p = study_p(numbers)
    primary, others = has_finding(p)
    half = stats.t.isf(ALPHA / 2, worlds - 1) * numbers.std(-1, ddof=1) / math.sqrt(worlds)
    covered = np.abs(numbers.mean(-1)) <= half
    growing = scores.copy()
    growing[:, 1] += 100 * np.sign(SLOPE)
    found, beside = has_finding(study_p(study_numbers(growing)))
    apart = scores.copy()
    apart[:, 1:] += MARGIN
    within = study_p(study_numbers(apart), MARGIN)[:, BESIDE_MAIN]
    twice = primary | (p[:, 1:].min(axis=1) * (p.shape[1] - 1) < ALPHA)
    equivalent = within.min(axis=1) * (len(HYPOTHESES) - 1) < ALPHA
    measured = (primary | others, beside & found, equivalent, covered, twice)
    return StudyRates(case.name, worlds, studies, tuple(float(each.mean()) for each in measured), case.sound)


def skew_rates(shape: str, studies: int, worlds: int, *, seed: int) -> tuple[float, ...]:
    """Returns the rates of one hypothesis whose differences have a shape, in the order of `SKEW_RATES`."""
    generator = np.random.default_rng([seed, worlds, [*SHAPES].index(shape), 6])
    numbers = SHAPES[shape](generator, (studies, worlds))[:, None]
    found = study_p(numbers)[:, 0] < ALPHA
    within = [study_p(numbers + sign * SKEW_MARGIN, SKEW_MARGIN) < ALPHA for sign in (1, -1)]
    away = found & (numbers.mean(-1)[:, 0] < 0)
    return float(found.mean()), float(away.mean()), max(float(each.mean()) for each in within)


def _cell(table: str, row: str, column: str, value: float) -> Cell:
    return {"table": table, "row": row, "column": column, "value": f"{value:.3f}".lstrip("0")}


def tables_of(cells: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Returns a Markdown table of each kind of cells at its fewest worlds: the paired tests, and the sets of twins.

    Whole studies, tables whose sides are alike and twins without collapse have one line for all their cases, with the
    least and most of each rate.
    """
    values = {(cell["table"], cell["row"], cell["column"]): cell["value"] for cell in cells}
    made = {}
    aimed = STUDY_RATES[:-1]  # the last is of a rule that is not used
    kinds = (ALONE, "paired", RATES), (ALIKE, "paired", RATES), (STUDIES, "", aimed), (SKEWED, "", SKEW_RATES)
    for kind, test, shown in kinds:
        chosen = [table for table, _, _ in values if table.startswith(kind) and table.endswith(test)]
        fewest = min(chosen, key=_worlds)
        rows = list(dict.fromkeys(row for table, row, _ in values if table == fewest))
        groups = {name: [name] for name in rows}
        if kind in (ALIKE, STUDIES):
            alone = [case.name for case in CASES if not case.sound]
            groups = {ALIKE: [row for row in rows if row not in alone], ALONE: [row for row in rows if row in alone]}
        lines = [
            [_named(name, of), *(_range([values[fewest, row, column] for row in of]) for column in shown)]
            for name, of in groups.items()
            if of
        ]
        made[kind] = _markdown([kind, *shown], lines)
    sets = [(row, value) for (table, row, _), value in values.items() if table == TWINS]
    sound = [value for row, value in sets if row.endswith(UNCOLLAPSED)]
    twins = [[f"sound, {UNCOLLAPSED}, {len(sound)} cases", _range(sound)]]
    twins += [[row, value] for row, value in sets if not row.endswith(UNCOLLAPSED)]
    return made | {TWINS: _markdown([TWINS, "refused"], twins)}


def _named(name: str, rows: Sequence[str]) -> str:
    return name if rows == [name] else f"{name}, {len(rows)} cases"


def _range(values: Sequence[str]) -> str:
    least, most = min(values, key=float), max(values, key=float)
    return least if least == most else f"{least} to {most}"


def _worlds(table: str) -> int:
    """Returns the number of worlds in the name of a table of cells, `<kind>, <number> worlds[, <test>]`."""
    return int(table.split(", ")[1].split()[0])


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head, *lines = ("| " + " | ".join(line) + " |" for line in (heads, *rows))
    return "\n".join([head, "|---" * len(heads) + "|", *lines])


def write_tables(document: Path, cells: Iterable[Mapping[str, str]]) -> None:
    """Replaces each table of a document by the one of the same first head.

    Raises:
        ValueError: the document has no such table.
    """
    text = document.read_text(encoding="utf-8")
    for kind, table in tables_of(cells).items():
        pattern = re.compile(rf"^\| {re.escape(kind)} \|.*(?:\n\|.*)*", re.MULTILINE)
        found = pattern.search(text)
        if not found:
            raise ValueError(f"{document} has no table whose first column is '{kind}'; add a line '| {kind} |'")
        text = text[: found.start()] + table + text[found.end() :]
    document.write_text(text, encoding="utf-8")


def rates(case: Case, tables: int, worlds: int, *, shared: bool, seed: int, count_seeds: int = 0) -> Rates:
    """Returns the rates of a case.

    Args:
        shared: rows share their worlds (paired); else each has its own (Welch).
        count_seeds: policy seeds of a world to count as if each were a world, a mistake that the rates must show.
    """
    generator = np.random.default_rng([seed, worlds, shared])
    scores = simulated(case, tables, worlds, shared=shared, generator=generator, seeds=count_seeds or 1)
    means = scores.reshape(*scores.shape[:2], -1) if count_seeds else scores.mean(-1)
    effects, errors, degrees = tested(means, shared=shared)
    false = has_verdict(effects, errors, degrees)
    covered = np.abs(effects) <= stats.t.isf(ALPHA / 2, degrees) * errors
    within = stats.t.sf((MARGIN - np.abs(effects + MARGIN)) / errors, degrees)
    equivalent = within.min(axis=1) * within.shape[1] < ALPHA

    def mean_and_error(values: Floats) -> tuple[float, float]:
        return float(values.mean()), float(values.std(ddof=1) / math.sqrt(tables))

    return Rates(
        case.name,
        worlds,
        "paired" if shared else "Welch",
        tables,
        *mean_and_error(false.astype(np.float64)),
        *mean_and_error(covered.mean(axis=1)),
        *mean_and_error(equivalent.astype(np.float64)),
        case.sound,
    )


def refused_twins(
    sets: int, *, rows: int, degrees: float, collapse: float = 0.0, multiple: float = 1.0, seed: int, n: int = 40
) -> float:
    """Returns the share of sets of n twin differences that are refused (`Calibration.sound`).

    Args:
        rows: that the differences belong to, each with a variance of its own.
        degrees: of each row's reference variance; 0 for none, infinite for a known one.
        collapse: share of runs that lose 30 points, with seeds of 4 points.
        multiple: variance of the differences as a multiple of that known before; 1 for sound ones.
    """
    generator = np.random.default_rng([seed, rows, int(100 * collapse)])

    def differences(count: int) -> Floats:
        runs = 4 * generator.normal(size=(count, 2)) - 30 * (generator.random((count, 2)) < collapse)
        return np.asarray(runs[:, 0] - runs[:, 1])

    known = 2 * (16 + 900 * collapse * (1 - collapse))
    refused = 0
    for _ in range(sets):
        p_values: list[float] = []
        for _ in range(rows):
            reference = differences(int(degrees)) if 0 < degrees < math.inf else np.sqrt([known])
            variance = float(np.mean(reference**2))
            p_values += standardised_p(list(math.sqrt(multiple) * differences(n // rows)), variance, degrees)
        refused += not calibration_of_p_values(p_values).sound
    return refused / sets


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=20_000, help="simulated tables of each case")
    parser.add_argument("--worlds", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--twins", type=int, default=2000, help="simulated sets of forty twins")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--document", type=Path, help="Markdown file whose tables are written anew")
    given = parser.parse_args(arguments)
    if given.tables < 2 or given.twins < 1 or min(given.worlds) < 2:
        parser.error("at least 2 tables, 1 set of twins and 2 worlds are needed")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    cells: list[Cell] = []
    print(f"{'case':24s} {'worlds':>6s} {'test':6s} {'false tables':>15s} {'coverage':>15s} {'false equivalents':>18s}")
    for case in CASES:
        for worlds in given.worlds:
            for shared in (True, False):
                found = rates(case, given.tables, worlds, shared=shared, seed=given.seed)
                cells += found.cells()
                print_rates(found)
    for case in CASES:
        for worlds in given.worlds:
            whole = study_rates(case, given.tables, worlds, seed=given.seed)
            cells += whole.cells()
            print_study_rates(whole)
    for shape in SHAPES:
        for worlds in given.worlds:
            values = skew_rates(shape, given.tables, worlds, seed=given.seed)
            named = dict(zip(SKEW_RATES, values, strict=True))
            cells += [_cell(f"{SKEWED}, {worlds} worlds", shape, *each) for each in named.items()]
            print(f"{SKEWED}, {shape}, {worlds} worlds: {', '.join(f'{n} {v:.4f}' for n, v in named.items())}")
    for name, case in TWIN_CASES.items():
        share = refused_twins(given.twins, **case, seed=given.seed)
        error = math.sqrt(share * (1 - share) / given.twins)
        cells.append(_cell(TWINS, name, "refused", share))
        print(f"A/A, {name}: refused {share:.4f} ± {error:.4f}")
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(cells)
    print(f"wrote {given.out}")
    if given.document:
        write_tables(given.document, cells)
        print(f"wrote {given.document}")


def print_rates(found: Rates) -> None:
    """Prints one line of rates."""
    mark = ("" if found.reached else "  misses an aim") if found.sound else "  (no aim)"
    print(
        f"{found.case:24s} {found.worlds:6d} {found.test:6s} {found.false_tables:.4f} ± {found.false_tables_error:.4f} "
        f"{found.coverage:.4f} ± {found.coverage_error:.4f} {found.false_equivalents:.4f} ± "
        f"{found.false_equivalents_error:.4f}{mark}",
        flush=True,
    )


def print_study_rates(found: StudyRates) -> None:
    """Prints the rates of whole studies on one line."""
    mark = ("" if found.reached else "  misses an aim") if found.sound else "  (no aim)"
    shown = ", ".join(f"{name} {value:.4f}" for name, value in zip(STUDY_RATES, found.values, strict=True))
    print(f"{STUDIES}, {found.case}, {found.worlds} worlds: {shown}{mark}", flush=True)


if __name__ == "__main__":
    main()
