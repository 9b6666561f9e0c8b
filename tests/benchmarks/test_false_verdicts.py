"""Verdicts by worlds: at most one null table of twenty has a false one, and intervals cover. Other units are worse."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import false_verdicts as f
from rlhf_core.evaluation.statistics import Floats
from rlhf_core.evaluation.verdicts import table_verdicts
from rlhf_core.evaluation.worlds import ALPHA, paired, welch
from rlhf_core.typed import typed
from tasks.params.studies import StudySpec
from tasks.studies.verdicts import findings_of
from tests.tasks.studies.synthetic_study import run

SOUND = [case for case in f.CASES if case.sound]


@pytest.mark.parametrize("worlds", [8, 16])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("case", SOUND, ids=lambda case: case.name)
def test_null_tables_have_few_verdicts_and_intervals_cover(case: f.Case, shared: bool, worlds: int) -> None:
    found = f.rates(case, 4000, worlds, shared=shared, seed=1)
    assert found.reached, found


def test_seeds_counted_as_worlds_miss_the_aim() -> None:
    """The same scores with two policy seeds a world: averaged they are sound, counted they are not."""
    case = SOUND[0]
    counted = f.rates(case, 2000, 8, shared=True, seed=1, count_seeds=2)
    assert counted.false_tables > 0.10
    assert not counted.reached


def test_a_row_that_alone_collapses_is_beyond_the_t_test() -> None:
    case = next(case for case in f.CASES if case.name == "row alone, 30 points")
    assert not f.rates(case, 2000, 8, shared=True, seed=1).reached


@pytest.mark.parametrize("shared", [True, False])
def test_the_simulated_tests_are_those_of_the_tables(shared: bool) -> None:
    case = f.Case("shifted", (4, *[1, 4] * 3), fall=12)
    scores = f.simulated(case, 60, 8, shared=shared, generator=np.random.default_rng(3), seeds=2)
    scores[:, 1] += 9.0
    verdicts = f.has_verdict(*f.tested(scores.mean(-1), shared=shared))
    assert 5 < verdicts.sum() < 55
    for rows, expected in zip(scores, verdicts, strict=True):
        values = {
            str(row): {(world if shared else f"{row}-{world}"): list(seeds) for world, seeds in enumerate(of_row)}
            for row, of_row in enumerate(rows)
        }
        found = table_verdicts(values, "0", compare=paired if shared else welch)
        assert any(one.word in ("above", "below") for one in found.values()) == expected


@pytest.mark.parametrize("worlds", [8, 16])
@pytest.mark.parametrize("case", SOUND, ids=lambda case: case.name)
def test_null_studies_have_few_verdicts_and_intervals_cover(case: f.Case, worlds: int) -> None:
    """Rows of unequal deviations with a part of their own in each world; one run of ten collapses."""
    found = f.study_rates(case, 4000, worlds, seed=1)
    assert found.reached, found


def test_two_levels_of_five_percent_miss_the_aim() -> None:
    """The primary hypothesis at .05 and Holm at .05 over the others: what studies did before."""
    false, *_, twice = f.study_rates(SOUND[0], 4000, 8, seed=1).values
    assert twice > 0.08
    assert false < 0.06


def test_differences_with_a_tail_on_one_side_are_beyond_the_t_test() -> None:
    """Sound for normal differences; of exponential ones twice as many verdicts, nearly all away from the tail."""
    false, _, equivalent = f.skew_rates("normal", 8000, 8, seed=1)
    assert max(false, equivalent) < 0.06
    false, away, equivalent = f.skew_rates("skewness 2 (exponential)", 8000, 8, seed=1)
    assert min(false, equivalent) > 0.09
    assert away > 0.9 * false


@pytest.mark.parametrize("shape", f.SHAPES)
def test_differences_of_every_shape_have_mean_0_and_deviation_1(shape: str) -> None:
    values = f.SHAPES[shape](np.random.default_rng(2), (1000, 1000))
    assert (values.mean(), values.std()) == pytest.approx((0, 1), abs=0.05)


def study_record(scores: Floats, world: int, cells: list[str], rows: list[str]) -> dict[str, Any]:
    """A world's record, of scores [rows, worlds, cells]."""
    made = {
        cell: {"rows": {row: run(float(scores[r, world, c]), f"{world} {cell} {row}") for r, row in enumerate(rows)}}
        for c, cell in enumerate(cells)
    }
    return {"study": "s", "world": world, "kind": "verdict", "machine": {"threads": 1}, "cells": made}


@pytest.mark.parametrize("shift", [0.0, 6.0])
def test_the_simulated_tests_are_those_of_studies(shift: float) -> None:
    rows = ["main", "a", "b", "c"]
    dials: dict[str, Any] = {"length": {"short": {}, "long": {}}, "truth": {"sum": {}, "mean": {}}}
    hypotheses = {
        f"h{number}": {"says": "s", "row": rows[row], "than": rows[other], "over": None if number else "length"}
        for number, (_, row, other) in enumerate(f.HYPOTHESES)
    }
    study = {"title": "t", "asks": "a", "main": "main", "dials": dials, "hypotheses": hypotheses}
    study |= {"rows": {row: {"like": f"par/{row}"} for row in rows}, "metric": "win_rate_vs_sft"}
    spec: StudySpec = typed(StudySpec, {**study, "worlds": 8, "margin": f.MARGIN}, "studies/s.yaml")
    case = f.Case("shifted", (1, 1, 4, 1), fall=12)
    scores = f.simulated(case, 40, 8, shared=True, generator=np.random.default_rng(5), seeds=f.CELLS)
    scores[:, 1, :, 2:] += shift
    p = f.study_p(f.study_numbers(scores))
    primary, others = f.has_finding(p)
    within = f.study_p(f.study_numbers(scores), f.MARGIN)[:, 1:]
    same = within.min(axis=1) * (len(f.HYPOTHESES) - 1) < ALPHA
    for number, of_study in enumerate(scores):
        records = {world: study_record(of_study, world, list(spec.cells), rows) for world in range(8)}
        first, *rest = findings_of(spec, records)
        assert (first.word in ("confirmed", "contradicted")) == primary[number]
        assert any(one.word in ("confirmed", "contradicted") for one in rest) == others[number]
        undecided = all(one.word not in ("confirmed", "contradicted") for one in rest)
        assert not undecided or any(one.word == "equivalent" for one in rest) == same[number]
    assert 0 < primary.sum() < 40 or not shift


def test_the_command_prints_rates_and_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rates" / "false_verdicts.csv"
    f.main(["--tables", "50", "--worlds", "3", "--twins", "3", "--seed", "2", "--out", str(out)])
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {case.name for case in f.CASES} < {row["row"] for row in rows}
    assert all(0 <= float(row["value"]) <= 1 for row in rows)
    assert "A/A" in capsys.readouterr().out


def test_tables_of_a_document_are_written_anew(tmp_path: Path) -> None:
    document, out = tmp_path / "page.md", tmp_path / "rates.csv"
    heads = "\n\n".join(f"| {kind} |" for kind in (f.ALIKE, f.STUDIES, f.SKEWED, f.TWINS))
    document.write_text(f"Before.\n\n| {f.ALONE} | old |\n|---|---|\n| a | b |\n\n{heads}\nAfter.\n")
    arguments = ["--tables", "50", "--worlds", "3", "4", "--twins", "3", "--out", str(out), "--document"]
    f.main([*arguments, str(document)])
    text = document.read_text(encoding="utf-8")
    assert "old" not in text
    assert text.startswith(f"Before.\n\n| {f.ALONE} | false tables | ")
    assert text.endswith(" |\nAfter.\n")
    with out.open(encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    assert all(table in text for table in f.tables_of(cells).values())
    fewest = {cell["row"]: cell["value"] for cell in cells if cell["table"] == f"{f.SKEWED}, 3 worlds"}
    for row, value in fewest.items():  # the last column, false equivalents
        assert re.search(rf"^\| {re.escape(row)} \|.* {re.escape(value)} \|$", text, re.MULTILINE)
    assert any(", 4 worlds" in cell["table"] for cell in cells)
    false = [cell["value"] for cell in cells if cell["table"] == f"{f.ALIKE}, 3 worlds, paired"][::3]
    least, most = min(false, key=float), max(false, key=float)
    assert f"\n| {f.ALIKE}, {len(false)} cases | {least} to {most} | " in text
    document.write_text("Nothing.")
    with pytest.raises(ValueError, match="has no table"):
        f.main([*arguments, str(document)])
