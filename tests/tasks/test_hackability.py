"""The hacking laboratory: its rows, its data, its place in the graph, and a run with its page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlhf_core.errors import RecipeError
from tasks.command_line import commands
from tasks.graph import dvc_files as graph
from tasks.graph import laboratory as hackability
from tasks.graph.laboratory import OwnReward
from tasks.params.data import WorldSpec, data_spec
from tasks.params.pages import entries, read_settings
from tasks.params.scales import scale_entries
from tasks.prepare import make_sets
from tasks.report.hackability import compare, write_comparison
from tests import small_repository
from tests.small_repository import reward_model, reward_row, scale_entry, set_entry, write_yaml
from tests.tasks.golden_runs import SETTINGS, SharedRuns

ROOT = Path(__file__).resolve().parents[2]
DATA = scale_entries(ROOT, "testbed", "data")
FLAWS = ("flattery", "keyword", "length", "repetition")


@pytest.fixture
def laboratory(tmp_path: Path) -> Path:
    """A folder with the laboratory's pages."""
    shutil.copytree(ROOT / "params" / "hackability", tmp_path / "params" / "hackability")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    return tmp_path


def settings_of(root: Path, kind: str, name: str) -> dict[str, Any]:
    return read_settings(entries(root, hackability.FOLDER, kind)[name].under(root))


# --- rows


def test_every_flaw_has_every_mitigation_and_nothing_is_written(laboratory: Path) -> None:
    page, before = hackability.laboratory_page(laboratory), sorted((laboratory / hackability.FOLDER).iterdir())
    names = [*page.entries]
    rows = entries(laboratory, hackability.FOLDER, "rows")
    for flaw in page.each:
        assert set(hackability.rows_of(laboratory, flaw, names).rows.values()) < set(rows)
    assert len(rows) == len(FLAWS) * len(names)
    assert sorted((laboratory / hackability.FOLDER).iterdir()) == before
    assert [found.reward for found in hackability.known_rows(laboratory)] == list(FLAWS)


def test_a_function_has_the_rows_that_need_no_reference_rewards(laboratory: Path) -> None:
    own = OwnReward("own-brevity", function="own_rewards:brevity")
    found = hackability.rows_of(laboratory, own.name, [*hackability.laboratory_page(laboratory).entries], own)
    assert set(found.rows) == {"vanilla", "clip", "meanstd", "minmax"}
    row = settings_of(laboratory, "rows", "own-brevity-minmax")
    assert (row["function"], row["gives"], row["shaping"]) == ("own_rewards:brevity", "sequence", {"kind": "minmax"})
    assert not {"reward_model", "readout", "normaliser"} & set(row)
    assert "needs reference rewards" in found.left_out["par"]
    assert "a function is not trained" in found.left_out["warm"]


def test_a_folder_with_a_reward_model_has_every_shaping(laboratory: Path) -> None:
    (laboratory / "mine" / "result" / "model").mkdir(parents=True)
    own = OwnReward("own-mine", model=laboratory / "mine")
    found = hackability.rows_of(laboratory, own.name, ["vanilla", "par"], own)
    assert set(found.rows) == {"vanilla", "par"}
    spec = settings_of(laboratory, "reward_models", "own-mine")
    assert spec["given"] == "mine/result"
    assert "own-mine" not in hackability.laboratory_page(laboratory).each


def test_a_reward_model_of_other_words_is_refused(laboratory: Path) -> None:
    pages = (("backbones", "phi3-mini"), ("data", "dialogue"), ("tokenizers", "dialogue"), ("evaluation", "dialogue"))
    for kind, name in pages:
        write_yaml(laboratory / "params/scales/testbed" / f"{kind}.yaml", {name: scale_entry(kind, name)})
    tokenizers = "results/testbed/shared/tokenizer/dialogue"
    places = {f"{tokenizers}/result": {"a": 0}, f"{tokenizers}/1/result": {"b": 0}, "mine/model": {"b": 0}}
    for place, words in places.items():
        (laboratory / place).mkdir(parents=True)
        (laboratory / place / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}}))
    own = OwnReward("own-mine", model=laboratory / "mine")
    hackability.rows_of(laboratory, own.name, ["vanilla"], own)
    hackability.check_words(laboratory, "testbed", own, [1, 2])
    with pytest.raises(RecipeError, match="vocabulary differs from the tokenizer of the policies of seed 0"):
        hackability.check_words(laboratory, "testbed", own, [1, 0])


# --- data


@pytest.mark.parametrize("flaw", FLAWS)
def test_an_annotator_s_data_differ_from_the_dialogues_in_compared_responses_alone(flaw: str) -> None:
    plain, flawed = (data_spec(read_settings(DATA[name].under(ROOT)), name) for name in ("dialogue", flaw))
    assert isinstance(plain, WorldSpec)
    assert isinstance(flawed, WorldSpec)
    few = dict.fromkeys(plain.rows, 20)
    sets, other = (make_sets(replace(spec, rows=few), Path())[0] for spec in (plain, flawed))
    relabelled = 0
    for name, rows in sets.items():
        if not name.startswith("preference."):
            assert name == "examples" or rows == other[name], name
            continue
        for before, after in zip(rows, other[name], strict=True):
            assert before["prompt"] == after["prompt"]
            same = {before["chosen"], before["rejected"]} == {after["chosen"], after["rejected"]}
            assert same or flawed.padding
            relabelled += before["chosen"] != after["chosen"]
    assert relabelled >= 3


# --- graph


def laboratory_graph(root: Path, model: dict[str, Any], **row: Any) -> Any:
    """Items of a laboratory row with a reward model of these settings."""
    folder = root / "params/hackability"
    given = {"title": "length", "backbone": "phi3-mini", **model}
    set_entry(folder / "reward_models.yaml", "length", given if "given" in model else reward_model("length", **model))
    set_entry(folder / "rows.yaml", "length-par", reward_row("length", shaping={"kind": "par"}, **row))
    return graph.build(root)[Path("pipelines/testbed/hackability")]


def test_a_reward_model_learns_from_data_of_its_own_on_the_same_sft_model(tmp_path: Path) -> None:
    root = small_repository.create(tmp_path, scales=("testbed", "small"))
    new = (
        ("data", "length", "length"),
        ("stages", "references-few", "references"),
        ("evaluation", "short", "dialogue"),
    )
    for kind, name, like in new:
        set_entry(root / f"params/scales/testbed/{kind}.yaml", name, scale_entry(kind, like))
    made = laboratory_graph(root, {"data": "length", "references": "few"}, evaluation="short")
    model = made.stages["reward_model-hackability-length-0"].arguments
    assert model["data"] == "results/testbed/shared/data/length/result"
    assert model["sft"] == "results/testbed/shared/sft/phi3-mini/0/result"
    references = made.stages["references-hackability-length-0"].arguments
    assert references["data"] == "results/testbed/shared/data/dialogue/result"
    assert references["scale"] == "params/scales/testbed/stages.yaml:references-few"
    policy = made.stages["policy-hackability-length-par-0"].arguments
    assert policy["data"] == "results/testbed/shared/data/dialogue/result"
    assert policy["evaluation"] == "params/scales/testbed/evaluation.yaml:short"
    assert not made.tables
    assert Path("pipelines/small/hackability") not in graph.build(root)


def test_a_given_reward_model_is_not_trained(tmp_path: Path) -> None:
    root = small_repository.create(tmp_path)
    set_entry(root / "params/scales/testbed/stages.yaml", "reward_bench", scale_entry("stages", "reward_bench"))
    bench = {"kind": "reward_bench", "backbone": "phi3-mini", "reward_model": "length"}
    set_entry(root / "params/hackability/rows_bench.yaml", "length-bench", bench)
    made = laboratory_graph(root, {"given": "mine"})
    assert not [name for name in made.stages if name.startswith("reward_model")]
    assert made.stages["normaliser-hackability-length-0"].arguments["reward_model"] == "mine"
    assert made.stages["references-hackability-length-0"].arguments["reward_model"] == "mine"
    assert made.stages["policy-hackability-length-par-0"].arguments["reward_model"] == ("mine",)
    assert made.stages["reward_bench-hackability-length-bench-0"].arguments["reward_model"] == "mine"


# --- command


def invoke(monkeypatch: pytest.MonkeyPatch, root: Path, *words: str) -> tuple[Any, list[Any]]:
    """The command's outcome in a folder, and the calls of the flow in its place."""
    calls: list[Any] = []

    def flow(call: str, choice: Mapping[str, Any], **_: Any) -> int:
        assert call == "paper"
        calls.append(tuple(choice[name] for name in ("paper", "scale", "rows", "seeds")))
        return 1

    monkeypatch.chdir(root)
    monkeypatch.setattr("tasks.commands.reward_app.run_flow", flow)
    monkeypatch.setattr("tasks.graph.dvc_files.write", lambda root, folders: [])
    return CliRunner().invoke(commands, ["hackability", *words]), calls


def test_the_command_runs_what_was_chosen_and_shows_it(monkeypatch: pytest.MonkeyPatch, laboratory: Path) -> None:
    words = ("--flaw", "length", "--mitigation", "par", "--mitigation", "vanilla", "--seed", "1", "--seed", "2")
    done, calls = invoke(monkeypatch, laboratory, *words)
    assert calls == [("hackability", "testbed", ["length-vanilla", "length-par"], [1, 2])]
    assert done.exit_code == 1, "the flow's status, after the page"
    page = (laboratory / "report" / "hackability.html").read_text(encoding="utf-8")
    assert page.split("</table>")[0].count("<td") == 2


# --- a run


def test_a_run_has_its_measures_and_a_page(
    golden: SharedRuns, laboratory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = laboratory
    (root / "lengthy.py").write_text("def length(batch):\n    return batch.responses.lengths.float()\n")
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root))
    own = OwnReward("own-length", function="lengthy:length")
    rewards = hackability.rows_of(root, own.name, ["vanilla", "minmax", "par"], own)
    row = settings_of(root, "rows", "own-length-vanilla")
    out = root / "results/testbed/hackability/policy/own-length-vanilla/0"
    evaluation = {**SETTINGS["evaluation"], "only": ["alpaca"]}
    scale = {**SETTINGS["policy/ppo"], "measure_hacking": True}
    golden.run("function", row=row, scale=scale, evaluation=evaluation, out=out)
    metrics = json.loads((out / "result" / "metrics.json").read_text())
    points = [json.loads(line) for line in (out / "result" / "hacking.jsonl").read_text().splitlines()]
    assert [point["step"] for point in points] == [0, 1, 2]
    assert metrics["hacking/peak_win_rate"] == max(point["win_rate"] for point in points)
    assert metrics["hacking/loss_after_peak"] == metrics["hacking/peak_win_rate"] - points[-1]["win_rate"]
    assert sum(v for k, v in metrics.items() if k.startswith("clauses/")) == pytest.approx(1)
    assert sum(v for k, v in metrics.items() if k.startswith("clauses_sft/")) == pytest.approx(1)
    assert "gsm8k" not in metrics
    comparison = compare(root, "testbed", [rewards], ["vanilla", "minmax", "par"], [0])
    page = write_comparison(comparison, root / "report").read_text(encoding="utf-8")
    assert "the function lengthy:length" in page
    assert page.count("not run") >= 1
    assert "needs reference rewards" in page
