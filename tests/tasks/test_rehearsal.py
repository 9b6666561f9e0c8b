"""A rehearsal: rows, stand-ins, endpoints and settings made small, the reasons of empty cells, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.schemas import RECORD_TYPES
from rlhf_core.data.sources import DirectorySource, HuggingFaceSource
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.evaluation.judges.openai_endpoint import EndpointConfig, EndpointJudge
from rlhf_core.evaluation.judges.protocol import JudgeRequest
from rlhf_core.evaluation.judges.templates import TEMPLATES
from rlhf_core.models.architecture import known_models
from rlhf_core.reasoning.rewriting import WrongSolution
from rlhf_core.rewards.zero_shot import ZeroShotSettings, load_zero_shot
from rlhf_core.teachers.prompts import REWRITE, teacher_prompt
from tasks.dvc.pipelines import asked_papers
from tasks.graph.check import refuse_rows
from tasks.graph.items import Item
from tasks.graph.names import SUITE
from tasks.params.pages import read_settings
from tasks.params.policy import PolicyScale
from tasks.params.scales import scale_entries
from tasks.params.settings import typed
from tasks.rehearsal.cells import REASONS, AskedRows, EmptyCell, Walked, reason_of
from tasks.rehearsal.endpoint import ANSWERS, endpoints, read_replies
from tasks.rehearsal.equal import Identities, equal_rows
from tasks.rehearsal.listing import ForecastGpus, Listing, text_of, unread_settings
from tasks.rehearsal.made_up import MADE_UP, MARK, made_up
from tasks.rehearsal.rows import SmallRows, hub_row
from tasks.rehearsal.settings import Shrinking, small_policy, small_stage
from tasks.rehearsal.stand_ins import StandIns, family_of
from tasks.rehearsal.tree import begin_anew_if_changed, response_groups, write_tree

ROOT = Path(__file__).resolve().parents[2]
CHAT = {"prompt": "chosen.:-1", "chosen": "chosen.-1.content", "rejected": "rejected.-1.content"}


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["argilla/pairs", "Anthropic/hh-rlhf"])
def test_a_scales_own_mapping_reads_the_rows_of_a_hub_set(path: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    rows = SmallRows(tmp_path, None)
    made = rows.hub_set("pairs", {"path": path, "kind": "preference", "mapping": CHAT, "revision": "1"})
    from rlhf_core.data.hub_set import HubSet

    found = HuggingFaceSource({"pairs": HubSet(**made)}).load("pairs", "train")
    assert [row["chosen"] for row in found] == [row["chosen"] for row in made_up("preference", "pairs-train", 8)]
    assert found[0]["prompt"].strip().startswith(("What is", "Human: What is"))
    assert rows.origins == {"pairs": "made up"}


def test_entries_that_map_different_columns_of_a_set_have_rows_of_their_own(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    from rlhf_core.data.hub_set import HubSet

    rows = SmallRows(tmp_path, None)
    values = {"path": "argilla/pairs", "kind": "preference"}
    scored = rows.hub_set("pairs", {**values, "mapping": {**CHAT, "score_chosen": "points"}})
    rows.hub_set("pairs", {**values, "mapping": CHAT})
    assert HuggingFaceSource({"pairs": HubSet(**scored)}).load("pairs", "train")[0]["score_chosen"] == 4.0


def test_given_rows_are_taken_before_made_up_ones(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    pair = {"id": "1", "prompt": "Hello?", "chosen": "Hello.", "rejected": "No.", "source": "s"}
    (tmp_path / "given" / "hh_helpful.train.jsonl").write_text(json.dumps(pair) + "\n")
    rows = SmallRows(tmp_path, DirectorySource(tmp_path / "given"))
    assert rows.records("helpful_base", "train", "preference") == [pair]
    assert MARK in rows.records("ultrafeedback", "train", "preference")[0]["chosen"]
    assert rows.origins == {"helpful_base": "rows of hh_helpful", "ultrafeedback": "made up"}


@pytest.mark.parametrize("kind", [name for name in MADE_UP if name in RECORD_TYPES])
def test_made_up_rows_fit_their_schema_and_say_what_they_are(kind: str) -> None:
    import pandas as pd

    made = made_up(kind, "set-train", 9)
    frame = pd.DataFrame(made, dtype=object)
    RECORD_TYPES[kind].schema.validate(frame)
    assert all(MARK in row["source"] for row in made)


def test_nested_columns_lead_back_to_the_values() -> None:
    row = hub_row({"id": "1", "turns": ["a", "b"]}, {"id": "question_id", "turns": "turns.0.content"})
    assert row == {"question_id": "1", "turns": [{"content": "a"}]}


# --- models and settings ----------------------------------------------------------------------------------------------


def test_every_model_of_the_scales_has_a_family() -> None:
    assert {family_of(architecture) for architecture in known_models().values()} == {
        "phi3", "llama", "llama2", "gemma2", "qwen2", "t5", "mt5",
    }  # fmt: skip


def test_a_model_of_unknown_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"architecture of someone/new is not known.*architectures.yaml"):
        StandIns(tmp_path, ["text"]).of("someone/new")


def test_a_reward_model_with_a_head_is_read_as_ultrarm_is(tmp_path: Path) -> None:
    folder = StandIns(tmp_path, ["the cow gives milk"] * 4).with_head("openbmb/UltraRM-13b")
    model = load_zero_shot(ZeroShotSettings(str(tmp_path / folder), read="head"))
    values = model.rewards(["What gives milk?"] * 2, ["the cow", "milk"])
    assert values[0] != values[1]


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_policy_has_two_updates_of_two_prompts(scale: str, tmp_path: Path) -> None:
    groups = response_groups(ROOT, scale)
    made = Shrinking(SmallRows(tmp_path, None), StandIns(tmp_path, []), groups)
    for name, address in scale_entries(ROOT, scale, "policy").items():
        small = small_policy(made, name, read_settings(address.under(ROOT)))
        typed(PolicyScale, small, name)
        optimiser = small["optimiser"]
        if "iterations" in optimiser:
            assert optimiser["iterations"] - optimiser.get("replay", 0) == 2
            assert optimiser["rollout_batch"] == 2 * max(groups.get(name, 1), optimiser.get("group_size", 1))
        else:
            assert (optimiser["updates"], optimiser["batch"]) == (2, 2)


def test_groups_of_a_policys_page_and_of_its_rows_both_fill_a_batch(tmp_path: Path) -> None:
    made = Shrinking(SmallRows(tmp_path, None), StandIns(tmp_path, []), {"grpo": 5})
    small = small_policy(made, "grpo", {"optimiser": {"iterations": 10, "rollout_batch": 32, "group_size": 4}})
    assert small["optimiser"]["rollout_batch"] == 40


def test_what_a_rehearsal_replaces_is_noted(tmp_path: Path) -> None:
    made = Shrinking(SmallRows(tmp_path, None), StandIns(tmp_path, []), {})
    small = small_stage(made, "samples", {"samples": 5, "sampling": {"max_new_tokens": 512}, "batch": 128})
    assert small == {"samples": 2, "sampling": {"max_new_tokens": 12}, "batch": 2, "gold": 1}
    assert made.replaced == {"stages: samples: one sample of each question": "its own solution, marked as gold"}


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_no_setting_of_a_small_scale_is_refused(scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("params", "params.yaml"):
        (tmp_path / part).symlink_to(ROOT / part)
    monkeypatch.chdir(tmp_path)
    made = write_tree(tmp_path, scale, None)
    asked = dict.fromkeys(asked_papers(made.tree, SUITE, scale=made.name, full=True), ())
    assert {"segment", "sentence", "par"} <= asked.keys()
    refuse_rows(made.tree, made.name, asked)


def test_the_testbed_is_not_rehearsed() -> None:
    with pytest.raises(RecipeError, match="rehearse small or paper"):
        write_tree(ROOT, "testbed", None)


def test_other_rows_begin_a_rehearsal_anew(tmp_path: Path) -> None:
    given, tree = tmp_path / "given", tmp_path / "tree"
    given.mkdir()
    (tree / "results").mkdir(parents=True)
    begin_anew_if_changed(ROOT, "small", tree, given)
    assert not (tree / "results").exists(), "nothing says what these results were made of"
    (tree / "results").mkdir()
    begin_anew_if_changed(ROOT, "small", tree, given)
    assert (tree / "results").exists()
    (given / "set.train.jsonl").write_text("{}\n")
    begin_anew_if_changed(ROOT, "small", tree, given)
    assert not (tree / "results").exists()
    for text in ("{}", "{ }"):
        (tree / "results").mkdir()
        (tmp_path / "replies.jsonl").write_text(text)
        begin_anew_if_changed(ROOT, "small", tree, given, tmp_path / "replies.jsonl")
        assert not (tree / "results").exists()


# --- endpoints --------------------------------------------------------------------------------------------------------


def test_the_endpoints_answer_every_template_in_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoints() as served:
        for name, value in served.items():
            monkeypatch.setenv(name, value)
        judge = EndpointJudge(EndpointConfig(served["REWARDSMITH_JUDGE_URL"], "any", "REWARDSMITH_JUDGE_KEY"))
        for name in ANSWERS.keys() - {"locate_error", "rewrite_solution"}:
            meta = {"first": ("q", "a"), "references": ["r", "r"], "reference": "r"}
            request = JudgeRequest("1", "What?", ("one", "two")[: TEMPLATES[name].n_answers], name, meta)
            (text,) = judge.answer([request])
            assert TEMPLATES[name].parse(text).valid, (name, text)
        question = {"id": "q", "prompt": "1 and 2?", "solution": "1 + 2 = 3.\nThe answer is 3", "answer": "3"}
        wrong = WrongSolution("q/0", question, "1 + 2 = 4.\nThe answer is 4")
        (text,) = judge.answer([JudgeRequest("1", teacher_prompt(REWRITE, wrong), (), REWRITE)])
        assert text.strip() == wrong.question["solution"].strip()


def test_the_endpoints_play_a_zero_shot_model() -> None:
    with endpoints() as served:
        model = load_zero_shot(ZeroShotSettings("any", base_url=served["REWARDSMITH_JUDGE_URL"]))
        answers = ["the cow gives milk", " milk \n", "\n"]
        assert all(value < 0 for value in model.rewards(["What?"] * 3, answers))


def test_replies_of_a_file_take_the_place_of_verdicts(tmp_path: Path) -> None:
    said = ["**[[A>>B]]**", "I cannot tell."]
    file = tmp_path / "replies.jsonl"
    file.write_text("".join(json.dumps({"template": "arena_hard", "reply": reply}) + "\n" for reply in said))
    with endpoints(read_replies(file)) as served:
        judge = EndpointJudge(EndpointConfig(served["REWARDSMITH_JUDGE_URL"], "any", None))
        arena = [JudgeRequest("1", f"What is {number}?", ("one", "two"), "arena_hard") for number in range(20)]
        assert set(judge.answer(arena)) == set(said)
        (other,) = judge.answer([JudgeRequest("1", "What?", ("one", "two"), "pairwise")])
    assert TEMPLATES["pairwise"].parse(other).valid


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"template": "arena_hrd", "reply": "x"}', r"row 2, field 'template'.*did you mean 'arena_hard'"),
        ('{"template": "arena_hard", "reply": 5}', r"row 2, field 'reply': it is 5, not a text"),
        ('{"template": ["pairwise"], "reply": "x"}', r"row 2, field 'template'.*it must be text"),
        ('{"reply": "x"}', r"row 2, field 'template': None is unknown; known: alpaca_eval"),
    ],
)
def test_a_wrong_line_of_replies_is_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "replies.jsonl").write_text('{"template": "pairwise", "reply": "Better: A"}\n' + line)
    with pytest.raises(DataError, match=message):
        read_replies(tmp_path / "replies.jsonl")


def test_a_request_out_of_protocol_is_refused() -> None:
    import httpx

    with endpoints() as served:
        reply = httpx.post(f"{served['REWARDSMITH_JUDGE_URL']}/chat/completions", json={"messages": []})
    assert reply.status_code == 400
    assert "not in protocol" in reply.json()["error"]["message"]


# --- the list ---------------------------------------------------------------------------------------------------------

ASKED = AskedRows(here=frozenset({"a", "b"}), rows=frozenset({"a"}), failed=frozenset({"broken"}))


@pytest.mark.parametrize(
    ("name", "status", "why", "metric", "reason"),
    [
        (None, "not run", None, "x", "no row"),
        ("broken", "not run", None, "x", "failed"),
        ("elsewhere", "not run", None, "x", "no scale"),
        ("b", "not run", None, "x", "not asked"),
        ("a", "stopped", None, "x", "stopped"),
        ("a", "not measured", "the data has no benchmark 'arena'", "arena_wr", "no benchmark"),
        ("a", "not measured", None, "livecode", "no benchmark"),
        ("a", "not measured", "0 of 2 prompts have a verdict (2 unparsable)", "judged", "few verdicts"),
        ("a", "not measured", "no game is decided between 'a' and 'b'", "wins/judge/b", "few verdicts"),
        ("a", "not measured", None, "wins/judge/b", "other row"),
        ("a", "not measured", None, "something_else", None),
        ("a", "not run", None, "x", None),
    ],
)
def test_a_cell_is_empty_for_a_reason_of_the_list(
    name: str | None, status: str, why: str | None, metric: str, reason: str | None
) -> None:
    found = reason_of({"status": status, "why": why}, {"name": name, "kind": "policy"}, {"metric": metric}, ASKED)
    assert found == reason
    assert found is None or found in REASONS


def test_a_cell_without_a_reason_and_a_failed_stage_end_in_status_1() -> None:
    walked = Walked(3, [EmptyCell("segment/1", "Segment", "WR", "no benchmark")])
    assert Listing("small", cells={"segment": walked}).status == 0
    unstated = Walked(3, [EmptyCell("segment/1", "Segment", "WR", None, "not measured: x")])
    assert Listing("small", cells={"segment": unstated}).status == 1
    assert Listing("small", failed={"sft": "message"}).status == 1
    text = text_of(Listing("small", rows={"segment": 1}, cells={"segment": unstated}), ForecastGpus(8, 80.0))
    assert "segment/1: Segment, WR: WITHOUT A REASON (not measured: x)" in text
    assert "No number of a rehearsal is a result" in text


def test_settings_that_no_stage_reads_are_found(tmp_path: Path) -> None:
    import shutil

    for part in ("params", "params.yaml"):
        source = ROOT / part
        shutil.copytree(source, tmp_path / part) if source.is_dir() else shutil.copy(source, tmp_path / part)
    page = tmp_path / "params/scales/small/stages.yaml"
    page.write_text(page.read_text() + "\nreward_model-sentance: {epochs: 1, batch: 2, microbatch: 1}\n")
    assert "params/scales/small/stages.yaml:reward_model-sentance" in unread_settings(tmp_path, "small")


def test_rows_that_differ_by_title_alone_are_equal(tmp_path: Path) -> None:
    from tasks.params.pages import Address

    (tmp_path / "rows.yaml").write_text(
        "a: {title: A, lr: 1, reward_model: x}\nb: {title: B, lr: 1, reward_model: y}\nc: {title: C, lr: 2}\n"
    )

    def stages(name: str) -> list[Item]:
        model = Item("reward_model", name, {"seed": 0}, f"results/m-{name}", "p", 0)
        row = Address(f"rows.yaml:{name}")
        return [model, Item("policy", name, {"row": row, "reward_model": (f"results/m-{name}/result",)}, name, "p", 0)]

    rows = {name: stages(name) for name in "abc"}
    assert equal_rows(Identities(tmp_path), rows) == {"b": "a"}
