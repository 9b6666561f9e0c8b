"""The manipulation check: at the ends of a dial its assumption is wholly true or clearly false, in numbers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rlhf_core import manipulation_check
from rlhf_core.errors import RecipeError
from rlhf_core.manipulation_check import findings, main

SEED = 3
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str, str], float]:
    return {(each.dial, each.setting, each.measure): each.value for each in findings(SEED, 800)}


def values(found, dial, measure):
    return [value for (name, _, what), value in found.items() if (name, what) == (dial, measure)]


@pytest.mark.parametrize(
    ("dial", "measure", "ends"),
    [
        ("aggregation", "explained_by_sum", [1.0, 0.8, 0.8]),
        ("aggregation", "explained_by_mean", [0.8, 1.0, 0.85]),
        ("aggregation", "explained_by_requested", [0.73, 0.75, 0.97]),
        ("clauses", "clauses_per_response", [3.6, 7.8]),
        ("late", "decided_later", [0.0, 0.99]),
        ("late", "known_at_once", [1.0, 0.5]),
        ("pairs", "pairs_in_usual_wordings", [1.0, 0.0]),
        ("boundaries", "boundary_agreement", [1.0, 0.8]),
        ("annotator's ceiling", "ceiling", [0.6, 0.95]),
        ("flipped", "label_accuracy", [0.83, 0.63]),
        ("slip", "solutions_right", [1.0, 0.5]),
        ("teacher's noise", "rewrites_right", [1.0, 0.5]),
        ("wrong_share", "solutions_right", [1.0, 0.5]),
    ],
)
def test_the_ends_of_a_dial(found, dial, measure, ends):
    measured = values(found, dial, measure)
    assert measured == pytest.approx(ends, abs=0.6 if dial == "clauses" else 0.06)
    assert all(value == end for value, end in zip(measured, ends, strict=True) if dial == "late" and end == 0)


def test_the_ceiling_stays_at_both_ends_of_every_dial(found):
    """The ceiling of 800 pairs has a standard error of .006."""
    kept = [dial for dial, _, measure in found if measure == "ceiling" and dial != "annotator's ceiling"]
    assert set(kept) == {"aggregation", "clauses", "late", "pairs", "flaw"}
    for dial in set(kept):
        assert values(found, dial, "ceiling") == pytest.approx([0.83] * kept.count(dial), abs=0.02)


def test_a_flaw_turns_labels_away_from_the_true_reward(found):
    unbiased, *flawed = values(found, "flaw", "label_accuracy")
    assert unbiased > 0.8
    assert all(value < unbiased - 0.08 for value in flawed)


def test_labels_of_aspects_are_wrong_as_often_as_asked_for(found):
    assert values(found, "aspect_errors", "aspect_accuracy") == pytest.approx([1.0, 0.6] * 3, abs=0.05)


def test_the_documented_command_prints_a_line_for_each_finding(found, capsys, monkeypatch):
    documented = (ROOT / "docs" / "testbed.md").read_text(encoding="utf-8")
    [command] = re.findall(r"`python -m rlhf_core\.manipulation_check (.*?)`", documented)
    made = [manipulation_check.DialMeasure(*name, value) for name, value in found.items()]
    monkeypatch.setattr(manipulation_check, "findings", lambda *_: made)
    main(shlex.split(command))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(made) > 40
    assert [float(line.split()[-1]) for line in lines] == pytest.approx([each.value for each in made], abs=1e-3)


def test_too_few_rows_are_refused():
    with pytest.raises(RecipeError, match="at least 50"):
        findings(0, 10)
