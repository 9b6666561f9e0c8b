"""Re-evaluation: when it runs, what it judges, and what it tells apart."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.evaluation.judges.cache import AnswerCache
from rlhf_core.evaluation.judges.protocol import JudgeRequest
from tasks import loading
from tasks.artifacts import digest
from tasks.past_results import bring_back
from tasks.reevaluation import (
    RECORDS,
    CachedJudge,
    ReevaluationSettings,
    Subject,
    alerts,
    load_settings,
    reasons,
    reevaluate,
)
from tests.small_repository import command
from tests.tasks.tiny_pipeline import Pipeline

SETTINGS = ReevaluationSettings(({"name": "policy"},), {"cron": "0 3 * * *"}, canary=4, drift_days=7)
DAY = 86400.0
LAST = {"digest": "m", "benchmarks": {"alpaca": {"digest": "b"}}, "judge": {"digest": "j"}, "time": 0.0}
SAME = {"model": "m", "benchmarks": {"alpaca": "b"}, "judge": "j", "now": DAY, "drift_days": 7}


def model(pipeline: Pipeline, run: str) -> dict[str, str]:
    result = pipeline.result(run)
    return {"name": "policy", "alias": "champion", "version": "1", "digest": digest(result), "result": str(result)}


class Counting:
    """A judge that counts, and prefers what `first` says."""

    def __init__(self, preference: float = 1.2) -> None:
        self.name, self.preference, self.asked = "counting", preference, 0

    def answer(self, requests: Sequence[JudgeRequest]) -> list[str]:
        self.asked += len(requests)
        return [f"preference: {self.preference}" for _ in requests]


def test_it_runs_when_something_changed_or_a_check_is_due_and_says_why() -> None:
    def why(**other: Any) -> list[str]:
        return reasons(LAST, **{**SAME, **other})

    assert reasons(None, **SAME) == ["first evaluation"]  # type: ignore[arg-type]
    assert why() == []
    assert why(model="n") == ["the model changed"]
    assert why(benchmarks={"alpaca": "c"}) == ["benchmark alpaca changed"]
    assert why(judge="k", model="n") == ["the model changed", "the judge changed"]
    assert why(now=7 * DAY) == ["a drift check is due"]


def test_no_text_is_judged_twice_and_an_answer_that_did_not_come_is_asked_again(tmp_path: Path) -> None:
    judge = Counting()
    requests = [JudgeRequest(str(i), "p", ("a", text), "alpaca_eval") for i, text in enumerate(("x", "y", "x"))]
    for _ in range(2):
        cached = CachedJudge(judge, AnswerCache(tmp_path / "cache.jsonl"), "identity")
        assert cached.answer(requests) == ["preference: 1.2"] * 3
    assert judge.asked == 2
    assert cached.cached == 3
    CachedJudge(judge, AnswerCache(tmp_path / "cache.jsonl"), "another").answer(requests[:1])
    assert judge.asked == 3, "another judge's verdicts are its own"
    judge.answer = lambda requests: [""] * len(requests)  # type: ignore[method-assign]
    fresh = JudgeRequest("9", "p", ("a", "z"), "alpaca_eval")
    CachedJudge(judge, AnswerCache(tmp_path / "cache.jsonl"), "identity").answer([fresh])
    assert len(AnswerCache(tmp_path / "cache.jsonl")) == 3


def test_records_follow_a_model_through_changes(pipeline: Pipeline, tmp_path: Path) -> None:
    first = reevaluate(tmp_path, SETTINGS, model(pipeline, "ppo"), now=0.0)
    assert first["reasons"] == ["first evaluation"]
    assert set(first["benchmarks"]) == {"alpaca", "arena", "ood", "mtbench"}
    assert sum(part["asked"] for part in first["benchmarks"].values()) > 0
    assert first["changes"] == {}
    assert first["canary"]["verdict"] == "first"

    assert reevaluate(tmp_path, SETTINGS, model(pipeline, "ppo"), now=DAY) == {"reasons": []}

    check = reevaluate(tmp_path, SETTINGS, model(pipeline, "ppo"), now=8 * DAY)
    assert check["reasons"] == ["a drift check is due"]
    assert check["benchmarks"] == first["benchmarks"]
    assert check["canary"]["verdict"] == "no drift"
    assert check["canary"]["agreement"] == 1.0

    other = reevaluate(tmp_path, SETTINGS, model(pipeline, "dpo"), now=9 * DAY)
    assert other["reasons"] == ["the model changed"]
    assert {change["since"] for change in other["changes"].values()} == {2}
    assert other["changes"]["alpaca"]["n"] == 4

    back = reevaluate(tmp_path, SETTINGS, model(pipeline, "ppo"), now=10 * DAY)
    assert sum(part["asked"] for part in back["benchmarks"].values()) == 0, "its texts were judged before"
    assert back["benchmarks"]["alpaca"]["scores"] == first["benchmarks"]["alpaca"]["scores"]
    files = sorted(path.name for path in (tmp_path / RECORDS / "policy@champion").iterdir())
    assert files == ["000001.json", "000002.json", "000003.json", "000004.json", "canary.json"]


def test_a_judge_that_drifts_is_told_apart_from_a_model_that_got_worse(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ReevaluationSettings((), {}, benchmarks=("alpaca",), canary=4)
    drifting = Counting()
    monkeypatch.setattr(loading, "load_judge", lambda spec, world: drifting)
    reevaluate(tmp_path, settings, model(pipeline, "ppo"), now=0.0)
    asked = drifting.asked
    drifting.preference = 1.9
    found = reevaluate(tmp_path, settings, model(pipeline, "ppo"), now=30 * DAY)
    assert drifting.asked > asked, "the canary is judged past the cache"
    assert found["canary"]["verdict"] == "drift"
    assert [alert["kind"] for alert in found["alerts"]] == ["judge drift"]


def test_a_regression_is_an_alert_with_its_interval() -> None:
    change = {"difference": -0.2, "lower": -0.3, "upper": -0.1, "n": 50, "verdict": "regression", "since": 3}
    fine = {**change, "verdict": "no difference"}
    record = {"name": "m", "alias": "champion", "canary": {"verdict": "no drift"}, "judge": {"name": "j"}}
    found = alerts({**record, "changes": {"alpaca": change, "arena": fine}})
    assert len(found) == 1
    assert found[0]["text"] == "m@champion lost 0.200 on alpaca (-0.300 to -0.100, 50 items) since record 3"


def test_another_result_than_the_registry_names_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    wrong = model(pipeline, "ppo") | {"digest": "0" * 64}
    with pytest.raises(DataError, match=r"not the result that policy@champion names.*rewardsmith promote"):
        reevaluate(tmp_path, SETTINGS, wrong, now=0.0)


@pytest.fixture
def replaced(tmp_path: Path) -> tuple[Path, dict[str, str], str]:
    """A repository whose policy another one took the place of; the first one's digests by path, and its commit."""
    root = tmp_path / "tree"
    files = {"p/policy/x/0/result/w": "weights", "data/d/result/rows": "rows", "sft/m/0/result/w": "sft"}
    files["params/evaluation/d.yaml"] = "judge: 1"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    inputs = {"data/d/result": "", "sft/m/0/result": "", "params/evaluation/d.yaml": ""}
    inputs = {path: digest(root / path) for path in inputs}
    (root / "p/policy/x/0/record").mkdir()
    (root / "p/policy/x/0/record/record.json").write_text(json.dumps({"inputs": inputs}))
    command("git", "init", "-q", root=root)
    for name in ("user.email", "user.name"):
        command("git", "config", name, "test@example.org", root=root)
    command(sys.executable, "-m", "dvc", "init", "-q", root=root)
    command("git", "commit", "-qm", "made at", root=root)
    commit = command("git", "rev-parse", "HEAD", root=root).stdout.strip()
    own = {"p/policy/x/0/result": digest(root / "p/policy/x/0/result"), **inputs}
    outs = ("p/policy/x/0/result", "p/policy/x/0/record", "data/d/result", "sft/m/0/result")
    command(sys.executable, "-m", "dvc", "add", "-q", *outs, root=root)
    command("git", "add", "-A", root=root)
    command("git", "commit", "-qm", "named", root=root)
    (root / "p/policy/x/0/result/w").unlink()
    (root / "p/policy/x/0/result/w").write_text("another")
    command(sys.executable, "-m", "dvc", "add", "-q", outs[0], root=root)
    command("git", "commit", "-qam", "another", root=root)
    return root, own, commit


@pytest.mark.platform
def test_a_result_that_the_tree_lost_is_brought_back_with_what_it_is_evaluated_with(
    replaced: tuple[Path, dict[str, str], str], tmp_path: Path
) -> None:
    root, own, commit = replaced
    result, folder = "p/policy/x/0/result", tmp_path / "found"
    bring_back(root, result, own[result], commit, folder)
    assert {path: digest(folder / path) for path in own} == own
    assert Subject.of(folder / result).data == Path("data/d/result")
    with pytest.raises(DataError, match=r"p/policy/x/0/result.*cannot be brought back: commit .* has another one"):
        bring_back(root, result, "0" * 64, commit, tmp_path / "none")
    shutil.rmtree(root / ".dvc" / "cache")
    with pytest.raises(DataError, match=r"cannot be brought back.*dvc pull"):
        bring_back(root, result, own[result], commit, tmp_path / "lost")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"benchmarks": ["alpaka"]}, "unknown benchmark 'alpaka'. Did you mean 'alpaca'"),
        ({"canary": 1}, "canary must be at least 2"),
        ({"levle": 0.9}, "unknown setting 'levle'; did you mean 'level'"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "reevaluation.yaml"
    path.write_text(json.dumps({"models": [{"name": "m"}], "schedule": {"cron": "0 3 * * *"}} | change))
    with pytest.raises(RecipeError, match=message.replace(".", r"\.")):
        load_settings(path)


def test_the_projects_own_settings_are_valid() -> None:
    root = Path(__file__).resolve().parents[2]
    assert load_settings(root / "params" / "reevaluation.yaml").watched("x")
