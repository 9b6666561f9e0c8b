"""Dials of the dialogue world: each moves one thing, and none of them anything at its default."""

from __future__ import annotations

from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.errors import RecipeError
from rlhf_core.testbed import (
    Annotator,
    ClauseRewards,
    Dials,
    GoldJudge,
    World,
    WorldConfig,
    bayes_ceiling,
    calibrated_temperature,
)
from rlhf_core.testbed.prompts import SPLITS
from rlhf_core.testbed.reward_bench import reward_bench_pairs
from rlhf_core.testbed.rewards import Clause, requested_attributes, shares, total
from rlhf_core.typed import typed

SUM = World()
MEAN = World(WorldConfig(dials=Dials(aggregation="mean")))
WEIGHTED = World(WorldConfig(dials=Dials(aggregation="weighted", emphasis=3.0)))
LONG = World(WorldConfig(dials=Dials(clauses=8)))
VERY_LONG = World(WorldConfig(dials=Dials(clauses=40)))
MOVED = {"mean": MEAN, "weighted": WEIGHTED, "8 clauses": LONG}

CLAUSES = [Clause(0, 1, "requested_true", 1.0), Clause(1, 2, "filler", -0.4), Clause(2, 3, "requested_false", -1.0)]


def test_the_true_reward_is_the_sum_the_mean_or_the_weighted_mean_of_the_clauses():
    rewards = ClauseRewards()
    assert total(CLAUSES, rewards) == -0.4
    assert total(CLAUSES, rewards, MEAN.config.dials) == pytest.approx(-0.4 / 3, abs=1e-6)
    assert total(CLAUSES, rewards, WEIGHTED.config.dials) == pytest.approx((3 - 0.4 - 3) / 7, abs=1e-6)
    assert shares(CLAUSES, WEIGHTED.config.dials) == pytest.approx([3 / 7, -0.4 / 7, -3 / 7])
    for world in MOVED.values():
        assert world.true_reward({"entity": "wolf", "requested": ["color"]}, "") == rewards.empty


def test_under_a_mean_the_same_responses_have_other_true_rewards():
    for row, other in zip(SUM.sft_examples(200, 0), MEAN.sft_examples(200, 0), strict=True):
        assert (row["prompt"], row["response"]) == (other["prompt"], other["response"])
        clauses = row["meta"]["clauses"]
        assert other["meta"]["true"] == pytest.approx(mean(c[3] for c in clauses), abs=1e-6)
        assert [c[:3] for c in other["meta"]["clauses"]] == [c[:3] for c in clauses]


@pytest.mark.parametrize("world", MOVED.values(), ids=MOVED)
def test_the_shares_of_the_clauses_add_up_to_the_true_reward(world):
    for row in world.preference_pairs(150, 0):
        for side in ("chosen", "rejected"):
            assert sum(c[3] for c in row["meta"][f"{side}_clauses"]) == pytest.approx(
                row["meta"][f"true_{side}"], abs=1e-6
            )
            assert world.true_reward(row["meta"], row[side]) == row["meta"][f"true_{side}"]


@given(st.integers(0, 10_000), st.sampled_from([2.0, 3.0, 9.0]))
@settings(max_examples=50, deadline=None)
def test_a_weighted_mean_is_between_its_clauses(seed, emphasis):
    world = World(WorldConfig(dials=Dials(aggregation="weighted", emphasis=emphasis)))
    meta = {"entity": "wolf", "requested": ["color", "food"]}
    text = world.mixture_answer(meta, seed)
    rewards = [clause.reward for clause in world.clauses(meta, text)]
    assert min(rewards) - 1e-6 <= world.true_reward(meta, text) <= max(rewards) + 1e-6


def test_anchors_follow_the_aggregation():
    meta = {"entity": "wolf", "requested": ["color", "food"]}
    assert max(SUM.anchor_rewards(meta)) > 1.0 >= max(MEAN.anchor_rewards(meta))


@pytest.mark.parametrize(
    "dials", [{"aggregation": "weighted"}, {"emphasis": 3.0}, {"aggregation": "mean", "emphasis": 2.0}]
)
def test_an_emphasis_belongs_to_the_weighted_mean(dials):
    with pytest.raises(RecipeError, match="emphasis"):
        Dials(**dials)


@pytest.mark.parametrize(
    ("dials", "message"),
    [
        ({"aggregation": "maen"}, "did you mean 'mean'"),
        ({"clauses": 5}, "must be one of 4, 8, 40"),
        ({"agregation": "mean"}, "did you mean 'aggregation'"),
        ({"emphasis": 0.5}, "at least 1"),
    ],
)
def test_what_no_dial_has_is_refused(dials, message):
    with pytest.raises(RecipeError, match=message):
        typed(Dials, dials, "dials")


@pytest.mark.parametrize(
    ("world", "least", "most"), [(SUM, 3.2, 4.0), (LONG, 7.2, 8.8), (VERY_LONG, 36, 44)], ids=["4", "8", "40"]
)
def test_responses_have_about_as_many_clauses_as_the_dial_says(world, least, most):
    assert least < mean(len(row["meta"]["clauses"]) for row in world.sft_examples(400, 0)) < most


@pytest.mark.parametrize("world", [LONG, VERY_LONG], ids=["8", "40"])
def test_longer_requests_ask_about_several_animals_in_every_split(world):
    for split in SPLITS:
        for row in world.prompts(40, 0, split):
            asked = requested_attributes(row["meta"])
            assert len(asked) == world.length.animals
            assert all(entity in row["prompt"] for entity in asked)
            assert all(f"the {name}" in row["prompt"] for names in asked.values() for name in names)


def test_evaluation_prompts_of_longer_requests_are_distinct_and_not_in_training():
    training = {row["prompt"] for row in LONG.prompts(2000, 0, "train")}
    training |= {row["prompt"] for row in LONG.preference_pairs(1000, 0)}
    for split in ("test", "arena", "ood", "mtbench"):
        rows = LONG.prompts(256, 0, split)
        assert len({row["prompt"] for row in rows}) == 256
        assert not training & {row["prompt"] for row in rows}


def test_an_expert_tells_every_requested_fact_of_every_animal():
    for row in LONG.prompts(30, 0):
        kinds = [c.kind for c in LONG.clauses(row["meta"], LONG.expert_answer(row["meta"], 0))]
        assert kinds.count("requested_true") == sum(map(len, requested_attributes(row["meta"]).values()))
        assert set(kinds) <= {"greeting", "requested_true", "closing"}


def test_longer_preferences_never_mention_reserved_facts():
    reserved = LONG.knowledge.reserved
    for row in LONG.preference_pairs(200, 0):
        requested = requested_attributes(row["meta"]).items()
        assert not any((entity, name) in reserved for entity, names in requested for name in names)


@pytest.mark.parametrize("world", MOVED.values(), ids=MOVED)
def test_the_calibrated_temperature_keeps_the_ceiling(world):
    annotator = Annotator(temperature=calibrated_temperature(world))
    assert bayes_ceiling(world.preference_pairs(4000, 0, annotator), annotator) == pytest.approx(0.83, abs=0.01)


@pytest.mark.parametrize("bias", [{"length_bias": 2.0}, {"flattery_bias": 3.0}, {"keyword_bias": 6.0}])
def test_a_flaw_does_not_move_the_ceiling_of_a_calibrated_annotator(bias):
    temperature = calibrated_temperature(SUM, 0.83, Annotator(**bias))
    annotator = Annotator(temperature=temperature, **bias)
    assert bayes_ceiling(SUM.preference_pairs(4000, 0, annotator), annotator) == pytest.approx(0.83, abs=0.01)


def test_the_default_world_is_calibrated_to_about_its_own_temperature():
    assert calibrated_temperature(SUM) == pytest.approx(0.75, abs=0.03)
    assert calibrated_temperature(SUM, 0.7) > calibrated_temperature(SUM, 0.9)
    assert calibrated_temperature(SUM) == calibrated_temperature(World())


def test_a_ceiling_that_no_temperature_has_is_refused():
    with pytest.raises(RecipeError, match=r"ceiling is 0\.9999"):
        calibrated_temperature(SUM, 0.9999)


def test_the_unit_of_margins_follows_the_spread_of_true_rewards():
    assert (SUM.unit, World(WorldConfig(seed=5)).unit) == (1.0, 1.0)
    assert MEAN.unit < 0.5 < 1.2 < LONG.unit
    assert World(WorldConfig(seed=5, dials=MEAN.config.dials)).unit == MEAN.unit


class Asked:
    def __init__(self, template, answers, meta):
        self.id, self.template, self.answers, self.meta = "x", template, answers, {"prompt": meta}


def test_the_gold_judge_calls_clear_wins_and_ties_in_the_unit_of_its_world():
    def verdicts(world, template):
        rows = world.preference_pairs(400, 0)
        return GoldJudge(world).answer([Asked(template, (r["chosen"], r["rejected"]), r["meta"]) for r in rows])

    for world in MOVED.values():
        for template, sign in (("arena_hard", ">>"), ("arena_hard", "A=B")):
            usual, moved = (sum(sign in text for text in verdicts(each, template)) / 400 for each in (SUM, world))
            assert moved == pytest.approx(usual, abs=0.12), (template, sign)
        soft = [mean(abs(float(t.split()[1]) - 1.5) for t in verdicts(each, "alpaca_eval")) for each in (SUM, world)]
        assert soft[1] == pytest.approx(soft[0], abs=0.03)


@pytest.mark.parametrize("world", MOVED.values(), ids=MOVED)
def test_the_benchmark_of_reward_models_is_drawn_at_every_setting(world):
    rows = reward_bench_pairs(world, 3, 0)
    margins = [
        row["meta"]["true_chosen"] - row["meta"]["true_rejected"] for row in rows if row["section"] == "chat_hard"
    ]
    assert len(rows) == 3 * 16
    assert all(margin > 0 for margin in margins)


def test_a_moved_dial_is_version_4_and_the_default_version_3():
    assert WorldConfig().version == WorldConfig(seed=7, padding=0.4, padded_with="flattery").version == 3
    assert {world.config.version for world in MOVED.values()} == {4}


def test_compared_responses_may_have_wordings_of_their_own():
    other = World(WorldConfig(dials=Dials(pairs="other")))
    assert other.sft_examples(50, 0) == SUM.sft_examples(50, 0)
    for row in other.preference_pairs(100, 0):
        for side in ("chosen", "rejected"):
            clauses = other.clauses(row["meta"], row[side])
            assert [[c.start, c.end, c.kind, c.reward] for c in clauses] == row["meta"][f"{side}_clauses"]
            usual = [c.kind for c in SUM.clauses(row["meta"], row[side])]
            assert not any(kind.startswith(("requested", "unrequested")) for kind in usual)


def test_a_policys_own_samples_are_labelled_like_drawn_pairs():
    annotator = Annotator(seed=3)
    for row in SUM.preference_pairs(60, 0, annotator):
        meta = {name: row["meta"][name] for name in ("entity", "requested", "split", "phrasing")}
        asked = {"id": row["id"], "prompt": row["prompt"], "meta": meta}
        orders = [[row["chosen"], row["rejected"]], [row["rejected"], row["chosen"]]]
        assert row in [SUM.compared([{**asked, "responses": texts}], annotator)[0] for texts in orders]
    assert SUM.compared([{**asked, "responses": ["It is red.", "It is red."]}]) == []


def test_flipped_labels_lower_the_ceiling_and_nothing_else():
    calm, flipped = (Annotator(flipped=share) for share in (0.0, 0.2))
    pairs = SUM.preference_pairs(3000, 0, calm)
    other = SUM.preference_pairs(3000, 0, flipped)
    turned = mean(a["chosen"] != b["chosen"] for a, b in zip(pairs, other, strict=True))
    low = bayes_ceiling(other, flipped)
    assert low == pytest.approx(0.5 + 0.6 * (bayes_ceiling(pairs, calm) - 0.5), abs=1e-9)
    assert 0.05 < turned < 0.25
    assert calibrated_temperature(SUM, 0.83, flipped) == calibrated_temperature(SUM)
    with pytest.raises(RecipeError, match="flipped"):
        Annotator(flipped=0.6)
