"""Lines of a run about finished stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.graph.stages import Stage
from tasks.report.outputs import result_in_words
from tasks.running.artifacts import write_json

DATA = "results/testbed/shared/data/demo/result"


def stage(root: Path, kind: str, metrics: dict[str, Any] | None) -> Stage:
    """A finished stage of a kind; without metrics it stopped."""
    out = f"results/testbed/demo/{kind}/x/0"
    (root / out / "result").mkdir(parents=True)
    if metrics is not None:
        write_json(root / out / "result/metrics.json", metrics)
    outs = (f"{out}/result", f"{out}/record")
    return Stage("x", kind, "demo", "x", 0, f"python -m tasks.{kind} --data {DATA}", outs, (), "run", (), {})


@pytest.mark.parametrize(
    ("kind", "metrics", "words"),
    [
        ("reward_model", {"accuracy": 0.74}, "right about 74 % of held-out labels"),
        (
            "reward_model",
            {"accuracy": 0.5, "train_pairs_dropped": 90, "validation_pairs_dropped": 7},
            "right about 50 % of held-out labels; 97 pairs left out, which the limits cut to equal or empty answers",
        ),
        ("policy", {"win_rate_vs_sft": 27.3, "kl": 7.4}, "win rate over SFT 27 %, KL 7.4"),
    ],
)
def test_a_stage_says_what_it_measured(tmp_path: Path, kind: str, metrics: dict[str, Any], words: str) -> None:
    assert result_in_words(tmp_path, stage(tmp_path, kind, metrics)) == words


def test_data_say_how_many_rows_are_in_quarantine_and_where(tmp_path: Path) -> None:
    prepared = stage(tmp_path, "prepare", None)
    facts = tmp_path / prepared.out / "result/data.json"
    assert result_in_words(tmp_path, prepared) == ""
    write_json(facts, {"quarantine": [{"quarantined": 3, "total": 1200}, {"quarantined": 0, "total": 20}]})
    assert result_in_words(tmp_path, prepared) == f"3 of 1,220 rows in quarantine: {prepared.out}/result/quarantine/"
    write_json(facts, {"quarantine": [{"quarantined": 0, "total": 20}]})
    assert result_in_words(tmp_path, prepared) == ""
    write_json(facts, {"overlap": {"preference.ood": 3}, "rows": {"preference.ood": 40}})
    assert result_in_words(tmp_path, prepared) == "3 of 40 rows of preference.ood ask prompts that are trained on"
