"""Lines of a run about finished stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def test_a_reward_model_says_what_it_predicts(tmp_path: Path) -> None:
    words = result_in_words(tmp_path, stage(tmp_path, "reward_model", {"accuracy": 0.74}))
    assert words == "right about 74 % of held-out labels"


def test_data_say_how_many_rows_are_in_quarantine_and_where(tmp_path: Path) -> None:
    prepared = stage(tmp_path, "prepare", None)
    facts = tmp_path / prepared.out / "result/data.json"
    assert result_in_words(tmp_path, prepared) == ""
    write_json(facts, {"quarantine": [{"quarantined": 3, "total": 1200}, {"quarantined": 0, "total": 20}]})
    assert result_in_words(tmp_path, prepared) == f"3 of 1,220 rows in quarantine: {prepared.out}/result/quarantine/"
    write_json(facts, {"quarantine": [{"quarantined": 0, "total": 20}]})
    assert result_in_words(tmp_path, prepared) == ""


def test_a_policy_says_win_rate_and_kl(tmp_path: Path) -> None:
    metrics = {"win_rate_vs_sft": 27.3, "kl": 7.4}
    assert result_in_words(tmp_path, stage(tmp_path, "policy", metrics)) == "win rate over SFT 27 %, KL 7.4"
