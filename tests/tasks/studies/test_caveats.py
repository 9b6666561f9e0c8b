"""Caveats beside effects: settings that nobody tuned, ends far apart, opposite slopes, values at a KL; said once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.typed import typed
from tasks.commands.study import print_study
from tasks.params.studies import StudySpec
from tasks.report.atlas_page import write_atlas
from tasks.studies.caveat_groups import caveat_count, caveat_groups
from tasks.studies.caveats import rows_at_kl
from tasks.studies.end_of_training import other_ends
from tasks.studies.equal_kl import at_kl
from tasks.studies.fragile_effects import fragile_effects, not_above_sft
from tasks.studies.opposite_signs import opposite_slopes
from tasks.studies.row_settings import UNREADABLE, other_settings
from tasks.studies.verdicts import StudyState, load_study
from tests.tasks.studies.synthetic_study import STUDY, commit_study, edit, git, write_worlds

ROOT = Path(__file__).resolve().parents[3]
SPEC: StudySpec = typed(StudySpec, STUDY, "studies/credit.yaml")
Record = dict[str, Any]


def rates(index: int, cell: str, row: str) -> float:
    return 60.0 + index + {"bandit": 0.0, "segment": 4.0 + index % 2, "token": 2.0}[row]


def loaded(root: Path, change: Callable[[Record], Any] | None = None, **changes: Any) -> StudyState:
    """The study with every world, each changed if asked for."""
    files = write_worlds(root, commit_study(root, {**STUDY, **changes}), rates)
    for file in files if change is not None else ():
        assert change is not None
        edit(file, change)
    return load_study(root, root / "studies" / "credit.yaml")


def texts(state: StudyState, name: str) -> list[str]:
    return [caveat.text for finding in state.findings if finding.name == name for caveat in finding.caveats]


def record(metrics: Callable[[str, str], dict[str, float]]) -> Record:
    """A world of the study with metrics by cell and row."""
    cells = {}
    for cell, levels in SPEC.cells.items():
        rows = {row: {"seconds": 1.0, "metrics": metrics(cell, row)} for row in SPEC.rows_of(levels)}
        cells[cell] = {"rows": rows, "above": {}}
    return {"world": 1, "machine": {"threads": 1}, "cells": cells}


# ---- effects that one cell or the last step carries


def worlds_of(leads: dict[str, list[float]], best: list[float]) -> list[Record]:
    """Worlds in which segment leads at the end of a cell by given points, and at its best evaluation by others."""
    made = []
    for index, top in enumerate(best):

        def metrics(cell: str, row: str, index: int = index) -> dict[str, float]:
            return {"win_rate_vs_sft": 50.0 + (leads[cell][index] if row == "segment" else 0.0)}

        one = record(metrics)
        for cell in one["cells"].values():
            for row, run in cell["rows"].items():
                peak = 60.0 + (top if row == "segment" else 0.0)
                run["curve"] = {"points": [{"step": 1.0, "win_rate_vs_sft": peak}, {"step": 2.0, "kl": 1.0}]}
        made.append({**one, "world": index})
    return made


EVEN_LEADS = {cell: [4.0, 5.0, 6.0, 5.0] for cell in SPEC.cells}


def test_an_effect_in_every_cell_and_at_best_evaluations_is_not_fragile() -> None:
    assert fragile_effects(SPEC, SPEC.hypotheses["beats"], worlds_of(EVEN_LEADS, [3.0, 4.0, 5.0, 4.0])) == []


def test_an_effect_names_cells_and_best_evaluations_in_which_it_is_not_shown() -> None:
    leads = {**EVEN_LEADS, "short-sum": [-4.0, 5.0, -3.0, 4.0]}
    found = fragile_effects(SPEC, SPEC.hypotheses["beats"], worlds_of(leads, [-1.0, 1.0, 0.5, -1.0]))
    assert found[0].startswith("not shown in short-sum (+0.5, −6.9 to +7.9) alone")
    assert found[1].startswith("not shown at the best evaluations while training (−0.1, ")


def test_an_effect_that_is_not_shown_at_all_and_a_slope_have_no_such_words() -> None:
    leads = {cell: [-4.0, 5.0, -3.0, 4.0] for cell in SPEC.cells}
    assert fragile_effects(SPEC, SPEC.hypotheses["beats"], worlds_of(leads, [1.0, -1.0, 1.0, -1.0])) == []
    assert fragile_effects(SPEC, SPEC.hypotheses["grows"], worlds_of(EVEN_LEADS, [1.0, -1.0, 1.0, -1.0])) == []


@pytest.mark.parametrize(("before", "said"), [(-1.0, True), (1.0, False)])
def test_an_effect_that_is_not_shown_says_whether_it_had_the_other_sign_before(before: float, said: bool) -> None:
    """Of the lead at the end, +2.0 ± 1.2, the evaluation before it had another sign, or not."""
    worlds = worlds_of({cell: [0.5, 5.0, 0.5, 2.0] for cell in SPEC.cells}, [before] * 4)
    for one in worlds:
        for cell in one["cells"].values():
            for run in cell["rows"].values():
                run["curve"]["points"][1]["win_rate_vs_sft"] = run["metrics"]["win_rate_vs_sft"]
    found = fragile_effects(SPEC, SPEC.hypotheses["beats"], worlds)
    assert [text.startswith("of the other sign at the evaluation before the last (−1.0") for text in found] == [
        True
    ] * said


# ---- settings that were not tuned


def commit_pages(root: Path) -> None:
    """Commits the project's pages of rows and settings."""
    shutil.copytree(ROOT / "params", root / "params")
    shutil.copy(ROOT / "params.yaml", root)
    git(root, "init", "-q")
    git(root, "add", "params", "params.yaml")
    git(root, "commit", "-qm", "Pages")


def test_a_setting_in_which_rows_differ_and_that_was_not_tuned_is_named_with_both_values(tmp_path: Path) -> None:
    """The bandit's value clip is 0.2, that of the segment row 0.25, as their pages have it."""
    commit_pages(tmp_path)
    state = loaded(tmp_path)
    said = "'segment' and 'bandit' differ in untuned settings: value_clip 0.25 and 0.2"
    assert said in texts(state, "beats")
    assert not [text for text in texts(state, "token") if "untuned settings" in text], "both have 0.25"


def test_settings_that_cannot_be_read_are_said_to_be_unknown(tmp_path: Path) -> None:
    assert UNREADABLE in texts(loaded(tmp_path), "beats"), "no commit of the study has params"


def test_the_settings_are_those_of_the_commit_of_the_worlds(tmp_path: Path) -> None:
    commit_pages(tmp_path)
    loaded(tmp_path)
    page = tmp_path / "params" / "segment" / "rows.yaml"
    page.write_text(page.read_text(encoding="utf-8").replace("value_clip: 0.2}", "value_clip: 0.3}"), encoding="utf-8")
    state = load_study(tmp_path, tmp_path / "studies" / "credit.yaml")
    assert any("value_clip 0.25 and 0.2" in text for text in texts(state, "beats"))


def settings(**segment: Any) -> dict[str, Any]:
    """Settings of both rows in every cell, by what the segment row has otherwise."""
    bandit = {"kind": "ppo", "actor_lr": 1e-3, "clip": 0.2, "microbatch": 32}
    return {cell: {"bandit": bandit, "segment": {**bandit, **segment}} for cell in SPEC.cells}


def tuned(fixed: tuple[str, ...] = ()) -> tuple[StudySpec, dict[str, Any]]:
    """The study and its tuning over the actor's rate, some of whose settings the segment row keeps."""
    rows = {**STUDY["rows"], "segment": {**STUDY["rows"]["segment"], "optimiser": {"actor_lr": 0.1}, "fixed": [*fixed]}}
    made: dict[str, Any] = {row: {"space": {"actor_lr": {}}} for row in ("bandit", "segment")}
    return typed(StudySpec, {**STUDY, "rows": rows}, "studies/credit.yaml"), {"rows": made}


@pytest.mark.parametrize(
    ("other", "fixed", "said"),
    [
        ({"actor_lr": 2e-3}, (), None),
        ({"actor_lr": 2e-3}, ("actor_lr",), "actor_lr 0.002 and 0.001"),
        ({"clip": 0.3}, (), "clip 0.3 and 0.2"),
        ({"microbatch": 8}, (), None),
        ({"kind": "grpo", "clip": 0.3}, (), None),
    ],
    ids=["tuned", "fixed", "not in the space", "of memory", "another optimiser"],
)
def test_settings_that_tuning_chose_for_both_rows_are_not_named(
    other: dict[str, Any], fixed: tuple[str, ...], said: str | None
) -> None:
    spec, tuning = tuned(fixed)
    found = other_settings(spec, spec.hypotheses["beats"], tuning, settings(**other))
    expected = [f"'segment' and 'bandit' differ in untuned settings: {said}"] if said else []
    assert found == expected


def test_a_difference_in_some_cells_names_them() -> None:
    own = settings(clip=0.3)
    own["long-sum"] = settings()["long-sum"]
    (found,) = other_settings(SPEC, SPEC.hypotheses["beats"], None, own)
    assert found.endswith("clip 0.3 and 0.2 (in short-sum, short-mean, long-mean)")


# ---- rows no better than their SFT model


def test_two_rows_of_which_none_is_shown_to_end_above_its_sft_model_are_named() -> None:
    leads = {cell: [4.0, -5.0, 6.0, -3.0] for cell in SPEC.cells}
    worlds = worlds_of(leads, [1.0] * 4)
    for index, world in enumerate(worlds):
        for cell in world["cells"].values():
            cell["rows"]["bandit"]["metrics"]["win_rate_vs_sft"] = 49.0 - index % 2
    (said,) = not_above_sft(SPEC, SPEC.hypotheses["beats"], worlds)
    in_brackets = "'segment' +0.5, −8.0 to +9.0; 'bandit' −1.5, −2.4 to −0.6"
    assert said == f"neither row is shown to end above its SFT model ({in_brackets})"
    assert not_above_sft(SPEC, SPEC.hypotheses["grows"], worlds) == [], "a slope"
    assert not_above_sft(SPEC, SPEC.hypotheses["beats"], worlds[:1]) == [], "one world has no interval"
    better = worlds_of(EVEN_LEADS, [1.0] * 4)
    assert not_above_sft(SPEC, SPEC.hypotheses["beats"], better) == [], "segment is above"
    for cell in worlds[2]["cells"].values():
        del cell["rows"]["segment"]["metrics"]["win_rate_vs_sft"]
    assert not_above_sft(SPEC, SPEC.hypotheses["beats"], worlds) == [], "a run without a value"


# ---- slopes of opposite sign


def slopes(of_sum: float, of_mean: float) -> list[str]:
    """Returns the caveats of the slope over length where segments lead by that many points more in long responses."""

    def metrics(cell: str, row: str) -> dict[str, float]:
        lead = {"long-sum": of_sum, "long-mean": of_mean}.get(cell, 0.0)
        return {"win_rate_vs_sft": 55.0 + (lead if row == "segment" else 0.0)}

    return opposite_slopes(SPEC, SPEC.hypotheses["grows"], [record(metrics)])


def test_a_slope_that_is_two_opposite_slopes_says_both() -> None:
    assert slopes(-4.8, 4.7) == ["slopes over length differ in sign: −4.8 where truth is sum, +4.7 where truth is mean"]


@pytest.mark.parametrize(("of_sum", "of_mean"), [(4.8, 4.7), (-2.9, 4.7)], ids=["alike", "within the margin"])
def test_slopes_of_one_sign_or_within_the_margin_say_nothing(of_sum: float, of_mean: float) -> None:
    assert slopes(of_sum, of_mean) == []


def test_a_contrast_by_weights_is_taken_at_each_level() -> None:
    weights = {"short": -2.0, "long": 2.0}
    hypothesis = {**STUDY["hypotheses"]["grows"], "weights": weights}
    spec: StudySpec = typed(StudySpec, {**STUDY, "hypotheses": {"grows": hypothesis}, "claim": None}, "studies/a.yaml")

    def metrics(cell: str, row: str) -> dict[str, float]:
        lead = {"long-sum": 2.0, "long-mean": -2.0}.get(cell, 0.0)
        return {"win_rate_vs_sft": 55.0 + (lead if row == "segment" else 0.0)}

    (found,) = opposite_slopes(spec, spec.hypotheses["grows"], [record(metrics)])
    assert found == "contrasts over length differ in sign: +4.0 where truth is sum, −4.0 where truth is mean"


# ---- ends of training


@pytest.mark.parametrize(
    ("segment", "said"),
    [
        ({"kl": 1.9, "response_length": 40.0}, ["'segment' ends at KL 1.9, 'bandit' at 4.0"]),
        ({"kl": 4.0, "response_length": 60.0}, ["responses of 'segment' have 60 tokens, of 'bandit' 40"]),
        ({"kl": 2.1, "response_length": 59.0}, []),
        ({"response_length": 40.0}, []),
    ],
)
def test_rows_that_end_far_apart_are_named_with_kl_and_length(segment: dict[str, float], said: list[str]) -> None:
    ends = record(lambda cell, row: segment if row == "segment" else {"kl": 4.0, "response_length": 40.0})
    assert [*other_ends(SPEC, SPEC.hypotheses["beats"], [ends]).values()] == said


def test_rows_that_end_far_apart_in_some_cells_alone_are_named_with_these() -> None:
    def metrics(cell: str, row: str) -> dict[str, float]:
        own = {"short-sum": 1.0, "short-mean": 9.0}.get(cell, 4.0)
        return {"kl": own if row == "segment" else 4.0, "response_length": 40.0}

    found = other_ends(SPEC, SPEC.hypotheses["beats"], [record(metrics)])
    in_sum = "'segment' ends at KL 1.0, 'bandit' at 4.0 in short-sum"
    assert found == {"KL": f"{in_sum}; 'segment' ends at KL 9.0, 'bandit' at 4.0 in short-mean"}


def test_rows_that_are_read_at_one_kl_are_not_compared_at_their_ends() -> None:
    own = {**STUDY["hypotheses"], "beats": {**STUDY["hypotheses"]["beats"], "kl": 4}}
    spec: StudySpec = typed(StudySpec, {**STUDY, "hypotheses": own, "kl_targets": [4]}, "studies/credit.yaml")
    ends = record(lambda cell, row: {"kl": 9.0 if row == "segment" else 4.0})
    assert other_ends(spec, spec.hypotheses["beats"], [ends]) == {}
    assert other_ends(SPEC, SPEC.hypotheses["beats"], [ends])


# ---- values at a KL


def test_a_value_before_the_first_evaluation_is_marked_as_assumed() -> None:
    points = [{"step": 8, "kl": 1.0, "win_rate_vs_sft": 60.0}, {"step": 16, "kl": 9.0, "win_rate_vs_sft": 70.0}]
    curve = {"temperature": 1.0, "top_p": 1.0, "points": points}
    assert [point.assumed for point in at_kl(curve, [0.25, 1.0, 4.0])] == [True, False, False]


def test_the_terminal_and_the_page_say_which_values_are_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows are first evaluated at 1 nat."""
    hypotheses = {**STUDY["hypotheses"], "beats": {**STUDY["hypotheses"]["beats"], "kl": 0.25}}
    state = loaded(tmp_path, kl_targets=[0.25, 4], hypotheses=hypotheses)
    at = {(one.row, one.target): one.text for one in rows_at_kl(state.spec, state.records.values())}
    assert at["bandit", 0.25].endswith("*")
    assert not at["bandit", 4].endswith("*")
    said = "*: read before the row's first evaluation in some world, from the win rate of 50 % assumed at KL 0"
    print_study(tmp_path, str(tmp_path / "studies" / "credit.yaml"))
    assert said in " ".join(capsys.readouterr().out.split())
    page = write_atlas(tmp_path, tmp_path / "report").read_text(encoding="utf-8")
    assert at["bandit", 0.25] in page
    assert said.replace("'", "&#39;") in page
    counted = (
        "32 of 32 runs are read at 0.25 nats before their first evaluation, from the win rate of 50 % assumed at KL 0"
    )
    assert counted in texts(state, "beats")


# ---- caveats by comparison


def test_caveats_are_said_once_for_the_comparisons_that_have_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def far(world: Record) -> None:
        for cell, stages in world["cells"].items():
            stages["rows"]["segment"]["metrics"]["response_length"] = 90.0 if cell.startswith("long") else 40.0
            for row in {*stages["rows"]} - {"segment"}:
                stages["rows"][row]["metrics"]["response_length"] = 50.0
            if cell.startswith("long"):
                stages["rows"]["segment"]["training"]["tokens"] = 160_000

    long = {"says": "In long responses", "row": "segment", "at": {"length": "long"}}
    state = loaded(tmp_path, far, hypotheses={**STUDY["hypotheses"], "long": long})
    found = {group.of: group.texts for group in caveat_groups(state.spec, state.findings)}
    assert found == {
        "all comparisons": (UNREADABLE,),
        "segment less bandit": (
            "neither 'segment' nor 'bandit' was tuned",
            "responses of 'segment' have 90 tokens, of 'bandit' 50 in long-sum, long-mean",
            "'segment' learned from 1.8 times as many tokens as 'bandit' (where length is long)",
        ),
        "segment less token": (
            "neither 'segment' nor 'token' was tuned",
            "responses of 'segment' have 90 tokens, of 'token' 50 in long-mean",
        ),
    }
    assert caveat_count(state.spec, state.findings) == 6
    print_study(tmp_path, str(tmp_path / "studies" / "credit.yaml"))
    shown = capsys.readouterr().out
    assert "\nCaveats of segment less bandit\n    neither 'segment' nor 'bandit' was tuned\n" in shown
    assert shown.count("neither 'segment' nor 'bandit' was tuned") == 1


def test_a_caveat_of_more_cells_takes_the_place_of_one_of_fewer(tmp_path: Path) -> None:
    def low(world: Record) -> None:
        for cell in ("long-sum", "short-mean"):
            run = world["cells"][cell]["rows"]["segment"]
            run["metrics"]["win_rate_vs_sft"] = run["curve"]["points"][-1]["win_rate_vs_sft"] = 40.0

    long = {"says": "In long responses", "row": "segment", "at": {"length": "long"}}
    state = loaded(tmp_path, low, hypotheses={**STUDY["hypotheses"], "long": long})
    assert any("below its SFT model in 4 of 8 runs" in text for text in texts(state, "long"))
    groups = caveat_groups(state.spec, state.findings)
    said = [text for group in groups for text in group.texts if group.of == "segment"]
    assert [text.partition(" runs")[0] for text in said] == ["ended below its SFT model in 8 of 16"]


def test_what_weakens_all_comparisons_comes_first(tmp_path: Path) -> None:
    def little(world: Record) -> None:
        for stages in world["cells"].values():
            stages["rows"]["segment"]["training"]["updates"] = 30

    state = loaded(tmp_path, little)
    groups = [(group.of, group.texts) for group in caveat_groups(state.spec, state.findings)]
    assert groups[0] == ("all comparisons", (UNREADABLE,))
    assert groups[-1] == ("segment", ("has 30 updates; at least 60 are asked for",)), "what is of single rows is last"


def test_what_several_rows_have_alone_is_said_once(tmp_path: Path) -> None:
    def little(world: Record) -> None:
        for stages in world["cells"].values():
            for row in {"token", "bandit"} & {*stages["rows"]}:
                stages["rows"][row]["training"]["updates"] = 30

    state = loaded(tmp_path, little)
    found = {group.of: group.texts for group in caveat_groups(state.spec, state.findings)}
    assert found["each of bandit, token"] == ("has 30 updates; at least 60 are asked for",)
    assert "'token' has 30 updates; at least 60 are asked for" in texts(state, "token")
