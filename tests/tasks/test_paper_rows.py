"""The committed rows of the papers: what each is trained from, and which printed results they stand for.

`params/test_pinned_settings.py` has their values, `test_printed_settings.py` compares these with the papers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.published import printed_tables, row_map
from rlhf_core.recipe import parse_recipe
from rlhf_core.rewards.composition import Reward
from rlhf_core.typed import typed
from tasks.graph.check import check_rows
from tasks.graph.rows import RowSpec, read_rows
from tasks.graph.scale import Scale
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale
from tasks.params.scales import DEFAULT_SCALE
from tasks.policy_run.reward import RewardInputs, build_reward
from tasks.studies.caveats import LEAST
from tests import small_repository
from tests.rlhf_core.tiny_models import tiny_scalar_model
from tests.small_repository import set_entry

ROOT = Path(__file__).resolve().parents[2]
ROWS = read_rows(ROOT, "rlmec")[0]
TESTBED = Scale(ROOT, DEFAULT_SCALE)
#: Normalisers that are fitted to the segments of a reward model.
FITTED = ("global", "last", "location_aware")


def policy_scale(row: RowSpec, scale: Scale) -> PolicyScale:
    where = Address(str(scale.row(row, 0)[-1].arguments["scale"]))
    return typed(PolicyScale, read_settings(where.under(ROOT)), str(where))


@pytest.mark.parametrize("paper", printed_tables.PAPERS)
def test_headline_rows_have_enough_updates_over_enough_iterations(paper: str) -> None:
    for name, row in read_rows(ROOT, paper)[0].items():
        if row.kind != "reward" or not TESTBED.has(row):
            continue
        recipe = parse_recipe(read_settings(row.path.under(ROOT)), name)
        config = policy_scale(row, TESTBED).optimiser_config(recipe.optimiser, name)
        iterations = config.iterations - config.critic_warmup - config.replay
        updates = iterations * config.epochs * config.rollout_batch // config.minibatch
        if recipe.optimiser["kind"] != "online_dpo":  # a row beyond the paper's tables
            assert updates >= LEAST["updates"], f"{name}: {updates} updates"
            assert iterations >= LEAST["iterations"], f"{name}: {iterations} iterations"


NGRAM, BANDIT, TOKEN = {"kind": "ngram", "n": 5}, {"kind": "bandit"}, {"kind": "token"}
NATS = {"kind": "entropy", "cutoff": 0.9}


@pytest.mark.parametrize(
    ("trained", "read", "same"),
    [
        (NGRAM, {"kind": "ngram", "n": 20}, False), (NATS, {"kind": "entropy", "cutoff": "1.75"}, False),
        (BANDIT, TOKEN, False), (NGRAM, NGRAM, True), (TOKEN, TOKEN, True),
        (NATS, {"kind": "entropy", "cutoff": "1.5"}, True), (NATS, {"kind": "entropy", "cutoff": "the same"}, True),
    ],
)  # fmt: skip
def test_a_normaliser_of_another_segmentation_is_refused(
    tmp_path: Path, trained: dict[str, Any], read: dict[str, Any], same: bool
) -> None:
    tiny_scalar_model().save(tmp_path / "model" / "model", {"segmenter": trained, "aggregation": "mean"})
    moments: dict[str, Any] = {name: {"mean": 0.0, "std": 1.0} for name in ("global", "last", "sequence")}
    line = {"w_mean": 0.1, "b_mean": 0.0, "w_std": 0.0, "b_std": 1.0, "floor": 0.1}
    cutoffs = {"1.5": 0.9, "1.75": 1.1, "the same": 0.9}
    for name, values in (("cutoffs", cutoffs), ("normaliser", moments | {"location_aware": {"huber": line}})):
        (tmp_path / f"{name}.json").write_text(json.dumps(values), encoding="utf-8")

    def built(fitted: str) -> Reward:
        row = {"title": "A row", "kind": "reward", "backbone": "tiny", "reward_model": "model", "normaliser": fitted}
        row |= {"readout": {"segmenter": read, "read": "value"}, "credit": "even_split", "optimiser": {"kind": "ppo"}}
        inputs = RewardInputs(tmp_path, (tmp_path / "model",), (tmp_path,))
        return build_reward(parse_recipe(row), inputs, 8, None)  # type: ignore[arg-type]

    if same:
        assert built("location_aware").components
        return
    with pytest.raises(RecipeError, match="normaliser 'location_aware' was fitted to segments of the reward model"):
        built("location_aware")
    assert built("sequence").components


# --- ALARM -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["small", "feedback", "paper"])
def test_the_initial_policy_answers_as_long_as_policies_do_while_they_train(scale: str) -> None:
    """Or D_p would normalise by rewards of answers that training never sees."""
    rows = [row for paper in ("alarm", "tatoeba") for row in read_rows(ROOT, paper)[0].values()]
    own, compared = Scale(ROOT, scale), 0
    for row in (row for row in rows if getattr(row.spec, "selection", None) and own.has(row)):
        items = own.row(row, 0)
        (selection,) = [item for item in items if item.module == "selection"]
        drawn = read_settings(Address(str(selection.arguments["scale"])).under(ROOT))
        trained = read_settings(Address(str(items[-1].arguments["scale"])).under(ROOT))
        assert drawn["max_new_tokens"] == trained["sampling"]["max_new_tokens"], row.name
        compared += 1
    assert compared > 15


# --- RLMEC -----------------------------------------------------------------------------------------------------------


def test_every_printed_result_of_rlmec_has_a_row() -> None:
    paper = printed_tables.paper("rlmec")
    assert len(ROWS) == 50
    mapped = [m for table in paper.tables if table.is_result for m in row_map.mapped_rows(table)]
    assert {m.recipe.name for m in mapped if m.recipe and m.recipe.kind == "policy"} == set(ROWS)
    empty = [m.condition for m in mapped if m.recipe is None]
    assert all(name.startswith("+ FIGA") and name.endswith("math") for name in empty)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"optimiser": {"kind": "rft", "additional": "generated"}},
            "names no generative reward model: name it by 'rewrites'",
        ),
        (
            {"optimiser": {"kind": "rft", "additional": "generated"}, "rewrites": "mth"},
            "rewrites is .mth., which no page",
        ),
        ({"optimiser": {"kind": "rft", "additional": "techer"}}, "additional is 'techer'"),
    ],
)
def test_rows_that_lack_what_they_learn_from_are_refused(tmp_path: Path, row: dict[str, object], message: str) -> None:
    root = small_repository.create(tmp_path)
    new = {"title": "x", "kind": "supervised", "backbone": "phi3-mini", **row}
    set_entry(root / "params/segment/rows.yaml", "new", new)
    assert re.search(message, "\n".join(check_rows(root, "segment", ["new"], "testbed")))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"optimiser": {"kind": "ppo"}}, "pays the tokens of fixed samples, but optimiser 'ppo' samples"),
        ({"optimiser": {"kind": "rlmec"}, "normaliser": "global"}, "has no 'normaliser'; leave it out"),
        ({"optimiser": {"kind": "rlmec"}, "credit": "last_token"}, "credit 'last_token' takes Sequence"),
        ({"optimiser": {"kind": "rlmec"}, "imitation": 0.5}, "imitation is 0.5; it must be a mapping"),
    ],
)
def test_generative_rewards_fit_fixed_samples_alone(row: dict[str, object], message: str) -> None:
    base = {"title": "x", "kind": "reward", "backbone": "b", "generative_reward_model": "math", "credit": "as_is"}
    with pytest.raises(RecipeError, match=message):
        parse_recipe({**base, **row})
