"""The hacking alarm in a policy run whose reward pays length alone, and its resumption."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tasks.running.artifacts import digest
from tests.tasks.golden_runs import SharedRuns
from tests.tasks.killing import killed_at_a_checkpoint

ABSURD = {
    "title": "Length alone",
    "kind": "reward",
    "backbone": "tiny",
    "function": "absurd_rewards:length",
    "gives": "sequence",
    "credit": "last_token",
    "optimiser": {"kind": "reinforce_plus_plus", "kl_coef": 0.0},
}
SCALE: dict[str, Any] = {
    "optimiser": {
        "iterations": 12, "rollout_batch": 32, "minibatch": 16, "microbatch": 16, "epochs": 1, "actor_lr": 3.0e-2,
    },
    "sampling": {"max_new_tokens": 24},
    "checkpoints": 12,
    "checkpoint_prompts": 4,
    "rollout_samples": 2,
    "alarm": {"length": [0.5, 1.3], "patience": 3, "kl": None},
}  # fmt: skip

Train = Callable[..., Path]


@pytest.fixture(scope="module")
def train(golden: SharedRuns, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Train]:
    """Trains the absurd row in a folder of its own; returns the result."""
    root = tmp_path_factory.mktemp("absurd")
    (root / "absurd_rewards.py").write_text("def length(batch):\n    return batch.responses.lengths.float()\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root))
        yield lambda name, alarm: golden.run("function", row={**ABSURD, "alarm": alarm}, scale=SCALE, out=root / name)


@pytest.fixture(scope="module")
def stopped(train: Train) -> Path:
    return train("stopped", {"on_hacking": "stop"})


def rows(result: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result / name).read_text().splitlines()]


def metrics(result: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((result / "metrics.json").read_text())
    return found


def test_an_absurd_reward_raises_the_alarm_and_training_goes_on(train: Train, capsys: pytest.CaptureFixture) -> None:
    result = train("noted", {})
    alarms = rows(result, "alarms.jsonl")
    assert "length" in {alarm["kind"] for alarm in alarms}
    found = metrics(result)
    assert found["hacking_onset"] == min(alarm["step"] for alarm in alarms)
    assert found["hacking_alarms"] == len(alarms)
    history = rows(result, "history.jsonl")
    assert len(history) == 12
    assert history[-1]["proxy"] > 1.3 * history[0]["proxy"]
    logged = [line for line in capsys.readouterr().err.splitlines() if line.startswith("alarm: ")]
    assert len(logged) == len(alarms)
    speed = rows(result.parent / "record", "phases.jsonl")
    assert [row["step"] for row in speed] == list(range(1, 13))
    assert all(row["update_tokens_per_second"] > 0 and row["peak_memory_mb"] > 0 for row in speed)


def test_when_asked_it_stops_and_keeps_the_best_evaluation_s_weights(golden: SharedRuns, stopped: Path) -> None:
    found, history = metrics(stopped), rows(stopped, "history.jsonl")
    assert found["stopped_step"] == found["hacking_onset"] == len(history) < 12
    rates = {0: 50.0} | {row["step"]: row["win_rate_vs_sft"] for row in rows(stopped, "checkpoints.jsonl")}
    best = max(rates, key=lambda step: (rates[step], -step))
    assert found["kept_step"] == best
    if best == 0:
        kept = load_file(stopped / "model" / "model.safetensors")
        sft = load_file(golden.result("sft") / "model" / "model.safetensors")
        assert all((kept[name] == sft[name]).all() for name in sft)
    assert {row["step"] for row in rows(stopped, "rollouts.jsonl")} == {1, len(history)}


@pytest.mark.parametrize("after", [1, "stop"])
def test_a_stopped_run_that_is_killed_and_started_again_ends_as_one_never_killed(
    train: Train, stopped: Path, after: int | str
) -> None:
    last = int(metrics(stopped)["stopped_step"]) if after == "stop" else int(after)
    with killed_at_a_checkpoint(last):
        train(f"again-{after}", {"on_hacking": "stop"})
    assert digest(train(f"again-{after}", {"on_hacking": "stop"})) == digest(stopped)
