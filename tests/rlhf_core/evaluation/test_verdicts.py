"""Verdicts of tables and claims: Holm over rows, intersection-union over parts."""

from __future__ import annotations

from typing import Any

import pytest
from scipy import stats

from rlhf_core.evaluation import verdicts as v
from rlhf_core.evaluation.worlds import Effect, World, paired


def effect_with(p: float, sign: int = 1, degrees: int = 7) -> Effect:
    """An effect with standard error 1 and a two-sided p."""
    return Effect(sign * float(stats.t.isf(p / 2, degrees)), 1.0, degrees, degrees + 1)


def table(differences: dict[str, list[float]]) -> dict[str, dict[World, float]]:
    """A main row whose worlds differ, and rows with given differences from it."""
    level = {world: 50.0 + 3 * world for world in range(8)}
    every = {"main": [0.0] * 8, **differences}
    return {row: {world: level[world] + found[world] for world in level} for row, found in every.items()}


NOISE = [0.3, -0.2, 0.1, -0.4, 0.25, 0.05, -0.15, 0.05]


def shifted(mean: float, size: float = 1.0) -> list[float]:
    return [mean + size * noise for noise in NOISE]


def verdicts_of_table(values: dict[str, dict[World, float]], main: str, margin: float | None = None) -> Any:
    rows = [row for row in values if row != main]
    return dict(zip(rows, v.verdicts_of([paired(values[row], values[main]) for row in rows], margin), strict=True))


def test_each_row_has_one_of_five_verdicts() -> None:
    values = table(
        {
            "higher": shifted(2.0),
            "lower": shifted(-2.0),
            "alike": shifted(0.05),
            "noisy": shifted(1.0, 20.0),
            "moved": [1.0] * 8,
        }
    )
    found = verdicts_of_table(values, "main", margin=0.5)
    smallest = paired(values["noisy"], values["main"]).smallest_visible(0.05 / 5)
    assert {row: verdict.text for row, verdict in found.items()} == {
        "higher": "above",
        "lower": "below",
        "alike": "equivalent",
        "noisy": f"sees only effects above {smallest:.3g}",
        "moved": "not decided: no variance",
    }
    assert (found["moved"].p_corrected, found["moved"].smallest_visible) == (None, None)


def test_equivalence_is_corrected_for_every_row_of_the_table() -> None:
    """Of twenty rows that differ by the margin one used to be called equivalent."""
    alike = Effect(0.0, 1.0, 7, 8)
    margin = 2.1
    assert alike.p_within(margin) == pytest.approx(0.037, abs=0.001)
    (one,) = v.verdicts_of([alike], margin)
    six = v.verdicts_of([alike] * 6, margin)
    assert one.word == "equivalent"
    assert {each.word for each in six} == {"sees only effects above"}
    near = v.verdicts_of([Effect(0.0, 0.1, 7, 8), alike], margin)
    assert [each.word for each in near] == ["equivalent", "equivalent"], "step-down: the second is one of one"


def test_p_values_are_corrected_for_every_row_of_the_table() -> None:
    few = verdicts_of_table(table({"a": shifted(0.25)}), "main")["a"]
    many = verdicts_of_table(table({"a": shifted(0.25), **{f"b{i}": shifted(0.0, 9.0) for i in range(6)}}), "main")["a"]
    assert (few.word, many.word) == ("above", "sees only effects above")
    assert few.p_corrected is not None
    assert many.p_corrected == pytest.approx(7 * few.p_corrected)


def test_a_claim_is_confirmed_when_each_part_holds_at_five_percent() -> None:
    parts = [v.TestedComparison(effect_with(0.04), "above") for _ in range(5)]
    assert v.claim_verdict(parts).word == "confirmed"
    assert v.claim_verdict([*parts, v.TestedComparison(effect_with(0.06), "above")]).word == "undecided"


def test_a_claim_is_contradicted_only_after_correction() -> None:
    holding = [v.TestedComparison(effect_with(0.001), "above") for _ in range(4)]
    weak = v.claim_verdict([*holding, v.TestedComparison(effect_with(0.04, sign=-1), "above")])
    strong = v.claim_verdict([*holding, v.TestedComparison(effect_with(0.009, sign=-1), "above")])
    assert (weak.word, strong.word) == ("undecided", "contradicted")
    assert weak.p_contradicted[-1] == pytest.approx(0.2)


@pytest.mark.parametrize(("estimate", "word"), [(0.2, "confirmed"), (2.0, "undecided"), (-5.0, "contradicted")])
def test_beside_is_an_equivalence_inside_the_margin(estimate: float, word: str) -> None:
    part = v.TestedComparison(Effect(estimate, 0.5, 7, 8), "beside", margin=2.0)
    assert v.claim_verdict([part]).word == word


def test_a_part_without_a_test_keeps_a_claim_from_being_confirmed() -> None:
    holding = v.TestedComparison(effect_with(0.001), "above")
    one_world = v.TestedComparison(Effect(3.0, None, None, 1, "one world"), "above")
    not_run = v.TestedComparison(None, "above")
    for missing in (one_world, not_run):
        found = v.claim_verdict([holding, missing])
        assert (found.word, found.p_contradicted[1]) == ("undecided", None)
    contrary = v.TestedComparison(effect_with(0.03, sign=-1), "above")
    assert v.claim_verdict([contrary]).word == "contradicted"
    assert v.claim_verdict([contrary, not_run]).word == "undecided"
    assert v.claim_verdict([not_run]).word == "not run"


@pytest.mark.parametrize(
    ("published", "word", "verdict"),
    [
        ((20, 30), "below", "confirmed"),
        ((20, 30), "above", "contradicted"),
        ((40, 30), "above", "confirmed"),
        ((40, 30), "below", "contradicted"),
        ((40, 30), "equivalent", "equivalent"),
        ((40, 30), "sees only effects above", "undecided"),
        ((40, 30), "not decided", "undecided"),
        ((30, 30), "above", None),
        ((None, 30), "above", None),
        ((30, None), "above", None),
    ],
)
def test_a_verdict_is_held_against_the_printed_order(
    published: tuple[float | None, float | None], word: v.RowWord, verdict: str | None
) -> None:
    assert v.direction_verdict(*published, word) == verdict
