"""The verdicts of the committed studies, which no change of the code may move."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.params.studies import read_study
from tasks.studies.best_trials import read_tuning, tuned_rows
from tasks.studies.records import read_record, record_file
from tasks.studies.registration import Registration, digest_of
from tasks.studies.twins import twin_tests
from tasks.studies.verdicts import StudyState, claim_word, findings_of, studied_claim

ROOT = Path(__file__).resolve().parents[3]
#: By study: each hypothesis with its word, effect, interval and p; its claim's word over this study; the best trial of
#: each tuned row; of twins the mean square and the uniform p of each metric.
PINNED: dict[str, Any] = json.loads(Path(__file__).with_name("committed_verdicts.json").read_text(encoding="utf-8"))


def _state(name: str) -> StudyState:
    file = ROOT / "studies" / f"{name}.yaml"
    spec = read_study(file)
    own = Registration(name, digest_of(file), "", spec.twins)
    seeds = map(own.world_seed, range(spec.worlds))
    records = {seed: read_record(ROOT, record_file(name, seed)) for seed in seeds}
    tuning = read_tuning(ROOT, name)
    tuned = {} if tuning is None else tuned_rows(tuning)
    return StudyState(own, spec, records, findings_of(spec, records, tuned), tuned)


def _measured(name: str) -> dict[str, Any]:
    state = _state(name)
    found: dict[str, Any] = {"hypotheses": {}}
    for finding in state.findings:
        assert finding.effect is not None
        interval = finding.effect.interval()
        assert interval is not None
        numbers = [finding.effect.estimate, interval.lower, interval.upper, finding.p]
        found["hypotheses"][finding.name] = [finding.word, *numbers]
    found["claim"] = claim_word([studied_claim(state)])
    if state.tuned:
        found["best trials"] = {row: tuned.best for row, tuned in state.tuned.items()}
    tests = {test.metric: test.calibration for test in twin_tests(state)}
    found |= (
        {"twins": {m: [one.mean_square, one.uniform_p] for m, one in tests.items() if not isinstance(one, str)}}
        if tests
        else {}
    )
    return found


def _approximately(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _approximately(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_approximately(one) for one in value]
    return pytest.approx(value, rel=1e-9, abs=1e-9) if isinstance(value, float) else value


def test_every_committed_study_has_its_verdicts() -> None:
    names = {file.stem for file in (ROOT / "studies").glob("*.yaml")}
    assert {name: _measured(name) for name in sorted(names)} == _approximately(PINNED)
