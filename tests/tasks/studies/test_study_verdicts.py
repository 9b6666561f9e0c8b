"""Verdicts of a study from records of chosen numbers, by hand beside the code."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from scipy import stats

from tasks.commands.study import print_studies, print_study
from tasks.studies.best_trials import tuning_file
from tasks.studies.numbers import shown_values
from tasks.studies.trials import write_tuning
from tasks.studies.verdicts import StudyFinding, StudyState, load_study
from tests.tasks.studies.synthetic_study import STUDY, Numbers, commit_study, write_worlds

#: Differences of segment and bandit by world: 5 on the mean, 9 more in long responses.
LONG, SHORT = (8.0, 10.0, 9.0, 11.0), (1.0, 0.0, 2.0, -1.0)


def plain(index: int, cell: str, row: str) -> float:
    """Segment above the bandit, more so in long responses; token like segment."""
    if row == "bandit":
        return 55.0 + index
    return 55.0 + index + (LONG if cell.startswith("long") else SHORT)[index] - (0.1 * index if row == "token" else 0)


def state(root: Path, numbers: Numbers, worlds: int | None = None, **changes: Any) -> StudyState:
    write_worlds(root, commit_study(root, {**STUDY, "claim": None, **changes}), numbers, worlds)
    return load_study(root, root / "studies" / "credit.yaml")


def by_name(found: StudyState) -> dict[str, StudyFinding]:
    return {finding.name: finding for finding in found.findings}


def p_of(values: list[float]) -> float:
    return float(2 * stats.t.sf(abs(fmean(values)) / (stdev(values) / math.sqrt(len(values))), len(values) - 1))


def test_nothing_is_found_before_the_registered_number_of_worlds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert state(tmp_path, plain, 3).findings == ()
    print_study(tmp_path, str(tmp_path / "studies" / "credit.yaml"))
    shown = capsys.readouterr().out
    assert "3 of 4 worlds" in shown
    assert "No verdict is shown" in shown
    assert "advantage" not in shown


def test_a_contrast_is_the_weighted_sum_over_cells(tmp_path: Path) -> None:
    found = by_name(state(tmp_path, plain))
    slopes = [long - short for long, short in zip(LONG, SHORT, strict=True)]
    assert list(found["grows"].values.values()) == pytest.approx(slopes)
    assert found["grows"].effect is not None
    assert found["grows"].effect.estimate == pytest.approx(fmean(slopes))
    means = [(long + short) / 2 for long, short in zip(LONG, SHORT, strict=True)]
    assert list(found["beats"].values.values()) == pytest.approx(means)
    assert list(found["token"].values.values()) == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_the_primary_is_tested_by_itself_and_the_others_are_corrected(tmp_path: Path) -> None:
    found = by_name(state(tmp_path, plain))
    raw = {name: p_of([*finding.values.values()]) for name, finding in found.items()}
    assert found["grows"].p == pytest.approx(raw["grows"])
    assert found["beats"].p == pytest.approx(max(raw["grows"], 2 * raw["beats"])), "Holm: the smaller of two"
    assert found["token"].p == pytest.approx(max(raw["grows"], 2 * raw["beats"], raw["token"]))
    assert [finding.primary for finding in found.values()] == [True, False, False]


def test_the_others_are_tested_only_if_the_primary_is_significant(tmp_path: Path) -> None:
    """Testing the primary at .05 and the others by Holm at .05 spent the level twice."""
    noise = (1.0, -1.0, 2.0, -1.5)

    def numbers(index: int, cell: str, row: str) -> float:
        gain = 9.0 + 0.2 * index + (noise[index] if cell.startswith("long") else -noise[index])
        return 55.0 + (gain if row == "segment" else 0.0)

    found = by_name(state(tmp_path, numbers))
    grows, beats = found["grows"], found["beats"]
    assert grows.p is not None
    assert grows.p > 0.05
    assert beats.effect is not None
    assert beats.effect.p is not None
    assert 2 * beats.effect.p < 0.05, "Holm alone would confirm it"
    assert (beats.p, beats.word) == (grows.p, "undecided")
    assert beats.why_untested == "not tested, since the primary hypothesis is not significant"
    assert beats.effect.interval() is not None, "which describes"


def test_equivalence_is_corrected_for_the_number_of_hypotheses(tmp_path: Path) -> None:
    """Each of two differences is within the margin at .05, and together only at .10."""
    spread = (3.1, -1.0, 3.1, -0.2)
    one = {"a": STUDY["hypotheses"]["beats"]}
    two = {**one, "b": STUDY["hypotheses"]["token"]}
    numbers: Numbers = lambda i, c, r: 55.0 + (spread[i] if r == "segment" else 0.0)  # noqa: E731
    alone, both = (
        by_name(state(tmp_path / name, numbers, hypotheses=each, margin=3.8))
        for name, each in (("one", one), ("two", two))
    )
    assert alone["a"].effect is not None
    p = alone["a"].effect.p_within(3.8)
    assert p is not None
    assert 0.025 < p < 0.05
    assert alone["a"].word == "equivalent"
    assert [finding.word for finding in both.values()] == ["undecided", "undecided"]


def test_the_words_are_those_of_effect_side_and_margin(tmp_path: Path) -> None:
    found = by_name(state(tmp_path, plain))
    assert {name: finding.word for name, finding in found.items()} == {
        "grows": "confirmed", "beats": "confirmed", "token": "equivalent",
    }  # fmt: skip
    below = {name: {**hypothesis, "side": "below"} for name, hypothesis in STUDY["hypotheses"].items()}
    again = by_name(state(tmp_path / "below", plain, hypotheses=below))
    assert {name: finding.word for name, finding in again.items()} == {
        "grows": "contradicted", "beats": "contradicted", "token": "equivalent",
    }  # fmt: skip


def test_equal_numbers_in_all_worlds_have_no_p(tmp_path: Path) -> None:
    found = by_name(state(tmp_path, lambda i, c, r: 60.0 if r == "segment" else 55.0))["beats"]
    assert (found.p, found.sees, found.word) == (None, None, "undecided")
    assert found.why_untested == "no variance"


def broken(row: str) -> dict[str, Any]:
    """A record of tuning in which one row is below its SFT model at its best."""
    rows = {}
    for name in STUDY["rows"]:
        run = {"metric": 44.0 if name == row else 60.0, "sft": 50.0, "curve": {}, "core_seconds": 5.0, "settings": name}
        trials = [{"point": {}, "runs": {"100": {"short-sum": run}}}]
        rows[name] = {"kind": "ppo", "cells": ["short-sum"], "fixed": [], "space": {}, "trials": trials}
    return {"study": "credit", "metric": "win_rate_vs_sft", "seeds": [100], "rows": rows}


@pytest.mark.parametrize(
    ("row", "changes", "words"),
    [
        ("bandit", {}, ("over a broken baseline", "over a broken baseline")),
        ("bandit", {"collapse": True}, ("confirmed", "confirmed")),
        ("token", {}, ("confirmed", "confirmed")),
        ("segment", {}, ("over a broken baseline", "confirmed")),
        ("segment", {"side": "below"}, ("broken", "contradicted")),
        ("bandit", {"side": "below"}, ("broken", "broken")),
        ("token", {"side": "below"}, ("contradicted", "contradicted")),
    ],
)
def test_a_win_over_a_broken_row_confirms_nothing(
    tmp_path: Path, row: str, changes: dict[str, Any], words: tuple[str, str]
) -> None:
    """Its loss contradicts nothing. Of a slope either row counts: a row that is broken at one level makes a slope."""
    (tmp_path / tuning_file("credit")).parent.mkdir(parents=True)
    write_tuning(tmp_path, broken(row))
    hypotheses = {name: {**hypothesis, **changes} for name, hypothesis in STUDY["hypotheses"].items()}
    found = by_name(state(tmp_path, plain, hypotheses=hypotheses))
    assert (found["grows"].word, found["beats"].word) == words
    (tuning,) = [caveat.text for caveat in found["beats"].caveats if caveat.about == "tuning"]
    assert (f"'{row}' was broken: 44 at its best, its SFT model has 50" in tuning) == (row != "token")


def test_the_terminal_has_caveats_budgets_and_equal_kl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state(tmp_path, lambda i, c, r: 47.0 if r == "token" else plain(i, c, r), kl_targets=[4, 25])
    print_study(tmp_path, str(tmp_path / "studies" / "credit.yaml"))
    shown = capsys.readouterr().out
    (primary,) = [line for line in shown.splitlines() if line.startswith("| The advantage grows with length |")]
    assert "| +9.0 [+5.1, +12.9] |" in primary
    assert "confirmed ✓" in primary
    assert "- segment less token: tuning: 'segment' was not tuned; 'token' was not tuned; " in shown
    assert "the SFT model: 'token' ended below it in 8 of 8 runs, lowest 47.0" in shown
    assert "2,048" in shown
    assert "win_rate_vs_sft@4" in shown


def test_the_metric_is_shown_at_a_kl_that_every_world_reaches(tmp_path: Path) -> None:
    found = state(tmp_path, plain, kl_targets=[4.0, 25.0])
    at_4, at_25 = (shown_values(found.spec, found.numbers, f"win_rate_vs_sft@{kl}") for kl in (4, 25))
    values, missing = at_4["segment", "long-sum"]
    assert [*values.values()] == pytest.approx([50 + (plain(i, "long-sum", "segment") - 50) * 2 / 3 for i in range(4)])
    assert (missing, at_25["segment", "long-sum"]) == (0, ({}, 4))
    assert ("token", "long-sum") not in at_4, "it is not trained there"


def test_the_list_has_findings_and_why_a_study_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state(tmp_path, plain)
    (tmp_path / "studies" / "vague.yaml").write_text("title: Vague\n")
    print_studies(tmp_path)
    first, asks, *effect, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["credit", "4", "of", "4", "worlds", "primary", "hypothesis", "confirmed"]
    assert asks.strip() == STUDY["asks"]
    assert " ".join(line.strip() for line in effect).startswith("segment − bandit, per level of length: +9.0 [+")
    assert all(len(line) <= 80 for line in (first, asks, *effect))
    assert second.startswith("vague ")
    assert "'metric'" in second
