"""Caveats beside effects: one case for each fact that a predicate finds, and none for sound comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rlhf_core.typed import typed
from tasks.params.studies import StudySpec
from tasks.studies.best_trials import tuned_rows
from tasks.studies.verdicts import caveat_groups, findings_of

Record = dict[str, Any]
#: Leads of the worlds over the bandit's 60 %.
LEADS = (4.0, 5.0, 6.0, 5.5)
STUDY: dict[str, Any] = {
    "title": "Credit",
    "asks": "?",
    "main": "bandit",
    "rows": {
        "bandit": {"like": "segment/bandit", "optimiser": {"kl_coef": 1.1}},
        "segment": {"like": "segment/segment", "optimiser": {"kl_coef": 1.1}},
    },
    "dials": {
        "length": {"short": {}, "long": {"data": {"dialogue": {"seed": 3}}}},
        "truth": {"sum": {}, "mean": {"data": {"dialogue": {"follow_up_share": 0.2}}}},
    },
    "hypotheses": {
        "beats": {"says": "s", "row": "segment"},
        "grows": {"says": "s", "row": "segment", "over": "length"},
    },
    "metric": "win_rate_vs_sft",
    "worlds": 4,
    "margin": 0.5,
}
TRAINING = {"iterations": 30, "updates": 60, "rollouts": 3840, "tokens": 9000}
Change = Callable[[Record], Any]


def spec(**changes: Any) -> StudySpec:
    made: StudySpec = typed(StudySpec, {**STUDY, **changes}, "studies/credit.yaml")
    return made


def world(number: int) -> Record:
    """A record in which nothing is to be said against segment's lead."""
    cells = {}
    for cell in spec().cells:
        rows = {}
        for row in STUDY["rows"]:
            rate = 60.0 + 0.3 * number + (LEADS[number] if row == "segment" else 0.0)
            points = [{"step": n, "kl": 2.0 * n, "win_rate_vs_sft": 50 + (rate - 50) * n / 2} for n in (1, 2)]
            curve = {"temperature": 1, "top_p": 1, "points": points}
            metrics = {"win_rate_vs_sft": rate, "kl": 4.0, "response_length": 20.0}
            origin = {"settings": row, "data": "d", "sft": "m"}
            rows[row] = {"seconds": 10.0, "metrics": metrics, "training": TRAINING, "curve": curve, "origin": origin}
        cells[cell] = {"rows": rows}
    return {"study": "credit", "world": number, "machine": {"threads": 2}, "cells": cells}


def tuning(trials: Mapping[str, int], **changes: Any) -> Record:
    """A record of tuning whose second trial of three or more is the best."""
    rows = {}
    for row, count in trials.items():
        made = []
        for number in range(count):
            run = {"metric": 60.0 - abs(number - 1), "sft": 50.0, "curve": {}, "core_seconds": 5.0, "settings": row}
            made.append({"point": {"kl_coef": 0.1 + number}, "runs": {"100": {"short-sum": {**run, **changes}}}})
        rows[row] = {"kind": "ppo", "cells": ["short-sum"], "fixed": [], "space": {}, "trials": made}
    return {"study": "credit", "metric": "win_rate_vs_sft", "seeds": [100], "rows": rows}


EQUAL = tuning({"bandit": 4, "segment": 4})


def facts(change: Change | None = None, tuned: Record = EQUAL, name: str = "beats", **changes: Any) -> dict[str, str]:
    """The caveats of a hypothesis, where every record is changed."""
    records = {number: world(number) for number in range(4)}
    for record in records.values():
        if change is not None:
            change(record)
    found = {finding.name: finding for finding in findings_of(spec(**changes), records, tuned_rows(tuned))}
    return {caveat.about: caveat.text for caveat in found[name].caveats}


def runs(row: str, part: str, **values: Any) -> Change:
    """Changes a part of a row's runs in every cell."""

    def change(record: Record) -> None:
        for cell in record["cells"].values():
            cell["rows"][row] |= {part: {**cell["rows"][row][part], **values}}

    return change


def rates(leads: Callable[[str, int], float], base: float = 60.0) -> Change:
    """Sets segment's lead at the end by cell and world."""

    def change(record: Record) -> None:
        for cell, stages in record["cells"].items():
            for row, run in stages["rows"].items():
                lead = leads(cell, record["world"]) if row == "segment" else 0.0
                run["metrics"] = {**run["metrics"], "win_rate_vs_sft": base + lead + 0.3 * record["world"]}

    return change


def steps(row: str, *values: float) -> Change:
    """Sets a row's metric at its evaluations while training, by step."""
    points = [{"step": n, "kl": float(n), "win_rate_vs_sft": value} for n, value in enumerate(values, 1)]
    return runs(row, "curve", points=points)


def stop(record: Record) -> None:
    if record["world"] == 2:
        record["cells"]["long-sum"]["rows"]["segment"]["stopped"] = "hacked"


def test_a_sound_comparison_has_no_caveats() -> None:
    assert facts() == {}
    assert facts(name="grows") == {}


NOISE = (-4.0, 5.0, -3.0, 4.0)


@pytest.mark.parametrize(
    ("about", "said", "change", "more"),
    [
        ("tuning", "'segment' was not tuned; 'bandit' was not tuned", None, {"tuned": tuning({})}),
        ("tuning", "'segment' does not run at the settings that tuning chose", None,
         {"rows": {**STUDY["rows"], "segment": {"like": "segment/segment", "optimiser": {"kl_coef": 0.7}}}}),
        ("tuning", "was broken: 60 at its best, its SFT model has 70", None,
         {"tuned": tuning({"bandit": 4, "segment": 4}, sft=70.0)}),
        ("tuning", "'bandit' has the highest kl_coef tried", None, {"tuned": tuning({"bandit": 2, "segment": 4})}),
        ("tuning", "'segment' was tuned at other settings or stage versions",
         runs("segment", "origin", settings="x"), {}),
        ("tuning", "tuned in short-sum, not in short-mean, long-sum, long-mean", None, {"tuned_at": ["short-sum"]}),
        ("budgets", "8 trials of 'segment' and 4 of 'bandit'", None, {"tuned": tuning({"bandit": 4, "segment": 8})}),
        ("budgets", "updates 70 of 'segment' and 60 of 'bandit'", runs("segment", "training", updates=70), {}),
        ("budgets", "rollouts 0 of 'segment' and 3840 of 'bandit'", runs("segment", "training", rollouts=0), {}),
        ("budgets", "'segment' learned from 2.0 times as many tokens as 'bandit'",
         runs("segment", "training", tokens=18_000), {}),
        ("budgets", "'bandit' has 20 iterations, fewer than 30", runs("bandit", "training", iterations=20), {}),
        ("ends", "KL 9.0 and 4.0", runs("segment", "metrics", kl=9.0), {}),
        ("ends", "20 and 40 tokens a response", runs("bandit", "metrics", response_length=40.0), {}),
        ("origins", "SFT models; evaluation settings", runs("segment", "origin", sft="x", evaluation="e"), {}),
        ("signs", "−3.0 in short-sum; +5.0 in short-mean",
         rates(lambda cell, _: -3.0 if cell == "short-sum" else 5.0), {}),
        ("step", "+0.0 (+0.0 to +0.0) at the best evaluations",
         lambda record: [steps(row, 60.0, 60.0)(record) for row in STUDY["rows"]], {}),
        ("SFT", "neither row is shown to end above it: 'segment' +0.4", rates(lambda _, world: NOISE[world], 49.5), {}),
        ("SFT", "'bandit' ended below it in 16 of 16 runs", rates(lambda _, world: 20.0 + world, 40.0), {}),
        ("runs", "'segment' stopped in 1 of 16 runs (world 2, long-sum: hacked)", stop, {}),
    ],
)  # fmt: skip
def test_what_weakens_a_comparison_is_said(about: str, said: str, change: Change | None, more: dict[str, Any]) -> None:
    found = facts(change, **more)
    assert said in found[about], found


@pytest.mark.parametrize(
    ("about", "change"),
    [
        ("budgets", runs("segment", "training", rollouts=0, updates=16)),
        ("ends", runs("segment", "metrics", kl=7.9)),
    ],
)
def test_what_does_not_weaken_a_comparison_is_not_said(about: str, change: Change) -> None:
    """Offline rows may have fewer updates; ends may differ by less than twice."""
    said = facts(change).get(about, "")
    assert "fewer than" not in said
    assert about == "budgets" or said == ""


def test_an_effect_that_turned_at_the_last_evaluation_says_so() -> None:
    """Of a lead of +2.0 ± 1.2 at the end, the evaluation before it had the other sign."""

    def change(record: Record) -> None:
        rates(lambda _, world: (0.5, 5.0, 0.5, 2.0)[world])(record)
        for row, before in (("segment", 59.0), ("bandit", 60.0)):
            steps(row, before, 61.0)(record)

    assert facts(change)["step"] == "depends on the step: −1.0 (−1.0 to −1.0) at the evaluation before the last"


def test_a_caveat_is_said_once_for_the_comparisons_that_have_it() -> None:
    records = {number: world(number) for number in range(4)}
    for record in records.values():
        runs("bandit", "metrics", kl=1.0)(record)
    some = {"says": "s", "row": "segment", "at": {"truth": "mean"}}
    study = spec(hypotheses={"some": some, **STUDY["hypotheses"]})
    groups = caveat_groups(study, findings_of(study, records, tuned_rows(EQUAL)))
    assert groups == {"segment less bandit": ["ends far apart: KL 4.0 and 1.0"]}
