"""Verdicts by worlds: at most one null table of twenty has a false one, and intervals cover. Other units are worse."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks import false_verdicts as f
from rlhf_core.evaluation.verdicts import table_verdicts
from rlhf_core.evaluation.worlds import paired, welch

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
    document.write_text(
        f"Before.\n\n| {f.ALONE} | old |\n|---|---|\n| a | b |\n\n| {f.ALIKE} |\n\n| {f.TWINS} |\nAfter.\n"
    )
    arguments = ["--tables", "50", "--worlds", "3", "4", "--twins", "3", "--out", str(out), "--document"]
    f.main([*arguments, str(document)])
    text = document.read_text(encoding="utf-8")
    assert "old" not in text
    assert text.startswith(f"Before.\n\n| {f.ALONE} | false tables, 3 worlds | ")
    assert text.endswith(" |\nAfter.\n")
    with out.open(encoding="utf-8") as file:
        assert all(table in text for table in f.tables_of(csv.DictReader(file)).values())
    document.write_text("Nothing.")
    with pytest.raises(ValueError, match="has no table"):
        f.main([*arguments, str(document)])
