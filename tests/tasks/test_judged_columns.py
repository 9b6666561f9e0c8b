"""From a judge's replies over HTTP to the cells of PAR's tables: data without true rewards, the scale `small`'s
settings, tiny models."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from rlhf_core.errors import DataError
from rlhf_core.typed import typed
from tasks import normaliser, policy, prepare, references, reward_model, sft, tables, tokenizer
from tasks.evaluating.sft_comparison import SftComparison
from tasks.graph.rows import row_addresses
from tasks.params.evaluation import EvaluationConfig
from tasks.params.pages import read_settings
from tasks.params.scales import scale_entries
from tasks.running.artifacts import read_json, read_jsonl
from tests.chat_endpoint import Answer, ChatEndpoint, completion
from tests.tasks.golden_runs import SETTINGS, SHARED
from tests.tasks.report.fixture_results import cell_text

ROOT = Path(__file__).resolve().parents[2]
ROWS = {name: address.under(ROOT) for name, address in row_addresses(ROOT, "par").items()}
BANDIT = {**SETTINGS["reward_model/segment"], "segmenter": {"kind": "bandit"}}
SCALE: dict[str, Any] = {
    "optimiser": {**SETTINGS["policy/ppo"]["optimiser"], "iterations": 3, "critic": "reward_model", "replay": 1},
    "sampling": {"max_new_tokens": 12, "temperature": 0.9, "top_k": 50, "top_p": 0.9},
    "checkpoint_every": 1,
    "checkpoint_prompts": 3,
    "checkpoint_proxy": True,
    "peak": True,
    "rollout_samples": 2,
}
PROMPTS, HELD_OUT = 24, 6
ANSWERS = re.compile(r"<Assistant-A response>:\n(.*)\n<Assistant-B response>:\n(.*)\n$", re.DOTALL)
METHODS = ("par", "vanilla")


def written(path: Path, values: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return str(path)


def line(**arguments: Any) -> list[str]:
    return [str(word) for name, value in arguments.items() for word in (f"--{name.replace('_', '-')}", value)]


def longer_wins(body: dict[str, Any]) -> Answer:
    """Returns the reply of a judge that prefers the longer answer and names its model; of the question 'mute' it says
    nothing that can be read, of 'once' only where the answer shown first comes first in the alphabet."""
    asked = body["messages"][1]["content"]
    found = ANSWERS.search(asked)
    assert found is not None, "PAR's prompt is the only one that is asked"
    first, second = found.groups()
    said = f"Better: {'N' if len(first) == len(second) else 'A' if len(first) > len(second) else 'B'}"
    if "mute" in asked or ("once" in asked and first > second):
        said = "Both have merits."
    return completion(said, model="local-judge-0711")


@pytest.fixture(scope="module")
def judge() -> Iterator[str]:
    with ChatEndpoint(longer_wins) as endpoint:
        yield endpoint.url


def pairs(split: str, count: int) -> str:
    """Preference pairs as JSON Lines; two questions of the test split tell the judge to be silent."""
    silent = {0: "mute ", 1: "once "} if split == "test" else {}
    rows = [
        {
            "id": f"{split}-{i}",
            "prompt": f"Human: {silent.get(i, '')}what is {split} number {i} plus {i % 5}?\n\nAssistant:",
            "chosen": f"It is {i + i % 5}, as you can count.",
            "rejected": f"Perhaps {i}.",
            "source": "made up",
        }
        for i in range(count)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def small(judge: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`results/small` with an SFT model and two of PAR's rows, in a folder with the judge's cache."""
    root = tmp_path_factory.mktemp("judged")
    results = root / "results" / "small"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("NO_PROXY", "127.0.0.1")
        for name, value in (("URL", judge), ("MODEL", "local-judge"), ("KEY", "none")):
            patch.setenv(f"REWARDSMITH_JUDGE_{name}", value)
        _run(root, results)
        yield results


def _run(root: Path, results: Path) -> None:
    (root / "files").mkdir()
    for split, count in (("train", 40), ("test", PROMPTS)):
        (root / "files" / f"sums.{split}.jsonl").write_text(pairs(split, count), encoding="utf-8")
    data = {
        "source": "directory", "directory": str(root / "files"), "template": "plain", "preference": ["sums"],
        "limits": {"prompt": 64, "total": 96}, "validation_share": 0.1, "benchmark_rows": PROMPTS,
        "held_out": HELD_OUT,
    }  # fmt: skip
    stated = read_settings(scale_entries(ROOT, "small", "evaluation")["par"].under(ROOT))
    evaluation = written(root / "evaluation.yaml", {**stated, "max_new_tokens": 10})
    spec = {**SETTINGS["backbone"], "training": {**SHARED["supervised"], "learning_rate": 2.0e-2}}
    shared = {name: results / "shared" / name for name in ("data", "tokenizer", "sft")}
    above = {"data": shared["data"] / "ultrafeedback", "tokenizer": shared["tokenizer"] / "ultrafeedback"}
    prepare.main(line(spec=written(root / "data.yaml", data), out=above["data"]))
    made = {"data": above["data"] / "result"}
    words = written(root / "tokenizer.yaml", {"vocabulary": 400})
    tokenizer.main(line(spec=words, out=above["tokenizer"], **made))
    model = written(root / "backbone.yaml", spec)
    out = shared["sft"] / "gemma2-2b" / "0"
    given = {**made, "tokenizer": above["tokenizer"] / "result"}
    sft.main(line(spec=model, evaluation=evaluation, seed=0, out=out, **given))
    made["sft"] = out / "result"
    scale = written(root / "rm_scale.yaml", SETTINGS["training"])
    standard = results / "par" / "reward_model" / "standard" / "0"
    reward_model.main(line(spec=written(root / "rm.yaml", BANDIT), scale=scale, seed=0, out=standard, **made))
    made["reward_model"] = standard / "result"
    for stage, seed in ((normaliser, {}), (references, {"seed": 0})):
        name = stage.__name__.rpartition(".")[2]
        settings = written(root / f"{name}.yaml", SETTINGS[name])
        stage.main(line(scale=settings, out=root / name, **seed, **made))
        given[name] = root / name / "result"
    upstream = {**made, "normaliser": given["normaliser"], "references": given["references"]}
    for name in METHODS:
        row = read_settings(ROWS[name])
        if row["shaping"][-1]["kind"] == "par":
            row["shaping"][-1]["references"] = 3
        files = {"row": written(root / f"{name}.yaml", row), "evaluation": evaluation}
        files["scale"] = written(
            root / "scale.yaml", {**SCALE, "checkpoint_prompts": 8, "checkpoint_benchmark": "held_out"}
        )
        policy.main(line(**files, **upstream, seed=0, out=results / "par" / "policy" / name / "0"))


@pytest.fixture(scope="module")
def built(small: Path) -> dict[str, Any]:
    """Tables of PAR by id."""
    tables.build(small, "par", (0,), small / "par" / "tables")
    made = read_json(small / "par" / "tables" / "result" / "tables.json")
    return {table["id"]: table for table in made["tables"]}


def result(small: Path, name: str) -> Path:
    place = "shared/sft" if name == "gemma2-2b" else "par/policy"
    return small / place / name / "0" / "result"


def outcomes(small: Path, name: str) -> dict[str, float | None]:
    """Returns the judge's outcome of each answer of a row, by hand: 1, .5, 0, or None where it says too little."""
    own, other = (
        {r["id"]: r for r in read_jsonl(result(small, side) / "generations.jsonl") if r["benchmark"] == "alpaca"}
        for side in (name, "gemma2-2b")
    )
    found: dict[str, float | None] = {}
    for prompt, row in own.items():
        mine, theirs = row["response"], other[prompt]["response"]
        silent = mine != theirs and ("mute" in row["prompt"] or "once" in row["prompt"])
        longer = (len(mine) > len(theirs)) - (len(mine) < len(theirs))
        found[prompt] = None if silent else 0.5 + 0.5 * longer
    return found


def cell(built: dict[str, Any], table: str, row: str, column: str) -> dict[str, Any]:
    found: dict[str, Any] = next(r for r in built[table]["rows"] if r["name"] == row)["cells"][column]
    return found


@pytest.mark.parametrize("name", METHODS)
def test_the_judges_replies_are_the_win_rate_of_table_1(small: Path, built: dict[str, Any], name: str) -> None:
    expected = [score for score in outcomes(small, name).values() if score is not None]
    assert PROMPTS - 2 <= len(expected) <= PROMPTS
    found = cell(built, "Table 1", name, "alpaca_wr")
    assert found["mean"] == pytest.approx(100 * sum(expected) / len(expected))
    assert found["published"] == {"par": "75.370", "vanilla": "0.370"}[name]
    assert cell(built, "Table 1", "gemma2-2b", "alpaca_wr")["mean"] == 50.0


@pytest.mark.parametrize("name", METHODS)
def test_prompts_without_a_verdict_are_counted_in_the_cell(small: Path, built: dict[str, Any], name: str) -> None:
    rows = [row for row in read_jsonl(result(small, name) / "judgements.jsonl") if row["reference"] == "sft"]
    by_prompt: dict[str, list[bool]] = {}
    for row in rows:
        by_prompt.setdefault(row["id"], []).append(row["valid"])
    one_sided = sum(sum(valid) == 1 for valid in by_prompt.values())
    unparsable = sum(not any(valid) for valid in by_prompt.values())
    found = cell(built, "Table 1", name, "alpaca_wr")
    assert (found["unparsable"] or 0, found["one_sided"] or 0) == (unparsable, one_sided)
    shown = [f"{n} {word}" for n, word in ((unparsable, "unparsable"), (one_sided, "one-sided")) if n]
    assert shown, "the judge was silent on two prompts"
    assert cell_text(found, 1).endswith(f"; {', '.join(shown)}")


def test_the_best_evaluations_answers_are_judged_for_table_3(small: Path, built: dict[str, Any]) -> None:
    metrics = read_json(result(small, "par") / "metrics.json")
    assert metrics["loss_after_peak"] == pytest.approx(metrics["peak_win_rate_vs_sft"] - metrics["win_rate_vs_sft"])
    found = cell(built, "Table 3", "par", "alpaca_lc")
    assert found["status"] == "measured"
    assert 0 <= found["mean"] <= 100


def test_a_blank_cell_says_why(built: dict[str, Any]) -> None:
    found = cell(built, "Table 1", "par", "mt_overall")
    assert (found["status"], found["mean"]) == ("not measured", None)
    assert cell_text(found, 1) == "5.063 / not measured: the data has no benchmark 'mtbench'"


def test_judge_dates_protocol_and_replies_are_recorded(small: Path) -> None:
    record = read_json(small / "par" / "policy" / "par" / "0" / "record" / "judge.json")
    assert record["model"] == "local-judge"
    assert set(record["served"]) == {"local-judge-0711"}
    assert record["first"] <= record["last"]
    rates = read_json(result(small, "par") / "win_rates.json")
    assert set(rates) == {"win_rate_vs_sft", "peak_win_rate_vs_sft"}
    facts = rates["win_rate_vs_sft"]
    assert (facts["reference"], facts["sft"], facts["prompts"]) == ("sft", "gemma2-2b", PROMPTS)
    raw = {row["raw"] for row in read_jsonl(result(small, "par") / "judgements.jsonl")}
    assert {"Better: A", "Better: B", "Both have merits."} <= raw


@pytest.mark.parametrize("place", ["dialogue", "dialogue/1", "other/1"])
def test_judged_rows_name_their_data_set_with_its_draw(place: str, tmp_path: Path) -> None:
    shared = Path("results/testbed/shared")
    data, sft_model = shared / "data" / place / "result", shared / "sft" / "phi" / "1" / "result"
    above = SimpleNamespace(data=data, sft=sft_model, reward=SimpleNamespace(selection=None))
    config = typed(EvaluationConfig, SETTINGS["evaluation"], "evaluation")
    evaluator = SimpleNamespace(config=config, judge=None, world=None, instruction="")
    over = SftComparison({}, win_rate_facts={"win_rate_vs_sft": {"prompts": 1}})
    run = SimpleNamespace(evaluator=evaluator, row=SimpleNamespace(inputs=above))
    policy.write_judgements(tmp_path, run, SimpleNamespace(judgements=[]), over, None)  # type: ignore[arg-type]
    assert read_json(tmp_path / "judge.json")["data"] == place, "rows of two data sets are not compared"
    assert read_json(tmp_path / "win_rates.json")["win_rate_vs_sft"]["sft"] == "phi"


def test_answers_that_the_sft_model_lacks_are_named_before_training(small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sft" / "gemma2-2b" / "0" / "result"
    folder.mkdir(parents=True)
    (folder / "model").symlink_to(result(small, "gemma2-2b") / "model")
    rows = read_jsonl(result(small, "gemma2-2b") / "generations.jsonl")
    kept = "".join(json.dumps(row) + "\n" for row in rows[3:])
    (folder / "generations.jsonl").write_text(kept, encoding="utf-8")
    data = small / "shared" / "data" / "ultrafeedback" / "result"
    row = written(tmp_path / "row.yaml", SETTINGS["row/dpo"])
    scale = written(tmp_path / "scale.yaml", SETTINGS["policy/dpo"])
    files = {"row": row, "scale": scale, "evaluation": small.parents[1] / "evaluation.yaml"}
    with pytest.raises(DataError, match=f"no answer to 3 of {PROMPTS} prompts of 'alpaca', the first is"):
        policy.main(line(**files, data=data, sft=folder, seed=0, out=tmp_path / "out"))
    assert not (tmp_path / "out" / "result").exists()


def test_no_judge_leaves_the_column_blank_with_its_reason(small: Path, tmp_path: Path) -> None:
    """The SFT model's 50 % by definition would be the only number of the column."""
    copy = tmp_path / "small"
    for name in ("gemma2-2b", "par"):
        place = copy / result(small, name).relative_to(small)
        place.mkdir(parents=True)
        for file in ("metrics.json", "generations.jsonl"):
            (place / file).write_text((result(small, name) / file).read_text())
        metrics = {k: v for k, v in read_json(place / "metrics.json").items() if "vs_sft" not in k and v == v}
        (place / "metrics.json").write_text(json.dumps({k: v for k, v in metrics.items() if math.isfinite(v)}))
    tables.build(copy, "par", (0,), tmp_path / "tables")
    made = {table["id"]: table for table in read_json(tmp_path / "tables" / "result" / "tables.json")["tables"]}
    for name in ("gemma2-2b", "par"):
        found = cell(made, "Table 1", name, "alpaca_wr")
        assert (found["status"], found["mean"]) == ("not measured", None)
        assert found["why"] == "no judge was asked"
