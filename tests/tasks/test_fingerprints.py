"""Fingerprints: equal results are at distance 0, small changes are near, other order and other answers are far."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from rlhf_core.errors import DataError
from tasks.commands import verify
from tasks.commands.fingerprints import SAMPLED, Fingerprint, NumberField, TextField, distances, fingerprint
from tasks.running.artifacts import write_json, write_jsonl

DATA, SFT = (f"results/testbed/shared/{name}/result" for name in ("data/dialogue", "sft/phi3-mini/0"))
NUMBERS = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50)


def written(folder: Path, stage: str = "policy", **changes: Any) -> Path:
    """Writes a small result of a stage; `changes` are its parts that differ."""
    answers = [f"answer {i}" for i in range(100)]
    rewards = [math.sin(i) for i in range(100)]
    weights = np.random.default_rng(0).normal(size=(50, 40))
    parts: dict[str, Any] = {"answers": answers, "rewards": rewards, "weights": weights, "kl": 0.3, "first": "model"}
    parts |= changes
    result = folder / "result"
    (result / "model").mkdir(parents=True)
    (folder / "record").mkdir()
    rows = zip(parts["answers"], parts["rewards"], strict=True)
    write_jsonl(
        result / "generations.jsonl",
        [{"id": str(i), "response": a, "true_reward": r, "first": parts["first"]} for i, (a, r) in enumerate(rows)],
    )
    write_jsonl(result / "history.jsonl", [{"step": s, "kl": parts["kl"] * s, "loss": 1 / s} for s in (1, 2, 3)])
    write_json(result / "metrics.json", {"kl": parts["kl"], "true_reward": 0.0, "win_rate_vs_sft_p": 0.5})
    save_file({"layer": parts["weights"].astype(np.float32)}, result / "model" / "model.safetensors")
    inputs = {"params/segment/rows.yaml:segment": "a" * 64, DATA: "b" * 64}
    write_json(folder / "record" / "record.json", {"stage": stage, "version": 1, "inputs": inputs})
    return folder


def apart(tmp_path: Path, stage: str = "policy", **changes: Any) -> dict[str, float]:
    """Returns what differs between a result and a changed one, with distances."""
    first = fingerprint(written(tmp_path / "first", stage), tmp_path)
    found = distances(first, fingerprint(written(tmp_path / "second", stage, **changes), tmp_path))
    return {name: distance for name, distance in found.items() if distance}


def test_an_equal_result_is_at_distance_zero(tmp_path: Path) -> None:
    assert apart(tmp_path) == {}


def test_a_fingerprint_survives_its_file(tmp_path: Path) -> None:
    made = fingerprint(written(tmp_path), tmp_path)
    assert Fingerprint.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert made.inputs == {
        "params/segment/rows.yaml:segment": "a" * 16,
        "results/testbed/shared/data/dialogue/result": "",
    }
    assert "win_rate_vs_sft_p" not in made.metrics, "a p-value jumps where nothing changed"


def test_rounding_moves_weights_little_and_other_weights_far(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(50, 40))
    near = apart(tmp_path / "near", weights=weights * (1 + 1e-3))
    far = apart(tmp_path / "far", weights=np.random.default_rng(1).normal(size=(50, 40)))
    assert near == {"weights/model/model.safetensors": pytest.approx(1e-3, rel=0.4)}
    assert far == {"weights/model/model.safetensors": pytest.approx(math.sqrt(2), rel=0.4)}


def test_a_quarter_of_other_answers_is_seen_as_such(tmp_path: Path) -> None:
    answers = [f"answer {i}" if i % 4 else "another" for i in range(100)]
    assert apart(tmp_path, answers=answers) == {"generations.jsonl/response": pytest.approx(0.25, abs=0.08)}


def test_one_other_answer_that_is_not_sampled_is_still_a_difference() -> None:
    values = [str(i) for i in range(10 * SAMPLED)]
    changed = [*values[:1], "another", *values[2:]]
    assert 0 < TextField.of(values).distance(TextField.of(changed)) < 0.01


def test_numbers_in_another_order_are_far(tmp_path: Path) -> None:
    rewards = [math.sin(i) for i in range(100)]
    found = apart(tmp_path, rewards=rewards[1:] + rewards[:1])
    assert found.keys() == {"generations.jsonl/true_reward"}
    assert found["generations.jsonl/true_reward"] > 0.3


def test_the_first_step_is_compared_apart(tmp_path: Path) -> None:
    found = apart(tmp_path, kl=0.33)
    assert found == {
        "first/kl": pytest.approx(0.1),
        "metrics/kl": pytest.approx(0.1),
        "history.jsonl/kl": pytest.approx(0.26, rel=0.5),
    }


def test_inputs_and_data_have_only_a_digest(tmp_path: Path) -> None:
    policy, data = (fingerprint(written(tmp_path / stage, stage), tmp_path) for stage in ("policy", "prepare"))
    assert policy.texts["generations.jsonl/first"].sample == ""
    assert policy.texts["generations.jsonl/response"].sample
    assert data.texts["generations.jsonl"].sample == ""
    assert apart(tmp_path, first="baseline") == {"generations.jsonl/first": 1.0}


def test_numbers_of_data_count_with_six_digits(tmp_path: Path) -> None:
    rewards = [math.sin(i) * (1 + 1e-12) for i in range(100)]
    assert apart(tmp_path / "rounded", "prepare", rewards=rewards) == {}
    assert apart(tmp_path / "other", "prepare", rewards=[0.5, *rewards[1:]]) == {"generations.jsonl": 1.0}


def test_what_is_missing_is_infinitely_far(tmp_path: Path) -> None:
    first, second = (fingerprint(written(tmp_path / name), tmp_path) for name in ("first", "second"))
    del second.texts["generations.jsonl/response"], second.numbers["history.jsonl/kl"], second.metrics["kl"]
    found = {name for name, distance in distances(first, second).items() if math.isinf(distance)}
    assert found == {"generations.jsonl/response", "history.jsonl/kl", "metrics/kl"}


def with_rewrites(folder: Path, ids: list[str]) -> Fingerprint:
    """A result with rewrites of the samples of some ids."""
    out = written(folder)
    rows = [
        {"id": each, "question_id": each[0], "rewrite": f"right {each}", "edit_distance": len(each)} for each in ids
    ]
    write_jsonl(out / "result" / "grm_rewrites.jsonl", rows)
    return fingerprint(out, folder)


def test_rows_that_a_model_chose_are_not_compared_with_other_rows(tmp_path: Path) -> None:
    """Their ids used to be held equal on any machine, though another rounding chooses other solutions to rewrite."""
    first, fewer, edited = (
        with_rewrites(tmp_path / name, ids)
        for name, ids in (("first", ["a1", "a22", "b1"]), ("fewer", ["a1", "b1"]), ("same", ["a1", "a22", "b1"]))
    )
    found = distances(first, fewer)
    assert not any(found.values())
    assert not any(name.startswith("grm_rewrites.jsonl/") for name in found)
    edited.texts["grm_rewrites.jsonl/rewrite"] = TextField.of(["wrong"] * 3)
    found = distances(first, edited)
    assert {name for name, distance in found.items() if distance} == {"grm_rewrites.jsonl/rewrite"}
    assert found["grm_rewrites.jsonl/id"] == 0.0
    del edited.texts["grm_rewrites.jsonl/id"]
    assert math.isinf(distances(first, edited)["grm_rewrites.jsonl/id"]), "a missing file is found"


def test_drift_is_from_the_sft_model_of_the_same_results(tmp_path: Path) -> None:
    written((tmp_path / SFT).parent, "sft")
    weights = 1.1 * np.random.default_rng(0).normal(size=(50, 40))
    policy = written(
        tmp_path / "policy", weights=weights, answers=["another"] * 25 + [f"answer {i}" for i in range(25, 100)]
    )
    record = json.loads((policy / "record" / "record.json").read_text())
    read = record["inputs"] | {SFT: "c" * 64}
    write_json(policy / "record" / "record.json", record | {"inputs": read})
    metrics = fingerprint(policy, tmp_path).metrics
    assert metrics["drift/weights"] == pytest.approx(0.1, rel=1e-3)
    assert metrics["drift/answers"] == 0.25


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    out = written(tmp_path)
    (out / "result" / "model" / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(DataError, match=r"model.safetensors: not valid safetensors .* Re-run its stage"):
        fingerprint(out, tmp_path)


@given(NUMBERS, st.integers(0, 49), st.floats(1, 10))
def test_a_changed_number_is_seen(values: list[float], place: int, by: float) -> None:
    changed = np.asarray(values)
    changed[place % len(values)] += by * max(1.0, float(np.abs(changed).max()))
    assert NumberField.of(np.asarray(values)).distance(NumberField.of(changed)) > 0


def test_a_column_that_repeats_true_rewards_is_found() -> None:
    """As where a history notes true rewards as proxy rewards."""
    true, proxy = NumberField(9, 1.0, 0.5, (0.25,)), NumberField(9, 2.0, 0.5, (0.5,))
    names = ("history.jsonl/true_reward", "history.jsonl/proxy/minmax")
    honest = Fingerprint("policy", 1, {}, numbers=dict(zip(names, (true, proxy), strict=True)))
    mixed = Fingerprint("policy", 1, {}, numbers=dict.fromkeys(names, true))
    assert verify.compare("row", honest, mixed, {}).other == [f"{names[1]} has the numbers of {names[0]}"]
    assert verify.compare("row", mixed, mixed, {}).other == []
    assert verify.compare("row", honest, honest, {}).other == []
