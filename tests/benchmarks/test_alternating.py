"""The benchmarks' parts: sides take turns, ratios are of repeats, our sides run tiny, tokens in vain are counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as everything
from benchmarks.alternating import Done, Run, Side, Work, alternate, counted_tokens, prepared
from benchmarks.rows import record_rows, speed_row
from benchmarks.workload import write


def runs(*seconds: float, amount: float = 10.0) -> list[Run]:
    return [Run(1.5, s, amount, 0.1) for s in seconds]


def test_a_ratio_is_the_median_over_repeats_of_ours_against_the_peer() -> None:
    row = speed_row("work", "rows", runs(1.0, 2.0, 1.0), runs(4.0, 4.0, 3.0), 2.5)
    assert (row.ratio, row.low, row.high, row.wall_ratio) == (3.0, 2.0, 4.0, 1.0)
    assert (row.ours, row.peer, row.surplus) == (10.0, 2.5, 0.1)
    assert row.cells[:3] == ["work", "2.5", "3.00"]
    assert speed_row("work", "rows", runs(1.0), runs(2.0), 2.5).cells[2] == "**2.00**", "a missed target is bold"


def ours(amount: float) -> Work:
    return lambda: Done(amount)


def test_sides_are_processes_that_take_turns_and_say_why_they_fail(tmp_path: Path) -> None:
    side = Side("tests.benchmarks.test_alternating", "ours", {"amount": 4.0})
    found = alternate([side, side], 2, tmp_path)
    assert [[run.amount for run in runs] for runs in found] == [[4.0, 4.0]] * 2, "the first is thrown away"
    assert all(run.seconds > 0 for runs in found for run in runs)
    with pytest.raises(SystemExit, match=r"(?s)ended with code 1.*no attribute 'nobody'"):
        alternate([replace(side, name="nobody")], 1, tmp_path)


def test_a_missing_peer_says_how_to_install_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everything.main(["--only", "dpo", "--peers", str(tmp_path), "--out", str(tmp_path)])
    assert "dpo: not run, the peer trl-1.16 is not installed (make bench-peers)" in capsys.readouterr().out


def test_a_record_keeps_the_rows_that_were_not_measured_again(tmp_path: Path) -> None:
    path, row = tmp_path / "performance.csv", speed_row("work", "rows", runs(1.0), runs(2.0), 2.5)
    other = "Platform,start,measured,.44 s"
    path.write_text(f"table,row,column,value\n{other}\nComparisons,work,ratio,9.99\n", encoding="utf-8")
    record_rows([row], path)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[:2] == ["table,row,column,value", other]
    assert {"Comparisons,work,ratio,2.00", "Comparisons,work,surplus,10.0 %"} < set(lines)
    assert not [line for line in lines if "9.99" in line]


@pytest.mark.parametrize("name", [name for name, each in everything.COMPARISONS.items() if each.shape])
def test_our_sides_compute_every_token_at_least_once(name: str, tmp_path: Path) -> None:
    from tests.tiny_causal import save_causal, tokenizer  # not for the sides above, which import this module

    comparison, words = everything.COMPARISONS[name], tokenizer()
    assert comparison.shape is not None
    shape = replace(comparison.shape, prompt=(4, 9), answer=(2, 6), prompts=8)
    save_causal(tmp_path / "model")
    facts = {"pad_id": words.pad_token_id, "eos_id": words.eos_token_id}
    write(tmp_path, shape.content(range(5, 50), facts["eos_id"]) | {"facts": facts})
    options = {"folder": str(tmp_path), **comparison.options}
    work = prepared(f"benchmarks.{comparison.module}", comparison.names[0], options)
    with counted_tokens() as tokens:
        done = work()
    assert done.amount == shape.prompts * (shape.answers if comparison.module == "grpo" else 1)
    assert 0 < done.tokens <= tokens() < 3 * done.tokens
