"""The check of the demo's finding on other seeds: which seeds, which stages, and what is not done again."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.demo_finding import (
    BOUNDED,
    DENSE,
    PLAIN,
    main,
    open_record,
    refuse_seeds,
    seeds_of,
    settings_digest,
    world_items,
)
from rlhf_core.errors import DataError, RecipeError
from tasks.graph.names import DEMO_PAPER
from tasks.params.stages import run_settings
from tasks.running.artifacts import read_json, write_json

PROJECT = Path(__file__).resolve().parents[2]


def test_seeds_are_numbers_and_ranges() -> None:
    assert seeds_of("1001-1003,5") == [1001, 1002, 1003, 5]
    with pytest.raises(RecipeError, match="--seeds is 'ten'"):
        seeds_of("ten")


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (run_settings(PROJECT).demo[DEMO_PAPER].seeds[0], "the demo itself"),
        (100, "not spent"),
        (1_000_000, "not spent"),
    ],
)
def test_seeds_of_the_demo_and_of_other_uses_are_refused(seed: int, why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        refuse_seeds(PROJECT, [1001, seed])


def test_a_world_has_each_stage_of_the_demo_once_after_what_it_reads() -> None:
    made: set[str] = set()
    items = list(world_items(PROJECT, 1001))
    for item in items:
        values = (value if isinstance(value, tuple) else (value,) for value in item.arguments.values())
        read = {str(one) for several in values for one in several if str(one).startswith("results/")}
        assert read <= made, item.stage
        made.add(f"{item.out}/result")
    assert len(made) == len(items)
    assert {item.name for item in items if item.module == "policy"} == {PLAIN, BOUNDED, DENSE}
    assert {item.seed for item in items} == {1001}


def test_worlds_of_the_record_are_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(PROJECT)
    rows = {row: {"final": final, "p": 0.001, "proxy_gain": 1.0} for row, final in ((PLAIN, 20), (BOUNDED, 50))}
    dense = {DENSE: {"final": 10, "p": 0.001, "proxy_gain": 1.0}}
    path = tmp_path / "record.json"
    write_json(path, {"settings": settings_digest(PROJECT), "seeds": {"1001": rows | dense}})
    before = path.read_bytes()
    assert main(["--seeds", "1001", "--record", str(path), "--work", str(tmp_path / "work")]) == 0
    assert "the whole finding holds in 1 of 1 worlds" in capsys.readouterr().out
    assert path.read_bytes() == before
    assert not (tmp_path / "work").exists()


def test_a_record_of_other_settings_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"settings": "of before", "seeds": {}})
    with pytest.raises(DataError, match="of other settings or code"):
        open_record(PROJECT, path)
    assert read_json(path)["settings"] == "of before"
