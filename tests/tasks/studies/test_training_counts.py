"""Training of a row as its result tells it: sizes from history and settings, and the evaluations on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.policy_optimisation.config import OptimiserConfig, optimiser_config
from tasks.graph.items import Item
from tasks.params.pages import Address
from tasks.studies.world_record import row_run, sizes_of
from tests.small_repository import reward_row, write_yaml

PPO = {"iterations": 4, "rollout_batch": 32, "minibatch": 16, "microbatch": 8, "epochs": 1}
PAGES: dict[str, dict[str, Any]] = {
    "rows": {
        "bandit": reward_row("bandit"),
        "dpo": {"title": "DPO", "kind": "supervised", "backbone": "a", "optimiser": {"kind": "dpo"}},
    },
    "policy": {
        "ppo": {"optimiser": {**PPO, "actor_lr": 1e-3, "critic_lr": 1e-3}, "sampling": {"max_new_tokens": 8}},
        "dpo": {"optimiser": {"epochs": 1, "batch": 8, "microbatch": 8, "learning_rate": 1e-3}},
    },
    "evaluation": {
        "sampled": {"max_new_tokens": 8, "task_tokens": 1},
        "greedy": {"max_new_tokens": 8, "task_tokens": 1, "temperature": 0},
    },
}
HISTORY = [
    {"step": 1, "response_length": 5.0, "kl": 0.0, "clip_fraction": 0.0, "explained_variance": -1.0},
    {"step": 2, "response_length": 7.0, "kl": 3.0, "clip_fraction": 0.2, "explained_variance": 0.5, "grad_norm": 1.0},
]
CHECKPOINTS = [
    {"step": 1, "kl": 1.0, "n": 8, "win_rate_vs_sft": 55.0, "chars_over_sft": 3.0, "proxy_reward": 0.1},
    {"step": 2, "kl": 2.0, "n": 8, "win_rate_vs_sft": 57.0, "chars_over_sft": 3.0, "proxy_reward": 0.2},
]
METRICS = {"kl": 2.5, "win_rate_vs_sft": 58.0, "proxy_reward": 0.3, "true_reward": 1.0}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, entries in PAGES.items():
        write_yaml(tmp_path / f"params/{name}.yaml", entries)
    return tmp_path


def policy(row: str = "bandit", scale: str = "ppo", evaluation: str = "sampled", module: str = "policy") -> Item:
    named = {"row": f"rows.yaml:{row}", "scale": f"policy.yaml:{scale}", "evaluation": f"evaluation.yaml:{evaluation}"}
    addresses = {name: Address(f"params/{where}") for name, where in named.items()}
    return Item(module, row, addresses, f"results/{row}", "segment", 0)


def written(tree: Path, item: Item, history: list[dict[str, Any]] = HISTORY, **metrics: float) -> Item:
    """The item, with a result of these rows and metrics."""
    result = tree / item.out / "result"
    result.mkdir(parents=True)
    for name, rows in (("history", history), ("checkpoints", CHECKPOINTS)):
        (result / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (result / "metrics.json").write_text(json.dumps(METRICS | metrics))
    (tree / item.out / "record").mkdir()
    (tree / item.out / "record" / "record.json").write_text('{"result_digest": "d", "seconds": 1.0}')
    return item


def test_a_record_has_the_size_of_training_and_its_diagnostics(tree: Path) -> None:
    found = row_run(tree, written(tree, policy()))["training"]
    assert {name: found[name] for name in ("iterations", "updates", "rollouts", "tokens")} == {
        "iterations": 2, "updates": 2, "rollouts": 64, "tokens": 12 * 32,
    }  # fmt: skip
    assert (found["clip_fraction"], found["explained_variance"], found["kl"]) == (0.2, 0.5, 3.0)


def test_the_curve_ends_with_the_final_evaluation(tree: Path) -> None:
    curve = row_run(tree, written(tree, policy()))["curve"]
    assert (curve["temperature"], curve["top_p"]) == (1.0, 1.0)
    first, last = curve["points"]
    assert first == {"step": 1, "kl": 1.0, "n": 8, "win_rate_vs_sft": 55.0, "proxy_reward": 0.1}
    assert last == {"step": 2, "kl": 2.5, "win_rate_vs_sft": 58.0, "proxy_reward": 0.3}


def test_a_supervised_row_has_updates_and_no_rollouts(tree: Path) -> None:
    history = [{"step": 10, "loss": 1.0}, {"step": 17, "loss": 0.5}]
    found = row_run(tree, written(tree, policy("dpo", "dpo"), history))["training"]
    assert found == {"iterations": 17, "updates": 17, "rollouts": 0}


def config(kind: str, **settings: Any) -> OptimiserConfig:
    sizes = {"iterations": 4, "rollout_batch": 32, "minibatch": 16, "microbatch": 8, "epochs": 2, "actor_lr": 1e-3}
    return optimiser_config(kind, **{**sizes, **settings})


def history(*trained: bool, **more: float) -> list[dict[str, float]]:
    return [
        {"step": n, "response_length": 10.0, **({"grad_norm": 1.0, **more} if t else {})} for n, t in enumerate(trained)
    ]


@pytest.mark.parametrize(
    ("steps", "settings", "expected"),
    [
        (history(True, True), config("ppo", critic_lr=1e-3), (8, 64, 640)),
        (history(False, True, True), config("ppo", critic_lr=1e-3, critic_warmup=1), (8, 96, 960)),
        (history(True), config("rlmec", epochs=1), (2, 0, 320)),
        (history(True, skipped_pairs=9.0), config("online_dpo", epochs=1, dpo_min_margin=0.1), (1, 32, 320)),
    ],
)
def test_sizes_are_counted_from_history_and_settings(
    steps: list[dict[str, float]], settings: OptimiserConfig, expected: tuple[int, int, int]
) -> None:
    found = sizes_of(steps, settings)
    assert (found["updates"], found["rollouts"], found["tokens"]) == expected
    assert found["iterations"] == len(steps)
