"""Messages about wrong settings: one line, with the file, entry and field at fault, the nearest name and the remedy."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.errors import DataError, RecipeError, hint
from tasks.graph.check import check_all, unread_stages
from tasks.params.pages import Address
from tasks.params.scales import scale_names
from tasks.params.yaml_files import parse_mapping

ROOT = Path(__file__).resolve().parents[3]
ROWS, MODELS, SCALE = "params/par/rows.yaml", "params/par/reward_models.yaml", "params/scales/testbed"
TESTBED, ASPECTS = f"{SCALE}/backbones.yaml", "params/alarm/aspect_models.yaml"
GENERATIVE, TATOEBA = "params/rlmec/generative_reward_models.yaml", "params/tatoeba"


@pytest.fixture
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the settings of all scales, and of the paper whose page a test changes; else of PAR."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    folder = Path(parameters.get("page", ROWS)).parts[1]
    for part in {"scales", "par" if folder == "scales" else folder}:
        shutil.copytree(ROOT / "params" / part, tmp_path / "params" / part)
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    _without_unread(tmp_path)
    return tmp_path


def _without_unread(tree: Path) -> None:
    """Drops settings of stages that only papers outside the tree read."""
    for problem in (problem for scale in scale_names(tree) for problem in unread_stages(tree, scale)):
        address = Address(problem.split(": ")[0])
        content = yaml.safe_load((tree / address.file).read_text(encoding="utf-8"))
        del content[address.key]
        (tree / address.file).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def change(tree: Path, page: str, entry: str, changed: Mapping[str, Any]) -> None:
    """Changes settings of an entry of a page."""
    file = tree / page
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    content[entry] = {**(content.get(entry) or {}), **changed}
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def problems(tree: Path) -> list[str]:
    with pytest.raises((RecipeError, DataError)) as refused:
        check_all(tree)
    return str(refused.value).replace(f"{tree}/", "").splitlines()


def one_problem(tree: Path) -> str:
    (only,) = problems(tree)
    return only


#: (page, entry, what is changed in it, the one line that the check prints, or its beginning)
BLAMED: list[tuple[str, str, dict[str, Any], str]] = [
    (
        MODELS,
        "standard",
        {"backbone": "gemma-2b"},
        "standard: backbone is 'gemma-2b', which no scale has; did you mean",
    ),
    (GENERATIVE, "qa", {"backbone": "rlmec-qq"}, "qa: backbone is 'rlmec-qq', which no scale has; did you mean"),
    (
        f"{TATOEBA}/selections.yaml",
        "tools",
        {"backbone": "tatoeba"},
        "tools: backbone is 'tatoeba', which no scale has",
    ),
    (f"{TATOEBA}/selections.yaml", "tools", {"holistic": "holistc"}, "tools: holistic is 'holistc', which no page has"),
    (f"{TATOEBA}/selections.yaml", "tools", {"aspects": ["lengh"]}, "tools: aspects[0] is 'lengh', which no scale has"),
    (
        TESTBED,
        "gemma2-2b",
        {"data": "ultrafedback"},
        "gemma2-2b: data is 'ultrafedback'; did you mean 'ultrafeedback'?",
    ),
    (TESTBED, "gemma2-2b", {"tokenizer": ["a"]}, "gemma2-2b: tokenizer is ['a']; it must be text"),
    (
        ROWS,
        "vanilla",
        {"settings": "par_pp"},
        "vanilla: settings is 'par_pp', which no scale has; did you mean 'par_ppo'",
    ),
    (ROWS, "vanilla", {"evaluation": "dialog"}, "vanilla: evaluation is 'dialog', which no scale has; did you mean"),
    (MODELS, "standard", {"references": "hackabilty"}, "standard: references is 'hackabilty', which no scale has"),
    (MODELS, "standard", {"data": "lenght"}, "standard: data is 'lenght', which no scale has; did you mean 'length'?"),
    (
        MODELS,
        "standard",
        {"segmenter": {"kind": "sat", "model": "sat-2l"}},
        "standard: segmenter.model is 'sat-2l', which no scale has; did you mean",
    ),
    (MODELS, "hh-warm", {"merge": ["hh-warm-3e-6", "hh-wrm"]}, "hh-warm: merge[1] is 'hh-wrm', which no page has; did"),
    (GENERATIVE, "qa", {"training": {"epoch": 7}}, "qa: unknown setting 'training.epoch'; did you mean 'epochs'?"),
    (
        f"{SCALE}/policy.yaml",
        "par_ppo",
        {"optimiser": {"actr_lr": 1}},
        "par_ppo: unknown setting 'optimiser.actr_lr'; did you mean 'actor_lr'?",
    ),
    (ASPECTS, "factuality", {"density": "sentences"}, "factuality: density is 'sentences'; did you mean 'sentence'?"),
    (
        f"{SCALE}/data.yaml",
        "flattery",
        {"padding": {"flatery": 0.4}},
        "flattery: padding: a key is 'flatery'; did you mean 'flattery'?",
    ),
    (
        f"{SCALE}/stages.yaml",
        "reward-model",
        {"epochs": 1},
        "reward-model: no stage 'reward' has settings; did you mean",
    ),
]


@pytest.mark.parametrize(("page", "entry", "changed", "message"), BLAMED, ids=[case[3] for case in BLAMED])
def test_the_entry_and_field_at_fault_are_blamed_once(
    tree: Path, page: str, entry: str, changed: dict[str, Any], message: str
) -> None:
    change(tree, page, entry, changed)
    assert one_problem(tree).startswith(f"{page}:{message}")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reward_model": ["standard"]}, "reward_model is ['standard']; it must be text or null"),
        ({"kind": ["reward"]}, "kind is ['reward']; it must be text, one of reward"),
        ({"optimiser": {"kind": ["ppo"]}}, "optimiser.kind is ['ppo']; it must be text, one of ppo"),
        ({"readout": "value"}, "readout is 'value'; it must be a mapping, as in {segmenter: {kind: bandit}}"),
        ({"optimiser": {"iterations": {"times": "2"}}}, "optimiser.iterations is {'times': '2'}; state a number"),
        ({"components": []}, "give either 'components' or 'credit', 'readout', 'reward_model', 'shaping' at the top"),
        (
            {"optimiser": {"kind": "dpo"}},
            "optimiser 'dpo' does not fit a recipe of kind 'reward'; use kind 'supervised'",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_named_by_its_own_field(tree: Path, changed: dict[str, Any], message: str) -> None:
    change(tree, ROWS, "vanilla", changed)
    assert one_problem(tree).startswith(f"{ROWS}:vanilla: {message}")


def test_a_row_of_another_kind_than_the_base_is_told_that_the_base_does_not_apply(tree: Path) -> None:
    change(tree, ROWS, "vanilla", {"kind": "best_of_n"})
    assert one_problem(tree) == (
        f"{ROWS}:vanilla: 'backbone' and 'reward_model' are missing; the base is of kind 'reward' and does not apply "
        "to another kind"
    )


def test_a_stage_without_sizes_is_said_once_of_the_scales_page(tree: Path) -> None:
    change(tree, f"{SCALE}/stages.yaml", "normaliser", {})
    file = tree / SCALE / "stages.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    del content["normaliser"]
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    of_testbed = [problem for problem in problems(tree) if "stages.yaml" in problem and "'normaliser'" in problem]
    assert of_testbed[0].startswith(f"{SCALE}/stages.yaml: 'normaliser' is missing; it sets the sizes of that stage")
    assert len(of_testbed) == len({problem.partition(":")[0] for problem in of_testbed})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("? [a]\n: 1\n", r"page.yaml, line 1: a name must be text\. It is a list; write one name before the colon"),
        ("x: {{a: b}: 1}\n", r"page.yaml, line 1: a name must be text\. It is a mapping; write one name"),
        ("a: 1\n? \n: 1\n", r"page.yaml, line 2: a name must be text\. Write a name before the colon"),
        ("1: 2\n", r"page.yaml, line 1, field '1': a name must be text\. Write '1' in quotes"),
    ],
)
def test_a_name_that_is_not_text_is_shown_as_a_reader_wrote_it(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_mapping(text, "page.yaml")


@pytest.mark.parametrize(
    ("word", "known", "near"),
    [
        ("PPO", ["ppo", "ppo_a2c"], "ppo"),
        ("Mean", ["sum", "mean"], "mean"),
        ("bradley-terry", ["bradley_terry", "odin"], "bradley_terry"),
        ("even-split", ["even_split", "repeat"], "even_split"),
        ("EVENSPLIT", ["repeat", "even_split"], "even_split"),
        ("KL-Coef", ["clip", "kl_coef"], "kl_coef"),
        ("Z", ["none", "z"], "z"),
        ("qwen2.5", ["llama", "Qwen2.5"], "Qwen2.5"),
    ],
)
def test_capitals_and_separators_never_hide_the_nearest_name(word: str, known: list[str], near: str) -> None:
    assert hint(word, known) == f"; did you mean '{near}'?"


@pytest.mark.parametrize(
    ("page", "entry", "changed", "message"),
    [
        (ROWS, "vanilla", {"optimiser": {"kind": "PPO"}}, "optimiser.kind is 'PPO'; did you mean 'ppo'?"),
        (ROWS, "vanilla", {"credit": "even-split"}, "credit is 'even-split'; did you mean 'even_split'?"),
        (ROWS, "vanilla", {"shaping": {"kind": "PAR"}}, "unknown shaping 'PAR'; did you mean 'par'?"),
        (MODELS, "standard", {"aggregation": "Mean"}, "aggregation is 'Mean'; did you mean 'mean'?"),
        (MODELS, "standard", {"loss": "bradley-terry"}, "loss is 'bradley-terry'; did you mean 'bradley_terry'?"),
        (f"{SCALE}/aspects.yaml", "readability", {"normaliser": "Z"}, "normaliser is 'Z'; did you mean 'z'?"),
    ],
)
def test_a_choice_in_other_letters_is_recognised_and_named_once(
    tree: Path, page: str, entry: str, changed: dict[str, Any], message: str
) -> None:
    change(tree, page, entry, changed)
    assert one_problem(tree) == f"{page}:{entry}: {message}"
