"""Sampled rollouts as a table for MLflow."""

from __future__ import annotations

from tasks.tracking.run_content import token_rows


def test_a_rollout_is_a_row_for_each_token_with_the_parts_of_its_reward() -> None:
    rollout = {
        "step": 1, "id": "p", "tokens": ["a", "b"], "rewards": [0.0, 1.5], "advantages": [0.1, 0.2],
        "breakdown": {"segment": [0.0, 2.0], "clamp": [0.0, -0.5]}, "true_reward": None,
    }  # fmt: skip
    rows = token_rows([rollout, rollout])
    assert [(row["response"], row["position"], row["token"]) for row in rows] == [
        (1, 0, "a"), (1, 1, "b"), (2, 0, "a"), (2, 1, "b"),
    ]  # fmt: skip
    assert all(row["reward"] == row["reward/segment"] + row["reward/clamp"] for row in rows)
