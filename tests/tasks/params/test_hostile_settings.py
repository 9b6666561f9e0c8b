"""Settings that once ended in a traceback, stopped other rows, or gave a wrong number."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.policy_optimisation.config import optimiser_config
from rlhf_core.typed import typed
from tasks.graph.check import check_rows
from tasks.graph.matrix import build
from tasks.params.pages import Page
from tasks.params.questions import QuestionsSpec
from tasks.params.settings import overrides
from tasks.params.stages import RunSettings
from tasks.params.yaml_files import parse_mapping, read_mapping

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("value", ["._", '!!int "abc"', '!!bool "maybe"', "2020-13-45", "1" + "0" * 400, "9" * 5000])
def test_a_value_that_cannot_be_made_is_named_with_its_row(value: str) -> None:
    with pytest.raises(DataError, match=r"page\.yaml, line 2: not valid YAML .*is not a valid"):
        parse_mapping(f"title: x\nweight: {value}\n", "page.yaml")


def test_a_multiple_beyond_a_float_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"iterations is 1e\+308 times 40.*too large"):
        overrides({"iterations": {"times": 1e308}}, {"iterations": 40})
    with pytest.raises(RecipeError, match="but the row gives 1000"):
        overrides({"iterations": {"times": 10**400}}, {"iterations": 40})


def test_a_critic_that_only_warms_up_is_refused() -> None:
    sizes = {"iterations": 4, "rollout_batch": 4, "minibatch": 4, "microbatch": 4, "epochs": 1}
    with pytest.raises(RecipeError, match="critic_warmup is 4 with 4 iterations: the policy would never be trained"):
        optimiser_config("ppo", **sizes, actor_lr=1e-3, critic_lr=1e-3, critic_warmup=4)


def test_variants_of_no_name_are_refused() -> None:
    with pytest.raises(DataError, match=r"field 'each\.reward': names nothing"):
        Page.of(Path("rows.yaml"), {"each": {"reward": []}, "base": {}, "variants": {"vanilla": {}}})


@pytest.mark.parametrize("seeds", [[], [0, 0], [-1], ["0"]])
def test_seeds_of_the_suite_are_distinct_whole_numbers(seeds: list[object]) -> None:
    with pytest.raises(RecipeError, match="seeds"):
        typed(RunSettings, {"suite": {"seeds": seeds, "scale_seeds": {"default": [0]}}}, "params.yaml")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the project's settings."""
    shutil.copytree(ROOT / "params", tmp_path / "params")
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    return tmp_path


def test_a_demo_of_an_unknown_paper_is_named_with_the_nearest(tree: Path) -> None:
    settings = (tree / "params.yaml").read_text().replace("  par:", "  parr:")
    (tree / "params.yaml").write_text(settings)
    with pytest.raises(RecipeError, match=r"params.yaml: demo_all names 'parr'.*did you mean 'par'"):
        build(tree)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "zz: {title: x, kind: second_judge, backbone: gemma2-2b, policy: par, against: [hh-vanilla]}",
            "compare policies on the same data",
        ),
        ("zz: {title: x, kind: reward_bench, backbone: phi3-mini, reward_model: standard}", "name the same backbone"),
    ],
)
def test_a_row_that_would_measure_other_data_is_refused(tree: Path, entry: str, message: str) -> None:
    page = tree / "params" / "par" / "rows.yaml"
    page.write_text(page.read_text() + entry + "\n")
    problems = check_rows(tree, "par", ["zz"], "testbed")
    assert len(problems) == 1
    assert "params/par/rows.yaml:zz" in problems[0]
    assert message in problems[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 100_000, "nested too deeply. At most 100"),
        ("a: " + "{a: " * 101 + "1" + "}" * 101, "nested too deeply. At most 100"),
        ("- " * 100_000, "nested too deeply. At most 100"),
        ("\n".join(f"{' ' * n}a:" for n in range(200)), "nested too deeply. At most 100"),
        ("a: &a [*a]", r"has aliases\. Write out what each \*name stands for"),
        ("a: &a {k: v}\nb: {<<: *a}\n", r"has aliases\. Write out what each \*name stands for"),
    ],
    ids=["lists", "mappings", "lists in a line", "mappings in lines", "of itself", "merged"],
)
def test_a_file_that_no_parser_stands_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "hostile.yaml"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        read_mapping(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "testbed", "directory": "here"}, "directory is 'here', but source 'testbed' reads none"),
        (
            {"source": "directory", "train": ["a"], "tests": {"a": "seen"}, "difficulty": {"slip": 0.1}},
            "difficulty is stated, but source 'directory' draws no questions",
        ),
    ],
)
def test_a_setting_of_questions_that_their_source_does_not_read_is_refused(
    changes: dict[str, object], message: str
) -> None:
    rows = {"sft": 2, "sft_validation": 1, "questions": 1, "test": 1}
    spec = {"task": "mathematics", "template": "plain", "limits": {"prompt": 96, "total": 240}, "rows": rows}
    with pytest.raises(RecipeError, match=message):
        typed(QuestionsSpec, {**spec, **changes}, "data.yaml")
