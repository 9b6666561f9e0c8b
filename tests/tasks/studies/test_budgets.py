"""Budgets of rows from records, and the metric at equal KL."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.policy_optimisation.config import OptimiserConfig, optimiser_config
from rlhf_core.typed import typed
from tasks.params.studies import StudySpec
from tasks.studies.budgets import little_training, more_tokens, not_as_tuned, row_budgets, unequal, untuned
from tasks.studies.caveats import caveats_of
from tasks.studies.equal_kl import at_kl
from tasks.studies.origins import other_origins
from tasks.studies.training import sizes_of

STUDY: dict[str, Any] = {
    "title": "Credit",
    "asks": "?",
    "main": "bandit",
    "rows": {
        "bandit": {"like": "segment/bandit", "optimiser": {"kl_coef": 0.1}},
        "segment": {"like": "segment/segment", "optimiser": {"kl_coef": 0.2}},
    },
    "hypotheses": {"a": {"says": "s", "row": "segment"}},
    "metric": "win_rate_vs_sft",
    "worlds": 2,
}
SPEC: StudySpec = typed(StudySpec, STUDY, "studies/credit.yaml")
HYPOTHESIS = SPEC.hypotheses["a"]
TRAINING = {"iterations": 30, "updates": 60, "rollouts": 3840, "tokens": 9000, "clip_fraction": 0.1}


def world(number: int, **segment: Any) -> dict[str, Any]:
    """A record; `segment` is what the row's training has otherwise."""
    rows = {
        "bandit": {"seconds": 10.0, "metrics": {"kl": 4.0}, "training": TRAINING, "origin": {"settings": "bandit"}},
        "segment": {
            "seconds": 30.0, "metrics": {"kl": 2.0}, "training": {**TRAINING, **segment},
            "origin": {"settings": "segment"},
        },
    }  # fmt: skip
    return {"world": number, "machine": {"threads": 2}, "cells": {"as-it-is": {"rows": rows}}}


def tuning(trials: Mapping[str, int]) -> dict[str, Any]:
    """A record of tuning whose first trial is the best."""
    chosen = {"bandit": 0.1, "segment": 0.2}

    def made(row: str, number: int) -> dict[str, Any]:
        run = {"metric": 60.0 - number, "sft": 50.0, "curve": {}, "core_seconds": 5.0, "settings": row}
        return {"point": {"kl_coef": chosen[row] + number}, "runs": {"100": {"as-it-is": run}}}

    rows = {
        row: {
            "kind": "ppo", "cells": ["as-it-is"], "fixed": [], "space": {"kl_coef": {"low": 0.1, "high": 9.0}},
            "trials": [made(row, number) for number in range(count)],
        }
        for row, count in trials.items()
    }  # fmt: skip
    return {"study": "credit", "metric": "win_rate_vs_sft", "seeds": [100], "rows": rows}


def test_a_budget_has_means_over_worlds_and_what_tuning_cost() -> None:
    records = [world(1), world(2, updates=80)]
    found = row_budgets(SPEC, records, tuning({"bandit": 4, "segment": 4}))
    segment = found["segment"]
    assert (segment.trials, segment.updates, segment.rollouts, segment.tokens) == (4, 70, 3840, 9000)
    assert (segment.tuning_seconds, segment.final_seconds) == (20.0, 120.0)
    assert (segment.kl, segment.clip_fraction, segment.explained_variance) == (2.0, 0.1, None)
    assert found["bandit"].final_seconds == 40.0


def test_equal_budgets_say_nothing() -> None:
    assert unequal(SPEC, HYPOTHESIS, [world(1), world(2)], tuning({"bandit": 4, "segment": 4})) is None
    assert unequal(SPEC, HYPOTHESIS, [world(1)], None) is None


@pytest.mark.parametrize(
    ("records", "trials", "said"),
    [
        ([world(1)], {"bandit": 4, "segment": 8}, r"unequal: 8 trials of 'segment' and 4 of 'bandit'"),
        ([world(1)], {"segment": 8}, r"8 trials of 'segment' and 0 of 'bandit'"),
        ([world(1), world(2, updates=30)], None, r"updates 30 of 'segment' and 60 of 'bandit' in world 2, cell 'as-it"),
        ([world(1, rollouts=0)], None, r"rollouts 0 of 'segment' and 3840 of 'bandit' in world 1"),
        ([world(1, updates=None)], None, r"updates an unknown number of 'segment' and 60 of 'bandit'"),
    ],
)
def test_unequal_budgets_are_said(records: list[Any], trials: Mapping[str, int] | None, said: str) -> None:
    found = unequal(SPEC, HYPOTHESIS, records, None if trials is None else tuning(trials))
    assert found is not None
    assert found.startswith("unequal: ")
    assert re.search(said, found), found


def test_a_row_that_is_not_as_it_was_tuned_is_said() -> None:
    rows = {**STUDY["rows"], "segment": {"like": "segment/segment", "optimiser": {"kl_coef": 0.7}}}
    spec: StudySpec = typed(StudySpec, {**STUDY, "rows": rows}, "studies/credit.yaml")
    found = not_as_tuned(spec, "segment", [world(1)], tuning({"bandit": 4, "segment": 4}))
    assert found == ["'segment' does not run at the settings that tuning chose"]


EIGHT = {"bandit": 8, "segment": 8}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda made: made.update(metric="true_reward"),
            "'segment' was tuned by true_reward, and the study's metric is",
        ),
        (lambda made: made.update(seeds=[7, 100]), "'segment' was tuned on seed 7, which is not a seed of tuning"),
        (
            lambda made: made["rows"]["segment"].update(cells=["b"]),
            "'segment' was tuned in b, and the study tunes it in",
        ),
        (
            lambda made: made["rows"]["segment"].update(fixed=["clip"]),
            "'segment' was tuned with clip fixed, now nothing",
        ),
        (
            lambda made: made["rows"]["segment"]["trials"][0]["runs"]["100"]["as-it-is"].update(settings="x"),
            "'segment' was tuned at other settings or stage versions than it has in world 1, cell 'as-it-is'",
        ),
    ],
)
def test_a_row_that_was_tuned_as_something_else_is_said(change: Any, said: str) -> None:
    made = tuning(EIGHT)
    assert not_as_tuned(SPEC, "segment", [world(1)], made) == []
    change(made)
    assert any(text.startswith(said) for text in not_as_tuned(SPEC, "segment", [world(1)], made))
    assert not_as_tuned(SPEC, "token", [world(1)], made) == [], "it was not tuned"
    assert not_as_tuned(SPEC, "segment", [world(1)], None) == []


def test_rows_that_were_tuned_over_different_ranges_are_unequal() -> None:
    made = tuning(EIGHT)
    made["rows"]["segment"]["space"].update(kl_coef={"low": 0.1, "high": 1.0})
    found = unequal(SPEC, HYPOTHESIS, [world(1)], made)
    assert found == "unequal: 'segment' and 'bandit' were tuned over different ranges of kl_coef"


def test_rows_that_were_not_tuned_are_not_called_equal() -> None:
    assert untuned(SPEC, HYPOTHESIS, None) == "neither 'segment' nor 'bandit' was tuned"
    assert untuned(SPEC, HYPOTHESIS, tuning({})) == "neither 'segment' nor 'bandit' was tuned"
    assert untuned(SPEC, HYPOTHESIS, tuning({"segment": 8})) is None, "that is unequal"


def test_far_more_tokens_are_said() -> None:
    assert more_tokens(SPEC, HYPOTHESIS, [world(1), world(2, tokens=13_000)]) is None
    found = more_tokens(SPEC, HYPOTHESIS, [world(1, tokens=20_000), world(2, tokens=13_000)])
    assert found == "'segment' learned from 1.8 times as many tokens as 'bandit'"
    assert more_tokens(SPEC, HYPOTHESIS, [world(1, tokens=None)]) is None, "those of supervised rows are not known"


def test_rows_that_were_measured_on_something_else_are_said() -> None:
    records = [world(1), world(2), world(3)]
    assert other_origins(SPEC, HYPOTHESIS, records) == []
    for record in records[1:]:
        record["cells"]["as-it-is"]["rows"]["segment"]["origin"]["sft"] = "another"
    records[2]["cells"]["as-it-is"]["rows"]["segment"]["origin"]["evaluation"] = "another"
    assert other_origins(SPEC, HYPOTHESIS, records) == [
        "'segment' and 'bandit' have different SFT models in world 2, cell 'as-it-is' and in 1 more",
        "'segment' and 'bandit' have different evaluation settings in world 3, cell 'as-it-is'",
    ]


def test_little_training_is_said() -> None:
    assert little_training("segment", [world(1)]) == []
    assert little_training("segment", [world(1, updates=16, iterations=10)]) == [
        "'segment' has 16 updates; at least 60 are asked for",
        "'segment' has 10 iterations; at least 30 are asked for",
    ]
    assert little_training("segment", [world(1, updates=16, rollouts=0)]) == [], "it samples no rollouts"


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


def curve(*points: tuple[float, float], temperature: float = 1.0) -> dict[str, Any]:
    rows = [{"step": n, "kl": kl, "win_rate_vs_sft": rate} for n, (kl, rate) in enumerate(points)]
    return {"temperature": temperature, "top_p": 1.0, "points": rows}


def test_the_metric_is_linear_in_the_root_of_kl() -> None:
    (found,) = at_kl(curve((1.0, 60.0), (9.0, 70.0)), [4.0])
    assert found.value == pytest.approx(65.0)
    (at_point,) = at_kl(curve((1.0, 60.0), (9.0, 70.0)), [9.0])
    assert at_point.value == pytest.approx(70.0)


def test_training_starts_at_the_sft_model() -> None:
    (found,) = at_kl(curve((1.0, 60.0)), [0.25])
    assert found.value == pytest.approx(55.0)


def test_the_first_passage_counts() -> None:
    (found,) = at_kl(curve((4.0, 60.0), (1.0, 90.0), (4.0, 20.0)), [4.0])
    assert found.value == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("made", "metric", "reason"),
    [
        (curve((1.0, 60.0)), "win_rate_vs_sft", "reached 1 nats, below 4"),
        (curve((1.0, 60.0), (9.0, 70.0), temperature=0.0), "win_rate_vs_sft", "temperature 0 and top_p 1"),
        (curve((1.0, 60.0), (math.nan, 70.0)), "win_rate_vs_sft", "kl of step 1 is nan"),
        (curve((1.0, 60.0)), "proxy_reward", "no evaluation while training has proxy_reward"),
        ({}, "win_rate_vs_sft", "no evaluation"),
    ],
)
def test_a_row_without_the_target_is_blank(made: dict[str, Any], metric: str, reason: str) -> None:
    (found,) = at_kl(made, [4.0], metric)
    assert found.value is None
    assert found.reason is not None
    assert reason in found.reason


def test_a_metric_that_is_unknown_at_the_start_is_not_read_below_the_first_evaluation() -> None:
    made = curve((4.0, 60.0), (9.0, 70.0))
    for point in made["points"]:
        point["proxy_reward"] = point["kl"]
    below, between = at_kl(made, [1.0, 6.25], "proxy_reward")
    assert (below.value, below.reason) == (None, "was first measured at 4 nats, beyond 1")
    assert between.value == pytest.approx(6.5)


def test_a_metric_that_is_unknown_at_the_start_is_not_read_on_the_way_back() -> None:
    """The policy first went through 4 nats before its first evaluation, at 9."""
    made = curve((9.0, 60.0), (1.0, 70.0))
    for point in made["points"]:
        point["proxy_reward"] = point["kl"]
    (found,) = at_kl(made, [4.0], "proxy_reward")
    assert (found.value, found.reason) == (None, "was first measured at 9 nats, beyond 4")


def test_a_target_that_is_the_only_measured_distance_is_read() -> None:
    made = curve((4.0, 60.0), (4.0, 70.0))
    for point in made["points"]:
        point["proxy_reward"] = point["win_rate_vs_sft"]
    assert at_kl(made, [4.0], "proxy_reward")[0].value == 60.0


def test_an_estimate_below_zero_is_no_distance() -> None:
    (found,) = at_kl(curve((-0.01, 48.0), (4.0, 60.0)), [1.0])
    assert found.value == pytest.approx(54.0)


def test_evaluations_out_of_order_are_not_read() -> None:
    made = curve((1.0, 60.0), (9.0, 70.0))
    for points in (made["points"][::-1], made["points"] * 2):
        (found,) = at_kl({**made, "points": points}, [4.0])
        assert found.value is None
        assert "not one after another" in str(found.reason)


def test_a_rate_on_the_way_is_between_0_and_100() -> None:
    (found,) = at_kl(curve((1.0, 60.0), (9.0, 700.0)), [4.0])
    assert (found.value, found.reason) == (None, "win_rate_vs_sft of step 1 is 700, not a rate between 0 and 100")


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan])
def test_a_target_that_is_no_distance_is_refused(target: float) -> None:
    with pytest.raises(RecipeError, match="KL target"):
        at_kl(curve((1.0, 60.0)), [target])


def slices_told(right: float, wrong: float) -> dict[str, Any]:
    """Metrics of an aspect model that calls these shares of right slices, 70 %, and of wrong ones right."""
    told, overlooked = 0.7 * right, 0.3 * wrong
    f1 = 2 * told / (0.7 + told + overlooked)
    return {"metrics": {"accuracy": told + 0.3 - overlooked, "f1_right": f1, "share_right": 0.7}}


def aspects(wrong: float, *, segment: float, right: float = 0.3, paid: str = "factuality") -> dict[str, Any]:
    """A record of two cells; in the second the aspect model calls shares of right and of wrong slices right, and the
    row has a win rate."""
    cells = {}
    for cell, told, rate in (("sum", slices_told(0.9, 0.2), 60.0), ("mean", slices_told(right, wrong), segment)):
        common = {"seconds": 1.0, "training": TRAINING, "origin": {"settings": "s"}}
        wins = {"bandit": 55.0, "segment": rate}
        metrics = {name: {"win_rate_vs_sft": value, f"train_proxy/{paid}": 0.1} for name, value in wins.items()}
        rows = {name: {**common, "metrics": own} for name, own in metrics.items()}
        above = {"aspect_model/factuality": told, "aspect_model/relevance": slices_told(1.0, 0.0)}
        cells[cell] = {"rows": rows, "above": {**above, "sft/a": {"metrics": {}}}}
    return {"world": 1, "machine": {"threads": 2}, "cells": cells}


TWO_CELLS: StudySpec = typed(
    StudySpec,
    {
        **STUDY,
        "dials": {"truth": {"sum": {}, "mean": {"data": {"dialogue": {"dials": {"aggregation": "mean"}}}}}},
        "tuned_at": ["sum"],
    },
    "studies/credit.yaml",
)


def texts_of(*words: Any) -> list[str]:
    return [caveat.text for caveat in caveats_of(*words, {})]


def test_a_useless_aspect_model_and_cells_of_opposite_sign_are_said() -> None:
    said = texts_of(TWO_CELLS, TWO_CELLS.hypotheses["a"], [aspects(0.27, segment=50.0)], None)
    shares = "(right: {} % of right slices, {} % of wrong ones)"
    little = f"the aspect model 'factuality' tells little in {{}} worlds of mean {shares}"
    assert little.format("1 of 1", 30, 27) in said
    assert "cells differ in sign: +5.0 in sum, −5.0 in mean" in said
    sound = aspects(0.1, segment=56.0, right=0.9)
    texts = texts_of(TWO_CELLS, TWO_CELLS.hypotheses["a"], [sound], None)
    assert not [each for each in texts if "aspect model" in each or "sign" in each]
    worlds = [{**world, "world": index} for index, world in enumerate([sound, aspects(0.1, segment=56.0)])]
    assert little.format("1 of 2", 60, 10) in texts_of(TWO_CELLS, TWO_CELLS.hypotheses["a"], worlds, None)
    one_class = aspects(0.3, segment=50.0)
    one_class["cells"]["mean"]["above"]["aspect_model/factuality"]["metrics"]["share_right"] = 1.0
    texts = texts_of(TWO_CELLS, TWO_CELLS.hypotheses["a"], [one_class], None)
    assert not [each for each in texts if "aspect model" in each]


@pytest.mark.parametrize(("paid", "said"), [("relevance", 0), ("factuality", 1), ("my-component", 1)])
def test_of_aspect_models_those_that_no_compared_row_is_paid_by_are_not_named(paid: str, said: int) -> None:
    texts = texts_of(TWO_CELLS, TWO_CELLS.hypotheses["a"], [aspects(0.3, segment=56.0, paid=paid)], None)
    assert len([text for text in texts if "aspect model" in text]) == said


def test_cells_in_which_rows_were_not_tuned_are_said() -> None:
    records = [aspects(0.8, segment=56.0)]
    said = "tuned in sum, not in mean"
    trials = tuning({"bandit": 2, "segment": 2})
    assert said in texts_of(TWO_CELLS, TWO_CELLS.hypotheses["a"], records, trials)
    assert said not in texts_of(TWO_CELLS, TWO_CELLS.hypotheses["a"], records, None), "nothing was tuned"
    everywhere = replace(TWO_CELLS, tuned_at=())
    assert said not in texts_of(everywhere, TWO_CELLS.hypotheses["a"], records, trials)
