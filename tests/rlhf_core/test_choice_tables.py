"""Every table of choices, by construction: each entry is found by its name, a near miss is named, options are held."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.aspects.choices import ASPECTS
from rlhf_core.choices import Choices
from rlhf_core.credit import CREDITS
from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.consistency import RULES
from rlhf_core.evaluation.judges.choices import JUDGES
from rlhf_core.evaluation.protocols import PROTOCOLS
from rlhf_core.models.sampling import ENGINES
from rlhf_core.normalisers import NORMALISERS
from rlhf_core.policy_optimisation.advantages import ADVANTAGES
from rlhf_core.policy_optimisation.config import OPTIMISERS
from rlhf_core.policy_optimisation.kl import KL_ESTIMATORS
from rlhf_core.policy_optimisation.objectives import OBJECTIVES
from rlhf_core.rewards.aggregation import AGGREGATIONS, build_aggregation
from rlhf_core.rewards.combinations import COMBINATIONS
from rlhf_core.rewards.preference_losses import LOSSES
from rlhf_core.rewards.reads import READS
from rlhf_core.schedule import SCHEDULES
from rlhf_core.segmentation.segmenters import SEGMENTERS
from rlhf_core.shaping.choices import SHAPINGS
from rlhf_core.supervised.recipes import RECIPES
from rlhf_core.teachers.choices import TEACHERS

#: Choices that take options, with the options that an entry cannot do without.
WITH_OPTIONS: dict[str, tuple[Choices[Any], dict[str, dict[str, Any]]]] = {
    "segmenter": (SEGMENTERS, {"ngram": {"n": 3}, "entropy": {"cutoff": 1.5}, "sat": {"model": "sat-3l"}}),
    "loss": (LOSSES, {}),
    "shaping": (SHAPINGS, {"ceil": {"ceiling": 1.0}}),
    "combination": (COMBINATIONS, {"gate": {"by": "holistic", "threshold": 0.5}}),
    "supervised recipe": (RECIPES, {"dpo": {"beta": 0.1}}),
}
PLAIN: list[Choices[Any]] = [
    ASPECTS, JUDGES, TEACHERS, RULES, ENGINES,
    AGGREGATIONS, CREDITS, NORMALISERS, OPTIMISERS, READS, ADVANTAGES, OBJECTIVES, KL_ESTIMATORS,
]  # fmt: skip
EVERY = [*PLAIN, *(table for table, _ in WITH_OPTIONS.values())]
BUILT = [(name, kind) for name, (table, _) in WITH_OPTIONS.items() for kind in table]


@pytest.mark.parametrize("table", EVERY, ids=lambda table: table.noun)
def test_every_name_is_found_and_a_misspelt_one_is_named(table: Choices[Any]) -> None:
    for name in table:
        assert table[name] is not None
        assert table.refusal(name) is None
        misspelt = f"{name}x"
        assert misspelt not in table
        with pytest.raises(RecipeError, match=f"unknown {table.noun} '{misspelt}'; (did you mean|known: )"):
            table[misspelt]
        for wrong in (5, None, True, [name]):
            assert table.refusal(wrong) is not None


@pytest.mark.parametrize("table", [*EVERY, PROTOCOLS, SCHEDULES], ids=lambda table: table.noun)
def test_a_name_of_something_that_is_no_choice_at_all_is_refused(table: Choices[Any]) -> None:
    assert table.refusal("math:pi") is not None
    plain_functions = not table.needs and all(map(callable, table.values()))
    assert (table.refusal("os:system") is None) == plain_functions


@pytest.mark.parametrize(("noun", "kind"), BUILT)
def test_every_entry_with_options_builds_and_refuses_others(noun: str, kind: str) -> None:
    table, needed = WITH_OPTIONS[noun]
    spec = {"kind": kind, **needed.get(kind, {})}
    table.build(spec)
    with pytest.raises(RecipeError, match="unknown option 'no_such_option'"):
        table.build({**spec, "no_such_option": 1})
    for option in table.options(kind):
        with pytest.raises(RecipeError, match=option):
            table.build({**spec, option: object()})


@pytest.mark.parametrize("kind", AGGREGATIONS)
def test_every_aggregation_builds_and_refuses_other_options(kind: str) -> None:
    assert build_aggregation(kind) == build_aggregation({"kind": kind})
    with pytest.raises(RecipeError, match="unknown setting 'no_such_option'"):
        build_aggregation({"kind": kind, "no_such_option": 1})


def test_an_estimator_of_the_users_own_is_called_and_never_falls_through(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_estimators.py").write_text(
        "from rlhf_core.policy_optimisation.advantages import AdvantageEstimator\n"
        "doubled = AdvantageEstimator(lambda given, config: 2 * given.rewards)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from tests.rlhf_core.policy_optimisation.test_compositions import run_of

    run = run_of("vanilla_ppo", "decoder", advantage="own_estimators:doubled")
    experience = run.experience(run.source.next(run.generator))
    assert experience.advantages.tolist() == (2 * experience.reward.total).tolist()
    with pytest.raises(RecipeError, match="advantage is 'own_estimators:halved'"):
        run_of("vanilla_ppo", "decoder", advantage="own_estimators:halved")
