"""ALARM end to end on a few dozen long-form questions: aspect model, selection, gated policies, tables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rlhf_core.data.templates import encode_text
from rlhf_core.errors import RecipeError
from rlhf_core.models.reward_model import ScalarModel
from tasks.policy_run.reward import RewardInputs, build_reward
from tasks.running.loading import load_encoder, load_world
from tasks.studies.world_record import right_selection
from tests.tasks.alarm_run import ASPECTS, FILES, HOLISTIC, ROWS, TRANSLATION, Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = Run(tmp_path_factory.mktemp("alarm")).up_to_the_selection()
    for row in ROWS:
        made.policy(row)
    return made


def test_the_selection_names_what_it_chose_and_by_what(run: Run) -> None:
    found = run.read("alarm/selection/qa/0", "selection.json")
    told = {
        name: facts["inconsistency"]["estimate"] for name, facts in found["aspects"].items() if not facts["constant"]
    }
    (chosen,) = found["chosen"]
    assert told[chosen] == min(told.values())
    densities = {name: facts["density"] for name, facts in found["aspects"].items()}
    assert densities == dict(zip(ASPECTS, ("sentence", "span", "sequence", "sequence"), strict=True))
    pure = found["holistic"]["pure"]
    assert len(pure) == 16
    assert sum(pure) / 16 == pytest.approx(0, abs=1e-6)
    answers = run.read("alarm/selection/qa/0", "answers.jsonl")
    decided = [row for row in answers if row["greedy"]["holistic"] != row["sampled"]["holistic"]]
    signs = [[row["greedy"][name] - row["sampled"][name] for name in ("holistic", "length")] for row in decided]
    apart = sum(holistic * length < 0 for holistic, length in signs)
    assert told["length"] == pytest.approx(100 * apart / len(decided))


def test_a_selection_is_right_where_the_truth_would_choose_the_same_aspect(run: Run, tmp_path: Path) -> None:
    selection, data = run.result("alarm/selection/qa/0"), run.result("shared/data/longform")
    found = right_selection(selection, data)
    made, answers = (
        run.read("alarm/selection/qa/0", "selection.json"),
        run.read("alarm/selection/qa/0", "answers.jsonl"),
    )
    world, metas = (
        load_world(data),
        {row["id"]: row["meta"] for row in run.read("shared/data/longform", "prompts.jsonl")},
    )
    assert world is not None
    true = [
        [world.true_reward(metas[row["id"]], row[kind]["text"]) for kind in ("greedy", "sampled")] for row in answers
    ]
    apart = [
        (one - other) * (row["greedy"]["length"] - row["sampled"]["length"])
        for (one, other), row in zip(true, answers, strict=True)
        if one != other
    ]
    assert found["true_inconsistency/length"] == pytest.approx(100 * sum(each < 0 for each in apart) / len(apart))
    told = {
        name: found[f"true_inconsistency/{name}"] for name, facts in made["aspects"].items() if not facts["constant"]
    }
    changed = tmp_path / "selection"
    shutil.copytree(selection, changed)
    for name, value in told.items():
        (changed / "selection.json").write_text(json.dumps({**made, "chosen": [name]}))
        assert right_selection(changed, data)["right"] == float(value == min(told.values()))


def test_answers_that_the_limit_cut_are_scored_at_their_last_token_as_in_training(run: Run) -> None:
    """One reward of a cut answer, whether training, the selection or the test scores read it; EOS was never drawn."""
    folder = run.result("alarm/reward_model/holistic/0") / "model"
    model, encoder = ScalarModel.load(folder)[0], load_encoder(run.result("shared/data/longform"), folder)
    cut = 0
    for answer in run.read("alarm/selection/qa/0", "answers.jsonl"):
        words = encode_text(encoder.tokenizer, answer["sampled"]["text"])
        if len(words) == 16:
            prompt, response = torch.tensor([encoder.prompt(answer)]), torch.tensor([words])
            read = model(prompt, torch.ones_like(prompt).bool(), response, torch.ones_like(response).bool())[0, -1]
            assert read.item() == pytest.approx(answer["sampled"]["holistic"], abs=1e-5)
            cut += 1
    assert cut > 0


def test_a_gated_policy_logs_the_share_above_and_the_violations(run: Run) -> None:
    for row in ("qa-alarm", "qa-alarm-selected"):
        history = run.read(f"alarm/policy/{row}/0", "history.jsonl")
        assert all(0 <= step["gate/share_above"] <= 1 for step in history)
        assert all(0 <= step["gate/violations"] <= step["gate/pairs"] for step in history)
        metrics = run.read(f"alarm/policy/{row}/0", "metrics.json")
        assert metrics["gate/pairs"] == sum(step["gate/pairs"] for step in history)
    assert "gate/pairs" not in run.read("alarm/policy/qa-weighted-sum/0", "metrics.json")


def test_only_the_gate_shapes_aspects(run: Run) -> None:
    """Below the gate nothing but the holistic reward; above it every sentence pays a sigmoid of +-.5."""
    paid = set()
    for rollout in run.read("alarm/policy/qa-alarm/0", "rollouts.jsonl"):
        holistic, aspect = rollout["breakdown"]["holistic"], rollout["breakdown"]["factuality"]
        if sum(holistic) < 0:
            assert not any(aspect)
        paid |= {round(value, 4) for value in aspect}
    assert paid <= {0.0, 0.6225, 0.3775}
    for rollout in run.read("alarm/policy/qa-weighted-sum/0", "rollouts.jsonl"):
        assert {round(value, 4) for value in rollout["breakdown"]["factuality"]} <= {0.0, 0.5, -0.5}


def test_short_answers_have_a_holistic_reward_of_their_own_and_pass_no_gate(run: Run, tmp_path: Path) -> None:
    """With a limit that every answer keeps, nothing reaches the threshold: training goes on by the penalty alone."""
    punished = {**HOLISTIC, "shaping": {"kind": "short_response", "tokens": 16, "value": -10}}
    file = tmp_path / "row.yaml"
    file.write_text(yaml.safe_dump({**ROWS["qa-alarm"], "components": [punished, {"aspect": "factuality"}]}))
    run.policy("qa-alarm", "alarm/policy/short/0", row=file)
    for rollout in run.read("alarm/policy/short/0", "rollouts.jsonl"):
        assert sum(rollout["breakdown"]["holistic"]) == -50
        assert not any(rollout["breakdown"]["factuality"])
    metrics = run.read("alarm/policy/short/0", "metrics.json")
    assert (metrics["gate/share_above"], metrics["gate/pairs"]) == (0, 0)


def test_every_row_keeps_its_test_answers_scores(run: Run) -> None:
    scores = run.read("alarm/policy/qa-alarm/0", "scores.jsonl")
    assert [set(row) for row in scores] == [{"id", "holistic", *ASPECTS}] * 8
    metrics = run.read("alarm/policy/qa-alarm/0", "metrics.json")
    assert metrics["score/factuality"] == pytest.approx(sum(row["factuality"] for row in scores) / 8)


def test_rows_are_held_against_each_other_in_the_tables(run: Run) -> None:
    run.stage("tables", "alarm/tables", results=run.out(""), paper="alarm", seeds=(0,))
    tables = {table["id"]: table for table in run.read("alarm/tables", "tables.json")["tables"]}
    cells = {row["key"]: row["cells"] for row in tables["Table 1"]["rows"]}
    assert len(cells) == 12
    for by in ("holistic-reward", "factuality-rate", "gpt-3.5-turbo"):
        own, other = cells[f"qa-alarm@{by}"], cells[f"qa-holistic@{by}"]
        assert own["vs_holistic"]["mean"] + other["vs_alarm"]["mean"] == pytest.approx(100)
        assert own["vs_alarm"]["status"] == "-"
        three = [own[key]["mean"] for key in ("vs_holistic", "vs_factuality", "vs_weighted_sum")]
        assert own["avg"]["mean"] == pytest.approx(sum(three) / 3)
    scores = {row: run.read(f"alarm/policy/{row}/0", "scores.jsonl") for row in ("qa-alarm", "qa-holistic")}
    signs = [a["holistic"] - b["holistic"] for a, b in zip(scores["qa-alarm"], scores["qa-holistic"], strict=True)]
    wins, losses = sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs)
    rate = 100 * wins / (wins + losses) if wins + losses else 50
    assert cells["qa-alarm@holistic-reward"]["vs_holistic"]["mean"] == pytest.approx(rate)
    tests = tables["Table 2"]["rows"][0]["cells"]
    assert all(cell["outcome"].split()[0] in ("Win", "Tie", "Lose") for cell in tests.values())
    assert tables["Table 4"]["rows"][0]["cells"]["vs_alarm"]["status"] == "not run"
    flat = run.read("alarm/tables", "metrics.json")
    assert "table-1/qa-alarm@factuality-rate/vs_holistic" in flat
    claims, figure = run.read("alarm/tables", "figures.json")["figures"][:2]
    assert claims["kind"] == "claims"
    assert figure["panels"][0]["title"] == "Inconsistency with the holistic reward"


T5 = {
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 1,
    "num_decoder_layers": 1,
    "num_heads": 2,
    "tie_word_embeddings": False,
}


def encoder_decoder(family: str) -> dict[str, Any]:
    return {"backbone": {**FILES["backbone"], "architecture": {**T5, "model_type": family}}}


def test_an_encoder_decoder_answers_questions_behind_a_gate_of_sentence_rewards(tmp_path: Path) -> None:
    """As T5-large does in the paper; reward model and aspect model are of its shape, too."""
    adapted = {"qa-alarm": {**ROWS["qa-alarm"], "lora": {"rank": 2, "alpha": 4}}}
    made = Run(tmp_path, {**encoder_decoder("t5"), **adapted}).up_to_the_selection()
    made.policy("qa-alarm")
    assert set(made.read("alarm/policy/qa-alarm/0", "scores.jsonl")[0]) == {"id", "holistic", *ASPECTS}
    for rollout in made.read("alarm/policy/qa-alarm/0", "rollouts.jsonl"):
        assert {round(value, 4) for value in rollout["breakdown"]["factuality"]} <= {0.0, 0.6225, 0.3775}


def test_an_encoder_decoder_translates_behind_a_gate_of_token_rewards(tmp_path: Path) -> None:
    """As mT5-base does in the paper."""
    made = Run(tmp_path, {**TRANSLATION, **encoder_decoder("mt5")}, ("grammar", "length"), {}).up_to_the_selection()
    made.policy("qa-alarm")
    assert "bleu" in made.read("shared/sft/alarm-qa/0", "metrics.json")
    assert made.read("alarm/policy/qa-alarm/0", "judge.json")["lower_is_better"] == ["grammar"]
    for rollout in made.read("alarm/policy/qa-alarm/0", "rollouts.jsonl"):
        paid = {round(value, 4) for value in rollout["breakdown"]["grammar"]}
        assert paid <= ({0.5, 0.2689} if sum(rollout["breakdown"]["holistic"]) >= 0 else {0.0})


def refused(run: Run, row: str, change: Mapping[str, Any], tmp_path: Path, **inputs: Any) -> str:
    """The message with which a policy stage refuses a changed row."""
    file = tmp_path / "row.yaml"
    file.write_text(yaml.safe_dump({**ROWS[row], **change}), encoding="utf-8")
    with pytest.raises(RecipeError) as stopped:
        run.policy(row, "alarm/policy/refused/0", row=file, **inputs)
    return str(stopped.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"components": [HOLISTIC, {"aspect": "honesty"}]},
            "'honesty' is not in the selection; it compared",
        ),
        ({"components": [HOLISTIC, {"aspect": "factuality", "credit": "last_token"}]}, "takes Sequence"),
        ({"components": [HOLISTIC, {"aspect": "completeness", "shaping": {"kind": "par"}}]}, "reference rewards"),
        ({"clamp": 10.0}, "clamp: null"),
        ({"combination": {"kind": "gate", "by": "holistics", "threshold": 0.6}}, "did you mean 'holistic'"),
        ({"combination": {"kind": "gate", "by": "holistic", "threshold": {"quantile": 7}}}, "q in (0, 1)"),
        ({"combination": {"kind": "gate", "by": "holistic"}}, "'threshold' is missing"),
        ({"selection": None}, "name a 'selection'"),
        ({"components": [HOLISTIC]}, "at least one component beside"),
    ],
)
def test_rows_that_cannot_be_rewarded_are_refused(
    run: Run, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert message in refused(run, "qa-alarm", change, tmp_path)


def test_a_selection_that_chose_nothing_is_refused_by_the_row_that_asks_for_it(run: Run, tmp_path: Path) -> None:
    empty = tmp_path / "result"
    shutil.copytree(run.result("alarm/selection/qa/0"), empty)
    known = json.loads((empty / "selection.json").read_text())
    (empty / "selection.json").write_text(json.dumps({**known, "chosen": []}))
    message = refused(run, "qa-alarm-selected", {}, tmp_path, selection=empty)
    assert "the selection chose no aspect" in message


def test_a_constant_aspect_is_not_chosen_and_cannot_be_normalised(run: Run, tmp_path: Path) -> None:
    run.settings("aspects/constant").write_text(
        yaml.safe_dump({"aspect": {"kind": "testbed-completeness"}, "normaliser": "z"}), encoding="utf-8"
    )
    spec = tmp_path / "constant.yaml"
    spec.write_text(yaml.safe_dump({**FILES["selection"], "aspects": ["constant", "length"]}), encoding="utf-8")
    files = tuple(run.settings(f"aspects/{name}") for name in ("constant", "length"))
    wordless = tmp_path / "prompts"
    shutil.copytree(run.result("shared/data/longform"), wordless)
    rows = [json.loads(line) for line in (wordless / "prompts.jsonl").read_text().splitlines()]
    for row in rows:
        row["meta"]["requested"] = ["nothing"]
    (wordless / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    inputs = {**run.selection_inputs(), "spec": spec, "aspect": files, "data": wordless}
    run.stage("selection", "alarm/selection/constant/0", **inputs)
    found = run.read("alarm/selection/constant/0", "selection.json")
    assert found["aspects"]["constant"]["constant"]
    assert found["chosen"] == ["length"]
    change = {"components": [HOLISTIC, {"aspect": "constant"}]}
    message = refused(run, "qa-alarm", change, tmp_path, selection=run.result("alarm/selection/constant/0"))
    assert "aspect 'constant' is constant" in message


def test_a_selection_and_its_row_belong_together(run: Run) -> None:
    from rlhf_core.recipe import parse_recipe

    with pytest.raises(RecipeError, match="--selection"):
        build_reward(parse_recipe(ROWS["qa-alarm"]), RewardInputs(None, *((run.root,),) * 2), 8, None)  # type: ignore[arg-type]
