"""A record has the reason in the place of a judged number that too few valid verdicts stand behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError
from tasks.graph.items import Item
from tasks.running.artifacts import write_json, write_jsonl
from tasks.running.result_digests import digests_of
from tasks.studies.provenance import ENVIRONMENT
from tasks.studies.records import _measured, value_of


def measured(root: Path, valid: int) -> dict[str, Any]:
    """Returns a record of a run with ten verdicts, of which `valid` are valid."""
    result, record = (root / "results" / "bandit" / name for name in ("result", "record"))
    result.mkdir(parents=True)
    record.mkdir()
    write_json(result / "metrics.json", {"alpaca_wr": 50.0, "kl": 1.0})
    verdicts = [{"benchmark": "alpaca", "id": str(i), "valid": i < valid, "preference": 1.5} for i in range(10)]
    write_jsonl(result / "judgements.jsonl", verdicts)
    write_json(record / "record.json", {"seconds": 1.0, **digests_of(result), **dict.fromkeys(ENVIRONMENT)})
    run = _measured(root, Item("policy", "bandit", {}, "results/bandit", "segment", 0), [])
    return {"study": "s", "world": 7, "kind": "verdict", "cells": {"plain": {"rows": {"bandit": run}}}}


def test_a_judged_number_of_too_few_verdicts_is_refused_by_world_and_row(tmp_path: Path) -> None:
    record = measured(tmp_path, valid=8)
    assert value_of(record, "plain", "bandit", "kl") == 1.0
    said = "world 7: row 'bandit' of cell 'plain' is blank: 8 of 10 judged pairs have a valid verdict, below 90 %"
    with pytest.raises(DataError, match=said):
        value_of(record, "plain", "bandit", "alpaca_wr")


def test_a_judged_number_of_enough_verdicts_is_kept(tmp_path: Path) -> None:
    assert value_of(measured(tmp_path, valid=9), "plain", "bandit", "alpaca_wr") == 50.0
