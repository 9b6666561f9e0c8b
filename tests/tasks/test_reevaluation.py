"""Re-evaluation: when it runs, what it judges, and what it tells apart."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.evaluation.judges.templates import JudgeRequest
from tasks.evaluating import policies as benchmarks
from tasks.params.evaluation import (
    EvaluationConfig,
    ReevaluatedModel,
    ReevaluationSettings,
    Schedule,
    read_reevaluation,
)
from tasks.reevaluation import evaluate as reevaluation
from tasks.reevaluation.evaluate import alerts, inputs_of, reasons, reevaluate
from tasks.reevaluation.history import RECORDS, restore_result
from tasks.running import loading
from tasks.running.artifacts import digest, read_json, read_jsonl, write_json, write_jsonl
from tests.small_repository import begin_repository, command
from tests.tasks.golden_runs import SharedRuns

#: A schedule of settings that no deployment reads.
NIGHTLY = Schedule("0 3 * * *")
SETTINGS = ReevaluationSettings((ReevaluatedModel("policy"),), NIGHTLY, canary=4, drift_days=7)
DAY = 86400.0
LAST = {"digest": "m", "benchmarks": {"alpaca": {"digest": "b"}}, "judge": {"digest": "j"}, "time": 0.0}
SAME = {"model": "m", "benchmarks": {"alpaca": "b"}, "judge": "j", "now": DAY, "drift_days": 7}


def model(golden: SharedRuns, run: str) -> dict[str, str]:
    result = golden.result(run)
    return {"name": "policy", "alias": "champion", "version": "1", "digest": digest(result), "result": str(result)}


def test_it_runs_when_something_changed_or_a_check_is_due_and_says_why() -> None:
    def why(**other: Any) -> list[str]:
        return reasons(LAST, **{**SAME, **other})

    assert reasons(None, **SAME) == ["first evaluation"]  # type: ignore[arg-type]
    assert why() == []
    assert why(model="n") == ["the model changed"]
    assert why(benchmarks={"alpaca": "c"}) == ["benchmark alpaca changed"]
    assert why(judge="k", model="n") == ["the model changed", "the judge changed"]
    assert why(now=7 * DAY) == ["a drift check is due"]


def test_records_follow_a_model_through_changes(golden: SharedRuns, tmp_path: Path) -> None:
    first = reevaluate(tmp_path, SETTINGS, model(golden, "segment"), now=0.0)
    assert first["reasons"] == ["first evaluation"]
    assert set(first["benchmarks"]) == {"alpaca", "arena", "ood", "mtbench"}
    assert first["changes"] == {}
    assert first["canary"]["verdict"] == "first"

    assert reevaluate(tmp_path, SETTINGS, model(golden, "segment"), now=DAY) == {"reasons": []}

    check = reevaluate(tmp_path, SETTINGS, model(golden, "segment"), now=8 * DAY)
    assert check["reasons"] == ["a drift check is due"]
    assert check["benchmarks"] == first["benchmarks"]
    assert check["canary"]["verdict"] == "no drift"
    assert check["canary"]["agreement"] == 1.0

    other = reevaluate(tmp_path, SETTINGS, model(golden, "dpo"), now=9 * DAY)
    assert other["reasons"] == ["the model changed"]
    assert {change["since"] for change in other["changes"].values()} == {2}
    assert other["changes"]["alpaca"]["n"] == 4

    back = reevaluate(tmp_path, SETTINGS, model(golden, "segment"), now=10 * DAY)
    assert back["benchmarks"]["alpaca"]["scores"] == first["benchmarks"]["alpaca"]["scores"]
    files = sorted(path.name for path in (tmp_path / RECORDS / "policy@champion").iterdir())
    assert files == ["000001.json", "000002.json", "000003.json", "000004.json", "canary.json"]


def test_a_regression_is_an_alert_with_its_interval() -> None:
    change = {"difference": -0.2, "lower": -0.3, "upper": -0.1, "n": 50, "verdict": "regression", "since": 3}
    fine = {**change, "verdict": "no difference"}
    record = {"name": "m", "alias": "champion", "canary": {"verdict": "no drift"}, "judge": {"name": "j"}, "lost": {}}
    found = alerts({**record, "changes": {"alpaca": change, "arena": fine}})
    assert len(found) == 1
    assert found[0]["text"] == "m@champion lost 0.200 on alpaca (-0.300 to -0.100, 50 items) since record 3"


def test_another_result_than_the_registry_names_is_refused(golden: SharedRuns, tmp_path: Path) -> None:
    wrong = model(golden, "segment") | {"digest": "0" * 64}
    with pytest.raises(DataError, match=r"not the result that policy@champion names.*rewardsmith promote"):
        reevaluate(tmp_path, SETTINGS, wrong, now=0.0)


RESULT = Path("p/policy/x/0/result")
CHAMPION = {"name": "policy", "alias": "champion", "version": "1", "digest": "d", "result": str(RESULT)}
ALPACA = ReevaluationSettings((), NIGHTLY, benchmarks=("alpaca",), canary=4)


def evaluation_tree(root: Path, *, judge: str, items: int = 6) -> Path:
    """A tree with a policy's result and what it is evaluated with: benchmark items, an SFT model's answers, a judge."""
    data, sft, evaluation = Path("data/d/result"), Path("sft/m/0/result"), Path("params/evaluation/d.yaml")
    for folder in (RESULT, RESULT.parent / "record", data / "benchmarks", sft, evaluation.parent):
        (root / folder).mkdir(parents=True)
    inputs = {path.as_posix(): "" for path in (data, sft, evaluation)}
    write_json(root / RESULT.parent / "record" / "record.json", {"inputs": inputs})
    write_json(root / data / "data.json", {"source": "files", "made for": judge})
    rows = [{"benchmark": "alpaca", "id": str(i), "prompt": f"p{i}", "meta": {}, "turn": 1} for i in range(items)]
    write_jsonl(root / data / "benchmarks" / "alpaca.jsonl", [row | {"baseline": "b"} for row in rows])
    write_jsonl(root / sft / "generations.jsonl", [row | {"response": "r", "baseline": "b"} for row in rows])
    asked = {"kind": "endpoint", "base_url": "http://judge.test/v1", "model": judge, "cache_path": "cache"}
    settings = {"max_new_tokens": 8, "task_tokens": 8, "judge": asked}
    write_json(root / evaluation, settings)
    return root


class Answers:
    """A judge that is named by its settings and gives one text for everything; what it said before it says for ever
    where it has a cache of its own."""

    text = "preference: 1.2"
    cache: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, spec: dict[str, Any]) -> None:
        self.name, self.cached = spec["model"], "cache_path" in spec

    def answer(self, requests: Sequence[JudgeRequest]) -> list[str]:
        return [self.cache.setdefault(one.prompt, self.text) if self.cached else self.text for one in requests]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Models that answer "a" to everything, judged by `Answers`; the data folders that their encoders came from."""
    encoders: list[Path] = []

    class Evaluator(benchmarks.Evaluator):
        def generate_dialogue(self, policy: Any, name: str, limit: int | None = None) -> list[Any]:
            return [row | {"response": "a"} for row in read_jsonl(self.data / "benchmarks" / f"{name}.jsonl")]

    monkeypatch.setattr(benchmarks, "Evaluator", Evaluator)
    monkeypatch.setattr(loading, "load_encoder", lambda data, _model: encoders.append(data))
    monkeypatch.setattr(loading, "load_policy", lambda *_: None)
    monkeypatch.setattr(loading, "load_judge", lambda spec, _world: Answers(spec))
    monkeypatch.setattr(Answers, "text", "preference: 1.2")
    monkeypatch.setattr(Answers, "cache", {})
    return encoders


def evaluated(root: Path, tree: Path, days: float) -> dict[str, Any]:
    return reevaluation._reevaluate(root, tree, ALPACA, CHAMPION, now=days * DAY)


def test_a_result_that_was_brought_back_is_judged_by_the_present_judge_on_the_present_benchmarks(
    tmp_path: Path, parts: list[Path]
) -> None:
    root = evaluation_tree(tmp_path / "root", judge="old")
    old = evaluation_tree(tmp_path / "old", judge="old")
    assert evaluated(root, old, 0)["judge"]["name"] == "old"
    assert parts[-1] == old / "data/d/result", "with the template that it was trained with"
    assert evaluated(root, old, 1) == {"reasons": []}
    shutil.rmtree(root / "data")
    new = evaluation_tree(tmp_path / "new", judge="new", items=8)
    shutil.copytree(new / "data", root / "data")
    shutil.copytree(new / "params", root / "params", dirs_exist_ok=True)
    found = evaluated(root, old, 2)
    assert found["reasons"] == ["benchmark alpaca changed", "the judge changed"]
    assert (found["judge"]["name"], found["benchmarks"]["alpaca"]["items"]) == ("new", 8)
    assert found["changes"] == {}, "nothing was judged like this before"


@pytest.mark.parametrize("setting", EvaluationConfig(8, 8).dialogue_answers())
def test_answers_that_were_sampled_otherwise_are_another_benchmarks(
    tmp_path: Path, parts: list[Path], setting: str
) -> None:
    root = evaluation_tree(tmp_path, judge="j")
    assert evaluated(root, root, 0)["reasons"] == ["first evaluation"]
    path = root / "params/evaluation/d.yaml"
    write_json(path, read_json(path) | {"task_tokens": 9})
    assert evaluated(root, root, 1) == {"reasons": []}, "no dialogue is answered by it"
    write_json(path, read_json(path) | {setting: 0.5 if setting in ("temperature", "top_p") else 1})
    found = evaluated(root, root, 2)
    assert found["reasons"] == ["benchmark alpaca changed"]
    assert found["changes"] == {}, "a difference would not be the model's"


@pytest.mark.parametrize("gone", ["data/d/result", "params/evaluation"])
def test_what_a_model_is_evaluated_with_must_be_in_the_present_tree(
    tmp_path: Path, parts: list[Path], gone: str
) -> None:
    root = evaluation_tree(tmp_path / "root", judge="j")
    shutil.rmtree(root / gone)
    message = rf"root/{gone}.*: is an input of policy@champion's evaluation and is missing.*rewardsmith run"
    with pytest.raises(DataError, match=message):
        evaluated(root, evaluation_tree(tmp_path / "old", judge="j"), 0)


def test_verdicts_that_cannot_be_parsed_any_more_are_the_judges_alert_until_they_come_back(
    tmp_path: Path, parts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = evaluation_tree(tmp_path, judge="j")
    assert evaluated(root, root, 0)["alerts"] == []
    monkeypatch.setattr(Answers, "text", "I prefer the first")

    check = evaluated(root, root, 8)
    assert check["reasons"] == ["a drift check is due"]
    assert [alert["kind"] for alert in check["alerts"]] == ["judge drift"]
    assert check["alerts"][0]["text"].endswith("agreement 0%, 4 verdicts cannot be parsed")

    for path in root.glob("data/d/result/benchmarks/*"):
        write_jsonl(path, [row | {"prompt": "another " + row["prompt"]} for row in read_jsonl(path)])
    lost = evaluated(root, root, 9)
    assert [alert["kind"] for alert in lost["alerts"]] == ["judge drift", "judge verdicts"]
    assert "on 0 of 6 items of alpaca: a regression of policy@champion may not show" in lost["alerts"][1]["text"]
    assert evaluated(root, root, 10)["reasons"] == ["benchmark alpaca has no verdicts"], "it is not done"

    monkeypatch.setattr(Answers, "text", "preference: 1.2")
    back = evaluated(root, root, 11)
    assert back["alerts"] == []
    assert back["benchmarks"]["alpaca"]["items"] == 6, "asked again, past the cache that holds what cannot be parsed"
    assert evaluated(root, root, 12) == {"reasons": []}


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
    begin_repository(root, dvc=True)
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
def test_a_result_that_the_tree_lost_is_brought_back_with_its_data_and_sft_model(
    replaced: tuple[Path, dict[str, str], str], tmp_path: Path
) -> None:
    root, own, commit = replaced
    result, folder = "p/policy/x/0/result", tmp_path / "found"
    restore_result(root, result, own[result], commit, folder)
    settings = "params/evaluation/d.yaml"
    own.pop(settings)
    assert {path: digest(folder / path) for path in own} == own
    assert not (folder / settings).exists(), "those of the present tree hold"
    assert inputs_of(folder / result)["data"] == Path("data/d/result")
    with pytest.raises(DataError, match=r"p/policy/x/0/result.*cannot be restored: commit .* has another one"):
        restore_result(root, result, "0" * 64, commit, tmp_path / "none")
    shutil.rmtree(root / ".dvc" / "cache")
    with pytest.raises(DataError, match=r"cannot be restored.*dvc pull"):
        restore_result(root, result, own[result], commit, tmp_path / "lost")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"benchmarks": ["alpaka"]}, "benchmarks[0] is 'alpaka'; did you mean 'alpaca'"),
        ({"canary": 1}, "canary is 1; it must be at least 2"),
        ({"levle": 0.9}, "unknown setting 'levle'; did you mean 'level'"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "reevaluation.yaml"
    path.write_text(json.dumps({"models": [{"name": "m"}], "schedule": {"cron": "0 3 * * *"}} | change))
    with pytest.raises(RecipeError, match=re.escape(message)):
        read_reevaluation(path)


def test_the_projects_own_settings_are_valid() -> None:
    root = Path(__file__).resolve().parents[2]
    assert read_reevaluation(root / "params" / "reevaluation.yaml").models
