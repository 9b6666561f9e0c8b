"""ALARM on real questions and sentences in short: rows, selections and aspects as they stand, on tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_core.aspects.language_tool import URL_VARIABLE
from tasks.params.pages import entries, read_settings
from tasks.params.scales import scale_entries
from tests.tasks.alarm_run import FILES, Run
from tests.tasks.test_real_aspects import MT, QA, shortened
from tests.tool_server import ToolServer

ROOT = Path(__file__).parents[2]
#: Small settings, whatever the task; no judge, as at the scale `feedback`.
TINY: dict[str, Any] = {
    "tokenizer": {"vocabulary": 500, "full_byte_alphabet": True},
    "evaluation": {"max_new_tokens": 8, "task_tokens": 1, "temperature": 0},
    "selection_scale": {"prompts": 12, "max_new_tokens": 8, "rounds": 20},
    "ppo": {**FILES["ppo"], "sampling": {"max_new_tokens": 8}, "checkpoint_prompts": 0},
}


def run(folder: Path, paper: str, rows: dict[str, str], selection: str, model: str, data: dict[str, Any]) -> Run:
    """A run of real rows up to their selection; `rows` names them by the names of `Run`."""

    def found(kind: str, name: str) -> dict[str, Any]:
        return read_settings(entries(ROOT, f"params/{paper}", kind)[name].under(ROOT))

    spec, aspects_of = found("selections", selection), scale_entries(ROOT, "feedback", "aspects")
    aspects = {name: read_settings(aspects_of[name].under(ROOT)) for name in spec["aspects"]}
    trained = {name: f"aspect_models/{name}" for name, file in aspects.items() if "model" in file}
    changed = {
        **TINY,
        "data": data,
        "selection": spec,
        "reward_model": found("reward_models", model),
        **{f"aspects/{name}": values for name, values in aspects.items()},
        **{file: found(*file.split("/")) for file in trained.values()},
        **{own: found("rows", name) for own, name in rows.items()},
    }
    return Run(folder, changed, tuple(spec["aspects"]), trained).up_to_the_selection()


def test_real_questions_go_through_selection_and_gate_to_the_tables(real_data: Path, tmp_path: Path) -> None:
    files = shortened(real_data, tmp_path / "files", {"qa_feedback": 30, "qa_feedback_pref": 150})
    rows = {name: name for name in ("qa-alarm", "qa-holistic")}
    made = run(tmp_path, "alarm", rows, "qa", "holistic-qa", {**QA, "directory": str(files)})
    for row in rows:
        made.policy(row)
    aspects = {"relevance", "factuality", "completeness", "length"}
    for row in rows:
        scores = made.read(f"alarm/policy/{row}/0", "scores.jsonl")
        assert [set(one) for one in scores] == [{"id", "holistic", *aspects}] * 4
    assert "gate/pairs" in made.read("alarm/policy/qa-alarm/0", "metrics.json")
    made.stage("tables", "alarm/tables", results=made.out(""), paper="alarm", seeds=(0,))
    tables = {table["id"]: table for table in made.read("alarm/tables", "tables.json")["tables"]}
    cells = {row["key"]: row["cells"]["vs_holistic"]["status"] for row in tables["Table 1"]["rows"]}
    assert cells["qa-alarm@holistic-reward"] == cells["qa-alarm@factuality-rate"] == "measured"
    assert cells["qa-alarm@gpt-3.5-turbo"] == "not measured"


def test_real_sentences_are_translated_for_what_lingua_and_textstat_say(real_data: Path, tmp_path: Path) -> None:
    pytest.importorskip("lingua")
    pytest.importorskip("textstat")
    files = shortened(real_data, tmp_path / "files", {"tatoeba_es_en": 60})
    rows = {"qa-alarm": "tatoeba-alarm", "qa-weighted-sum": "tatoeba-weighted-sum"}
    made = run(tmp_path, "tatoeba", rows, "tools", "holistic", {**MT, "directory": str(files)})
    found = made.read("alarm/selection/qa/0", "selection.json")
    assert set(found["aspects"]) == {"confidence", "readability", "length"}
    assert 0 <= made.read("shared/sft/alarm-qa/0", "metrics.json")["bleu"] <= 100
    for row in rows:
        made.policy(row)
        scores = made.read(f"alarm/policy/{row}/0", "scores.jsonl")
        assert [set(one) for one in scores] == [{"id", "holistic", "confidence", "readability", "length"}] * 4
        assert all(0 <= one["confidence"] <= 1 for one in scores)
        paid = made.read(f"alarm/policy/{row}/0", "rollouts.jsonl")[0]["breakdown"]
        assert set(paid) == {"holistic", *found["chosen"]}


def test_real_sentences_are_translated_for_what_a_grammar_server_says(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has LanguageTool's interface and knows the testbed's English: real words that it does not know err."""
    pytest.importorskip("lingua")
    pytest.importorskip("textstat")
    monkeypatch.chdir(tmp_path)  # answers are kept at a relative path
    files = shortened(real_data, tmp_path / "files", {"eutrans_es_en": 60})
    data = {**MT, "sets": ["eutrans_es_en"], "directory": str(files)}
    with ToolServer() as server:
        monkeypatch.setenv(URL_VARIABLE, server.url)
        made = run(tmp_path, "alarm", {"qa-alarm": "mt-alarm"}, "mt", "holistic-mt", data)
        made.policy("qa-alarm")
    found = made.read("alarm/selection/qa/0", "selection.json")
    assert set(found["aspects"]) == {"grammar", "confidence", "readability", "length"}
    assert not found["aspects"]["grammar"]["higher_is_better"]
    rollouts = made.read("alarm/policy/qa-alarm/0", "rollouts.jsonl")
    assert all(set(one["breakdown"]) == {"holistic", "grammar"} for one in rollouts)
    scores = made.read("alarm/policy/qa-alarm/0", "scores.jsonl")
    assert [set(one) for one in scores] == [{"id", "holistic", *found["aspects"]}] * 4
    assert "gate/pairs" in made.read("alarm/policy/qa-alarm/0", "metrics.json")
    kept = (tmp_path / ".work/languagetool/answers.jsonl").read_text().splitlines()
    assert len(kept) == server.calls > 0
