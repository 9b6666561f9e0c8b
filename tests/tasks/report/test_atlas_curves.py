"""Pictures of gold and proxy rewards over the square root of KL."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.typed import typed
from tasks.params.studies import StudySpec
from tasks.report.atlas_curves import curves_svg, mean_path, row_curves
from tasks.report.atlas_page import write_atlas
from tests.tasks.report.fabricated_atlas import fabricated_clone
from tests.tasks.studies.synthetic_study import edit

Records = list[dict[str, Any]]


@pytest.fixture
def spec() -> StudySpec:
    rows = {name: {"like": f"par/{name}"} for name in ("vanilla", "par")}
    hypothesis = {"says": "PAR is better", "row": "par", "kl": 4}
    plain = {"title": "a", "asks": "b", "rows": rows, "main": "vanilla", "hypotheses": {"better": hypothesis}}
    return typed(StudySpec, {**plain, "metric": "win_rate_vs_sft", "worlds": 2, "kl_targets": [4]}, "here")


def run(scale: float) -> dict[str, Any]:
    points = [
        {"step": n, "kl": float(n * n), "win_rate_vs_sft": 50 + scale * n, "proxy_reward": n - 1.0} for n in (1, 2)
    ]
    return {
        "metrics": {"win_rate_vs_sft": 50 + 2 * scale, "proxy_reward_sft": -1.0},
        "curve": {"temperature": 1.0, "top_p": 1.0, "points": points},
    }


@pytest.fixture
def records() -> Records:
    def cells(scale: float) -> dict[str, Any]:
        return {"as-it-is": {"rows": {"vanilla": run(-scale), "par": run(scale)}, "above": {}}}

    return [{"world": 7, "cells": cells(2.0)}, {"world": 8, "cells": cells(4.0)}]


def test_curves_begin_at_the_sft_model(spec: StudySpec, records: Records) -> None:
    vanilla, par = row_curves(spec, records)
    assert (vanilla.row, par.row) == ("vanilla", "par")
    assert par.gold == ([(0.0, 50.0), (1.0, 52.0), (4.0, 54.0)], [(0.0, 50.0), (1.0, 54.0), (4.0, 58.0)])
    assert par.proxy[0] == [(0.0, -1.0), (1.0, 0.0), (4.0, 1.0)]
    assert mean_path(par.gold) == [(0.0, 50.0), (1.0, 53.0), (2.0, 56.0)]


def test_the_mean_is_of_root_kl() -> None:
    assert mean_path([[(1.0, 0.0)], [(9.0, 1.0)]]) == [((1 + math.sqrt(9)) / 2, 0.5)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"diverged": "loss is nan", "curve": {}}, "world 8: diverged: loss is nan"),
        ({"stopped": "no pair", "curve": {}, "metrics": {}}, "world 8: stopped: no pair"),
        ({"metrics": {"proxy_reward_sft": "nan"}}, "world 8: proxy_reward_sft is nan"),
        ({"curve": {}}, "world 8: no evaluation while training has win_rate_vs_sft"),
        ({"curve": {**run(1)["curve"], "temperature": 0.7}}, "KL is of answers at temperature 1"),
    ],
)
def test_a_row_without_a_curve_in_one_world_is_not_drawn_over_the_others(
    spec: StudySpec, records: Records, change: dict[str, Any], said: str
) -> None:
    records[1]["cells"]["as-it-is"]["rows"]["par"] |= change
    vanilla, par = row_curves(spec, records)
    assert vanilla.gold
    assert (par.gold, par.proxy) == ((), ())
    assert said in str(par.problem)


def test_the_picture_names_rows_and_axes(spec: StudySpec, records: Records) -> None:
    drawn = curves_svg("a", "Over-optimisation & KL", row_curves(spec, records), spec.kl_targets)
    for text in ("vanilla", "par", "proxy reward", "gold: true win rate over SFT", "√KL"):
        assert text in drawn
    assert 'aria-label="Over-optimisation &amp; KL"' in drawn


def test_the_page_of_a_study_with_kl_targets_has_the_picture(tmp_path: Path) -> None:
    page = write_atlas(fabricated_clone(tmp_path / "clone", ("gate", "shaping-again")), tmp_path / "report")
    _, gate, shaping = page.read_text(encoding="utf-8").split('<section class="study"')
    assert 'class="ways"' not in gate
    assert shaping.count("<svg") == 2
    assert "keyword: proxy reward" in shaping


def test_a_row_that_is_not_drawn_is_named(tmp_path: Path) -> None:
    clone = fabricated_clone(tmp_path / "clone", ("shaping-again",))
    file = min((clone / "reference" / "studies" / "shaping-again").glob("*.json"))
    edit(file, lambda record: record["cells"]["length"]["rows"]["clip"]["curve"].update(points=[]))
    shown = write_atlas(clone, tmp_path / "report").read_text(encoding="utf-8")
    assert "Not drawn: clip in length, world " in shown


def test_an_unfinished_study_shows_no_curve(tmp_path: Path) -> None:
    clone = fabricated_clone(tmp_path / "clone", ("shaping-again",), unfinished=("shaping-again",))
    assert "<svg" not in write_atlas(clone, tmp_path / "report").read_text(encoding="utf-8")
