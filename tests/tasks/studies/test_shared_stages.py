"""Cells are foreseen to share trainings that do not read what differs, and relabelled data have the same texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.params.data import data_spec
from tasks.params.pages import merge, read_settings
from tasks.params.scales import scale_entries
from tasks.params.settings import DEFAULT_SCALE
from tasks.params.studies import read_study
from tasks.prepare import make_sets
from tasks.studies.checks import check_study
from tasks.studies.shared_stages import RELABELLING, SharedStage

PROJECT = Path(__file__).parents[3]


def shared(study: str) -> list[SharedStage]:
    return check_study(PROJECT, study, read_study(PROJECT / "studies" / f"{study}.yaml")).shared


def test_cells_share_the_trainings_that_do_not_read_what_differs() -> None:
    cells = ("quiet-accurate", "quiet-inaccurate", "noisy-accurate", "noisy-inaccurate")
    gate = {(one.stage, one.cells): one.saved for one in shared("gate")}
    aspects = [f"aspect_model/{name}" for name in ("completeness", "factuality", "relevance")]
    assert gate == {
        ("sft/alarm-qa", cells): 3,
        ("reward_model/holistic-qa", cells[:2]): 1,
        ("reward_model/holistic-qa", cells[2:]): 1,
        **{(aspect, cells[start::2]): 1 for aspect in aspects for start in (0, 1)},
    }
    fewer_labels = [one.cells for one in shared("gate-again")]
    assert fewer_labels == [("noisy-accurate", "noisy-inaccurate")] * 2, "of SFT and the reward model"
    assert [one.cells for one in shared("credit")] == [("short-sum", "short-mean"), ("long-sum", "long-mean")]
    assert shared("shaping-again") == [], "its flaws pad compared responses, of which the tokenizer is made"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dialogue", {"annotator": {"temperature": 3.0, "length_bias": 2.0, "keyword_bias": 6.0, "flipped": 0.3}}),
        ("dialogue", {"dials": {"aggregation": "weighted", "emphasis": 9.0}}),
        ("longform", {"annotator": {"temperature": 3.0, "flipped": 0.4}}),
        ("longform", {"aspect_errors": {"relevance": 0.4, "factuality": 0.4, "completeness": 0.4}}),
        ("longform", {"rows": {"labelled_train": 20}}),
    ],
)
def test_settings_that_relabel_change_no_text_that_tokenizer_or_sft_learn_from(
    name: str, change: dict[str, Any], tmp_path: Path
) -> None:
    address = scale_entries(PROJECT, DEFAULT_SCALE, "data")[name]
    settings = read_settings(address.under(PROJECT))
    settings["rows"] = {size: min(count, 40) for size, count in settings["rows"].items()}

    def texts(more: dict[str, Any]) -> tuple[Any, ...]:
        sets, _ = make_sets(data_spec(merge(settings, more), str(address)), tmp_path)
        pairs = [(row["prompt"], *sorted((row["chosen"], row["rejected"]))) for row in sets["preference.train"]]
        learned = [[{**row, "meta": None} for row in sets[key]] for key in ("sft", "sft.validation", "prompts")]
        return learned, sorted(pairs)

    assert {*change} <= {path[0] for path in RELABELLING}
    assert texts(change) == texts({})


def test_saved_hours_are_those_of_the_longest_stage() -> None:
    one = SharedStage("sft/a", ("x", "y", "z"))

    def record(*seconds: float) -> dict[str, Any]:
        cells = {cell: {"above": {"sft/a": {"seconds": each}}} for cell, each in zip("xyz", seconds, strict=False)}
        return {"machine": {"threads": 2}, "cells": cells}

    assert one.saved_hours([]) is None
    assert one.saved_hours([record(100.0, 10.0, 20.0), record(80.0)]) == pytest.approx(2 * 100 * 2 / 3600)
